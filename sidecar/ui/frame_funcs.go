package ui

import (
	"fmt"
	"html/template"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/text"
)

// funcs are the functions of the templates. Live ones write exact times, which the script makes
// relative.
func funcs(live bool) template.FuncMap {
	return template.FuncMap{
		"ago":        func(t any) template.HTML { return timeHTML(timeOf(t), "ago", live) },
		"in":         func(t any) template.HTML { return timeHTML(timeOf(t), "in", live) },
		"dur":        text.Duration,
		"plural":     plural,
		"count":      func(n any) string { return text.Number(intOf(n)) },
		"status":     statusHTML,
		"bar":        func(used, limit any) template.HTML { return barHTML(intOf(used), intOf(limit)) },
		"action":     actionURL,
		"query":      setQuery,
		"queryAdd":   addQuery,
		"queryDrop":  dropQuery,
		"visible":    text.Visible,
		"pairs":      pairsOf,
		"arg":        func(f *frame, v any) with { return with{f, v} },
		"pathEscape": url.PathEscape,
	}
}

// with is a value for a part of a page, and the frame.
type with struct {
	Frame *frame
	Value any
}

// timeOf takes a time or a pointer to one.
func timeOf(v any) time.Time {
	switch t := v.(type) {
	case time.Time:
		return t
	case *time.Time:
		if t != nil {
			return *t
		}
	}
	return time.Time{}
}

// exactTime is how a time is written out.
const exactTime = "2006-01-02 15:04:05 UTC"

// timeHTML is a relative time, with the exact one as its title.
func timeHTML(t time.Time, way string, live bool) template.HTML {
	if t.IsZero() {
		return "–"
	}
	exact := t.UTC().Format(exactTime)
	text := exact
	if !live {
		text = relative(t, time.Now(), way == "in")
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s" data-time="%s">%s</time>`,
		t.UTC().Format(time.RFC3339), exact, way, template.HTMLEscapeString(text)))
}

// relative writes a relative time, as the script does.
func relative(t, now time.Time, future bool) string {
	d := now.Sub(t)
	switch {
	case future && d > 0:
		return coarse(d) + " ago"
	case future:
		return "in " + coarse(t.Sub(now))
	case d < time.Second:
		return "just now"
	}
	return coarse(d) + " ago"
}

// coarse writes a duration in its largest unit.
func coarse(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = d.Truncate(time.Second); {
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	case d < 2*day:
		return strconv.Itoa(int(d/time.Hour)) + " h"
	}
	return strconv.Itoa(int(d/day)) + " d"
}

// intOf takes any integer.
func intOf(v any) int64 {
	r := reflect.ValueOf(v)
	switch {
	case r.CanInt():
		return r.Int()
	case r.CanUint():
		return int64(min(r.Uint(), math.MaxInt64))
	}
	return 0
}

// plural is a count with its noun.
func plural(n any, one, many string) string {
	if i := intOf(n); i != 1 {
		return text.Number(i) + " " + many
	}
	return "1 " + one
}

// shapes are the shapes of statuses, which distinguish them without colours.
var shapes = map[string]string{
	"storing": "…", "queued": "◷", "waiting": "◷", "pending": "◷", "requested": "◷", "blocked": "◷",
	"not_started": "▷", "admitted": "▷",
	"running": "▶", "started": "▶", "active": "▶", "working": "▶", "leader": "★", "candidate": "☆",
	"succeeded": "✓", "ok": "✓", "failed": "✕", "lost": "✕", "canceled": "⊘", "skipped": "↷",
	"draining": "‖", "drained": "‖", "stopping": "⊘", "stopped": "⊘",
	"paused": "‖", "closed": "⊘", "deleted": "⊘", "reserve": "◆", "urgent": "▲", "unreadable": "!",
}

// statusHTML is a badge: a status in words, with a shape of its own.
func statusHTML(status any) template.HTML {
	s := fmt.Sprint(status)
	class, shape := "other", "•"
	if known, ok := shapes[s]; ok {
		class, shape = s, known
	}
	return template.HTML(fmt.Sprintf(`<span class="badge is-%s"><span aria-hidden="true">%s</span> %s</span>`,
		class, shape, template.HTMLEscapeString(strings.ReplaceAll(s, "_", " "))))
}

// level is how full something is: ok below 60 %, busy to 85 %, full above. Without a limit it
// is never full.
func level(used, limit int64) string {
	switch {
	case limit < 0:
		return "ok"
	case limit == 0 && used == 0:
		return "none"
	}
	switch part := float64(used) * 100; {
	case part < float64(limit)*60:
		return "ok"
	case part <= float64(limit)*85:
		return "busy"
	}
	return "full"
}

// barHTML is a bar of the used part of a limit, followed by the numbers. A limit below 0 is
// none.
func barHTML(used, limit int64) template.HTML {
	most := "unlimited"
	var width float64
	switch {
	case limit == 0 && used > 0:
		width = 100
	case limit > 0:
		width = min(max(0, float64(used)*100/float64(limit)), 100)
	}
	if limit >= 0 {
		most = text.Number(limit)
	}
	return template.HTML(fmt.Sprintf(`<span class="use is-%s"><svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false">`+
		`<rect class="bar-all" width="100" height="10"/><rect class="bar-used" width="%.4g" height="10"/></svg>`+
		`<span class="use-text">%s/%s</span></span>`, level(used, limit), width, text.Number(used), most))
}

// setQuery is the address of this page with values of its query set, and those that are set to
// nothing left out.
func setQuery(f *frame, pairs ...any) string {
	q := copyQuery(f)
	for i := 0; i+1 < len(pairs); i += 2 {
		key, value := fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1])
		q.Del(key)
		if value != "" {
			q.Set(key, value)
		}
	}
	return addressOf(f.path, q)
}

// addQuery is the address of this page with one more value of a key.
func addQuery(f *frame, key string, value any) string {
	q := copyQuery(f)
	if v := fmt.Sprint(value); !slices.Contains(q[key], v) {
		q.Add(key, v)
	}
	return addressOf(f.path, q)
}

// dropQuery is the address of this page without one of the values of a key.
func dropQuery(f *frame, key string, value any) string {
	q := copyQuery(f)
	v := fmt.Sprint(value)
	q[key] = slices.DeleteFunc(q[key], func(s string) bool { return s == v })
	if len(q[key]) == 0 {
		q.Del(key)
	}
	return addressOf(f.path, q)
}

func copyQuery(f *frame) url.Values {
	q := make(url.Values, len(f.query))
	for k, v := range f.query {
		q[k] = slices.Clone(v)
	}
	return q
}
