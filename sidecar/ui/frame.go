package ui

import (
	"bytes"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"
)

// frame is what templates are given: what a page shows, and what is around it.
type frame struct {
	Title string
	Data  any

	// May tells whether whoever looks may act, and Who is how their actions are
	// recorded.
	May bool
	Who string
	Now time.Time
	// Live tells that it is rendered for a stream: times are exact, and nothing
	// may differ only because time has passed.
	Live bool
	// Plain tells that the page can load nothing, since whoever asks is refused
	// that, too.
	Plain bool

	Nav     []navLink
	Sheets  []string
	Script  string
	Icon    string
	Message string // of what was done just now
	// Refresh is the address of what is shown; LiveURL is that if it is looked at
	// again.
	Refresh, LiveURL string
	// SignIn is where to sign in, empty if one can't or has; SignOut is where one
	// signs out.
	SignIn, SignOut string

	path  string
	query url.Values
}

// navLink is a page in the navigation.
type navLink struct {
	Name, URL string
	Current   bool
}

// frameOf is the frame of a request, for a page of that name. The page may be none of the
// list: that of an error.
func (p *Pages) frameOf(r *http.Request, name string, live bool) *frame {
	f := &frame{
		May: p.may(r), Who: p.who(r), Now: time.Now(), Live: live,
		Sheets: assets.sheets(name), Script: assets.url("berth.js"), Icon: assets.url("icon.svg"),
		path: r.URL.Path, query: r.URL.Query(),
	}
	f.Message = p.told(f.query)
	delete(f.query, messageKey)
	delete(f.query, sealKey)
	f.Refresh = addressOf(f.path, f.query)
	current := name
	for _, pg := range p.all {
		if pg.name == name && pg.under != "" {
			current = pg.under
		}
	}
	for _, pg := range p.all {
		if pg.nav != "" {
			_, at, _ := strings.Cut(pg.pattern, " ")
			f.Nav = append(f.Nav, navLink{Name: pg.nav, URL: at, Current: pg.name == current})
		}
	}
	if p.cfg.Token != "" {
		if _, ok := p.SignedIn(r); ok {
			f.SignOut = signoutPath
		} else if r.URL.Path != signinPath {
			f.SignIn = signinPath + "?" + url.Values{toKey: {f.Refresh}}.Encode()
		}
	}
	return f
}

// addressOf is a path with a query.
func addressOf(path string, query url.Values) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// templates are those of each page, parsed when they are first needed: once for whole pages,
// once for streams, in which times are exact.
type templates struct {
	mu     sync.Mutex // guards parsed
	parsed map[templateKey]*template.Template
}

type templateKey struct {
	page string
	live bool
}

func newTemplates() *templates {
	return &templates{parsed: map[templateKey]*template.Template{}}
}

// of returns the templates of a page.
func (t *templates) of(page string, live bool) (*template.Template, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := templateKey{page, live}
	if set := t.parsed[key]; set != nil {
		return set, nil
	}
	set, err := parseTemplates(page, live)
	if err == nil {
		t.parsed[key] = set
	}
	return set, err
}

// parseTemplates parses the layout, the parts of all pages, the page, and its parts.
func parseTemplates(page string, live bool) (*template.Template, error) {
	names := []string{"templates/layout.html", "templates/" + page + ".html"}
	for _, pattern := range []string{"templates/part_*.html", "templates/" + page + "_*.html"} {
		parts, err := fs.Glob(files, pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, parts...)
	}
	set, err := template.New("").Funcs(funcs(live)).ParseFS(files, names...)
	if err != nil {
		return nil, fmt.Errorf("the page %s: %w", page, err)
	}
	return set, nil
}

// render renders a page: all of it, or of a live one the main part.
func (t *templates) render(page string, f *frame) ([]byte, error) {
	set, err := t.of(page, f.Live)
	if err != nil {
		return nil, err
	}
	part := "layout"
	if f.Live {
		part = "main"
	}
	var out bytes.Buffer
	if err := set.ExecuteTemplate(&out, part, f); err != nil {
		return nil, fmt.Errorf("the page %s: %w", page, err)
	}
	return out.Bytes(), nil
}

// pageNames are the pages that there are templates for, for tests.
func pageNames() []string {
	all, _ := fs.Glob(files, "templates/*.html")
	var names []string
	for _, name := range all {
		base := strings.TrimSuffix(path.Base(name), ".html")
		if base != "layout" && !strings.Contains(base, "_") {
			names = append(names, base)
		}
	}
	return names
}
