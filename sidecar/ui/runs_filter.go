package ui

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// runFilter says which runs a page is about.
type runFilter struct {
	// Words that the id or the name must have.
	Words string
	// Tags that a run must have.
	Tags []tagPair
	// Wrong says what is wrong with the filter. Then nothing is shown.
	Wrong string

	words string // in small letters
}

// tagPair is a tag.
type tagPair struct{ Key, Value string }

// String spells a tag as filters have it.
func (t tagPair) String() string { return t.Key + "=" + t.Value }

// tagsOf are a run's tags, by key.
func tagsOf(tags map[string]string) []tagPair {
	pairs := make([]tagPair, 0, len(tags))
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		pairs = append(pairs, tagPair{key, tags[key]})
	}
	return pairs
}

// parseRunFilter reads a filter from an address: q are words, and tag is KEY=VALUE, which
// can be given more than once.
func parseRunFilter(query url.Values) runFilter {
	f := runFilter{Words: strings.TrimSpace(query.Get("q"))}
	f.words = strings.ToLower(f.Words)
	if len(f.Words) > pool.MaxID {
		f.Wrong = fmt.Sprintf("The filter has %d bytes: use at most %d, as ids have.", len(f.Words), pool.MaxID)
		return f
	}
	for _, s := range query["tag"] {
		if s = strings.TrimSpace(s); s == "" {
			continue // of a form that was left empty
		}
		key, value, _ := strings.Cut(s, "=")
		tag := tagPair{key, value}
		if err := run.ValidateTag(key, value); err != nil {
			f.Wrong = fmt.Sprintf("%q is not a tag: write KEY=VALUE, as in env=prod.", text.Cut(s, run.MaxText))
			return f
		}
		if slices.ContainsFunc(f.Tags, func(t tagPair) bool { return t.Key == key && t.Value != value }) {
			f.Wrong = fmt.Sprintf("A run has one value of the tag %q: keep one of them.", key)
			return f
		}
		if !slices.Contains(f.Tags, tag) {
			f.Tags = append(f.Tags, tag)
		}
	}
	return f
}

// all reports whether the filter matches all runs.
func (f *runFilter) all() bool { return f.words == "" && len(f.Tags) == 0 }

func (f *runFilter) matches(l *listed) bool {
	for _, t := range f.Tags {
		if value, ok := l.Tags[t.Key]; !ok || value != t.Value {
			return false
		}
	}
	return f.words == "" || strings.Contains(l.lowID, f.words) || strings.Contains(l.lowName, f.words)
}

// address is a page's own, from which the addresses of its links are made.
type listAddress struct {
	path  string
	query url.Values
}

// listAddressOf returns the address of a request, with these values of its query.
func listAddressOf(r *http.Request, names ...string) listAddress {
	query, a := r.URL.Query(), listAddress{pathOf(r.URL), url.Values{}}
	for _, name := range names {
		if values := query[name]; len(values) > 0 {
			a.query[name] = values
		}
	}
	return a
}

// with returns the address with one value set, or without it if it is empty, at the
// beginning of the list.
func (a listAddress) with(key, value string) string {
	query := maps.Clone(a.query)
	query.Del("after")
	if query.Del(key); value != "" {
		query.Set(key, value)
	}
	return a.spell(query)
}

// more returns the address with a further tag to filter by, at the beginning of the list.
func (a listAddress) more(t tagPair) string {
	query := maps.Clone(a.query)
	query.Del("after")
	query["tag"] = append(slices.DeleteFunc(slices.Clone(query["tag"]), func(text string) bool {
		return strings.HasPrefix(strings.TrimSpace(text), t.Key+"=")
	}), t.String())
	return a.spell(query)
}

// less returns the address without a tag to filter by, at the beginning of the list.
func (a listAddress) less(t tagPair) string {
	query := maps.Clone(a.query)
	query.Del("after")
	query["tag"] = slices.DeleteFunc(slices.Clone(query["tag"]), func(text string) bool {
		return strings.TrimSpace(text) == t.String()
	})
	return a.spell(query)
}

func (a listAddress) spell(query url.Values) string {
	if text := query.Encode(); text != "" {
		return a.path + "?" + text
	}
	return a.path
}

// link is where a text of a page leads.
type listLink struct{ Text, Href string }

// tagsShown is how many tags of a run a list shows.
const tagsShown = 6

// tagList is the tags of a run, each of which leads to the runs that have it, too.
type tagList struct {
	Links []listLink
	// More is how many are not shown.
	More int
}

func (a listAddress) tags(tags map[string]string) tagList {
	all := tagsOf(tags)
	list := tagList{More: max(0, len(all)-tagsShown)}
	for _, t := range all[:len(all)-list.More] {
		list.Links = append(list.Links, listLink{text.Visible(t.String()), a.more(t)})
	}
	return list
}

// filterForm is what the form shows that changes a filter.
type filterForm struct {
	// Words are those of the filter, and Wrong says what is wrong with it.
	Words, Wrong string
	// Action is where it goes, and Kept are values that stay as they are.
	Action string
	Kept   []keptField
	// Drop are the tags that are filtered by, each with the way to leave it out, and
	// Clear leaves out all; empty if nothing is filtered.
	Drop  []listLink
	Clear string
}

// field is a value that a form sends unseen.
type keptField struct{ Name, Value string }

// form returns the form of a filter. The names are those of other values of the address
// that stay as they are.
func (f runFilter) form(a listAddress, others ...string) filterForm {
	form := filterForm{Words: f.Words, Wrong: f.Wrong, Action: a.path}
	for _, name := range others {
		for _, value := range a.query[name] {
			form.Kept = append(form.Kept, keptField{name, value})
		}
	}
	for _, t := range f.Tags {
		form.Kept = append(form.Kept, keptField{"tag", t.String()})
		form.Drop = append(form.Drop, listLink{text.Visible(t.String()), a.less(t)})
	}
	if !f.all() || f.Wrong != "" {
		query := maps.Clone(a.query)
		for _, name := range []string{"q", "tag", "after"} {
			query.Del(name)
		}
		form.Clear = a.spell(query)
	}
	return form
}

// pager is how one gets from one page of a list to the others.
type listPager struct {
	First, Last, Of int
	// Begin is the first page, Previous and Next are the neighbours of this one; empty if
	// there is none.
	Begin, Previous, Next string
}

func pagerOf(s listPage, a listAddress) listPager {
	p := listPager{First: s.first, Last: s.first + len(s.rows) - 1, Of: s.of}
	at := func(behind listPlace) string {
		query := maps.Clone(a.query)
		if query.Del("after"); behind != (listPlace{}) {
			query.Set("after", behind.String())
		}
		return a.spell(query)
	}
	if s.hasPrevious {
		p.Begin, p.Previous = at(listPlace{}), at(s.previous)
	}
	if s.hasNext {
		p.Next = at(s.next)
	}
	return p
}

// afterOf reads where a page begins.
func afterOf(query url.Values) (listPlace, error) {
	s := query.Get("after")
	if s == "" {
		return listPlace{}, nil
	}
	p, ok := parsePlace(s)
	if !ok {
		return listPlace{}, problem.Field("after", "%q is not a place in this list: begin at its first page", text.Cut(s, run.MaxText))
	}
	return p, nil
}
