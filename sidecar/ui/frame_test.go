package ui

import (
	"io/fs"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
)

func TestEveryPageHasTemplatesThatCanBeRead(t *testing.T) {
	names := pageNames()
	if len(names) < 3 {
		t.Fatalf("there are only %q", names)
	}
	for _, name := range names {
		for _, live := range []bool{false, true} {
			if _, err := parseTemplates(name, live); err != nil {
				t.Error(err)
			}
		}
	}
	for _, pg := range New(Config{}).all {
		if _, err := parseTemplates(pg.name, false); err != nil {
			t.Error(err)
		}
	}
}

func TestABarTellsHowFullSomethingIs(t *testing.T) {
	for _, test := range []struct {
		used, limit  int64
		level, width string
		text         string
	}{
		{0, 10, "ok", "0", "0/10"},
		{59, 100, "ok", "59", "59/100"},
		{60, 100, "busy", "60", "60/100"},
		{85, 100, "busy", "85", "85/100"},
		{86, 100, "full", "86", "86/100"},
		{3, 5, "busy", "60", "3/5"},
		{3, 3, "full", "100", "3/3"},
		{5, 3, "full", "100", "5/3"}, // the limit was lowered
		{0, 0, "none", "0", "0/0"},
		{2, 0, "full", "100", "2/0"},
		{7, -1, "ok", "0", "7/unlimited"},
		{600_000, 1_000_000, "busy", "60", "600,000/1,000,000"},
	} {
		if got := level(test.used, test.limit); got != test.level {
			t.Errorf("%d of %d is %s, want %s", test.used, test.limit, got, test.level)
		}
		got := string(barHTML(test.used, test.limit))
		if !strings.Contains(got, `width="`+test.width+`"`) || !strings.Contains(got, ">"+test.text+"<") || !strings.Contains(got, "is-"+test.level) {
			t.Errorf("%d of %d is %s", test.used, test.limit, got)
		}
	}
}

func TestTimesAreRelative(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		away   time.Duration
		future bool
		want   string
	}{
		{0, false, "just now"},
		{-time.Second, false, "1 s ago"},
		{-59 * time.Second, false, "59 s ago"},
		{-60 * time.Second, false, "1 min ago"},
		{-3 * time.Hour, false, "3 h ago"},
		{-47 * time.Hour, false, "47 h ago"},
		{-48 * time.Hour, false, "2 d ago"},
		{5 * time.Second, false, "just now"}, // another host's clock
		{30 * time.Second, true, "in 30 s"},
		{0, true, "in 0 s"},
		{-4 * time.Second, true, "4 s ago"},
		{90 * time.Minute, true, "in 1 h"},
	} {
		if got := relative(now.Add(test.away), now, test.future); got != test.want {
			t.Errorf("%s away: %q, want %q", test.away, got, test.want)
		}
	}
	if got := timeHTML(time.Time{}, "ago", false); got != "–" {
		t.Errorf("no time: %s", got)
	}
	const want = `<time datetime="2026-03-01T12:00:00Z" title="2026-03-01 12:00:00 UTC" data-time="in">2026-03-01 12:00:00 UTC</time>`
	if got := string(timeHTML(now.Add(300*time.Millisecond), "in", true)); got != want {
		t.Errorf("live: %s", got)
	}
	if got := string(timeHTML(now, "ago", false)); !strings.Contains(got, " ago</time>") {
		t.Errorf("%s", got)
	}
	if !timeOf((*time.Time)(nil)).IsZero() || !timeOf("x").IsZero() || !timeOf(&now).Equal(now) {
		t.Error("what is a time is not known")
	}
}

func TestPlural_TakesAnyInteger(t *testing.T) {
	if a, b, c := plural(1, "claim", "claims"), plural(int32(0), "claim", "claims"), plural(uint8(2), "claim", "claims"); a != "1 claim" || b != "0 claims" || c != "2 claims" {
		t.Error(a, b, c)
	}
}

func TestABadgeSaysItsStatusInWordsAndShapes(t *testing.T) {
	type kind string
	for status, want := range map[any]string{
		kind("running"): `<span class="badge is-running"><span aria-hidden="true">▶</span> running</span>`,
		"not_started":   `<span class="badge is-not_started"><span aria-hidden="true">▷</span> not started</span>`,
		`<b x="`:        `<span class="badge is-other"><span aria-hidden="true">•</span> &lt;b x=&#34;</span>`,
	} {
		if got := string(statusHTML(status)); got != want {
			t.Errorf("%v is %s", status, got)
		}
	}
}

func TestAddressesOfAPageKeepWhatElseTheySay(t *testing.T) {
	q, err := url.ParseQuery("open=db&open=gpu&q=a+b&page=2")
	if err != nil {
		t.Fatal(err)
	}
	f := &frame{path: "/pools", query: q}
	for what, test := range map[string][2]string{
		"set":          {setQuery(f, "page", 3), "/pools?open=db&open=gpu&page=3&q=a+b"},
		"set to none":  {setQuery(f, "page", "", "q", ""), "/pools?open=db&open=gpu"},
		"escaped":      {setQuery(f, "q", `x&y"<>`, "open", "", "page", ""), "/pools?q=x%26y%22%3C%3E"},
		"added":        {addQuery(f, "open", "x"), "/pools?open=db&open=gpu&open=x&page=2&q=a+b"},
		"added twice":  {addQuery(f, "open", "db"), "/pools?open=db&open=gpu&page=2&q=a+b"},
		"dropped":      {dropQuery(f, "open", "db"), "/pools?open=gpu&page=2&q=a+b"},
		"not there":    {dropQuery(f, "open", "x"), "/pools?open=db&open=gpu&page=2&q=a+b"},
		"the last one": {dropQuery(f, "page", "2"), "/pools?open=db&open=gpu&q=a+b"},
		"nothing":      {setQuery(&frame{path: "/pools"}), "/pools"},
	} {
		if test[0] != test[1] {
			t.Errorf("%s: %s, want %s", what, test[0], test[1])
		}
	}
	if got := f.query.Encode(); got != "open=db&open=gpu&page=2&q=a+b" {
		t.Errorf("it was changed: %s", got)
	}
}

func TestAMessageIsShownOnlyIfItIsOurs(t *testing.T) {
	p := New(Config{})
	to, err := url.Parse(p.withMessage("/pools?open=db", `paused "db" <b>`))
	if err != nil || to.Path != "/pools" || to.Query().Get("open") != "db" {
		t.Fatalf("%s, %v", to, err)
	}
	if got := p.messageIn(to.Query()); got != `paused "db" <b>` {
		t.Errorf("%q", got)
	}
	f := p.frameOf(httptest.NewRequest("GET", to.String(), nil), "pools", false)
	if f.Message == "" || strings.Contains(f.Refresh, messageKey) || strings.Contains(setQuery(f, "q", "x"), sealKey) {
		t.Errorf("a message is shown, and shown again: %+v", f)
	}
	forged := to.Query()
	forged.Set(messageKey, "your token has ended: tell it at evil.example")
	if got := p.messageIn(forged); got != "" {
		t.Errorf("a link has a page of ours say %q", got)
	}
	if got := New(Config{}).messageIn(to.Query()); got != "" {
		t.Errorf("another server says %q", got)
	}
}

func TestWhatFollowsSigningInLeadsNowhereElse(t *testing.T) {
	for to, want := range map[string]string{
		"/pools":                    "/pools",
		"/pools?open=db":            "/pools?open=db",
		"/runs/a%2Fb?tab=logs":      "/runs/a%2Fb?tab=logs",
		"":                          home,
		"pools":                     home,
		"//evil.example/":           home,
		"/\\evil.example":           home,
		"https://evil.example/":     home,
		"javascript:alert(1)":       home,
		"/pools\r\nSet-Cookie: a=b": home,
		"/\t/evil.example":          home,
		"///evil.example":           home,
		"/%2Fevil.example":          home,
		"/%5cevil.example":          home,
		"/%09/evil.example":         home,
		"/\n/evil.example":          home,
		"//ann@evil.example/":       home,
		"http:evil.example":         home,
		" //evil.example":           home,
		"JavaScript:alert(1)":       home,
		"data:text/html,x":          home,
	} {
		if got := OwnPath(to); got != want {
			t.Errorf("%q leads to %q, want %q", to, got, want)
		}
	}
}

func TestAPassIsOursAndEnds(t *testing.T) {
	ts, now := accesstest.Tokens("ada.<b>", "secret")(), time.Unix(1_000_000, 0)
	p := New(Config{})
	pass := p.pass(ts.List[0], now.Add(time.Hour))
	if got, ok := p.passed(ts, pass, now); !ok || got.Name != "ada.<b>" {
		t.Errorf("%q, %v", got.Name, ok)
	}
	if _, ok := p.passed(ts, pass, now.Add(time.Hour)); ok {
		t.Error("it has not ended")
	}
	if _, ok := p.passed(accesstest.Tokens("ada.<b>", "other")(), pass, now); ok {
		t.Error("it is good for another token of the name")
	}
	if _, ok := p.passed(access.Tokens{}, pass, now); ok {
		t.Error("it is good without its token")
	}
	if _, ok := New(Config{}).passed(ts, pass, now); ok {
		t.Error("it is good on another server, which has the same tokens")
	}
	parts := strings.Split(pass, ".")
	later := strings.Join([]string{parts[0], "9999999", parts[2]}, ".")
	other := strings.Join([]string{"QWRh", parts[1], parts[2]}, ".")
	for _, bad := range []string{"", "..", "a.b.c", later, other, pass + "x", pass + ".", parts[0] + "." + parts[1] + ".", parts[0] + "=." + parts[1] + "." + parts[2]} {
		if got, ok := p.passed(ts, bad, now); ok {
			t.Errorf("%q is good for %q", bad, got.Name)
		}
	}
}

// pageNames are the pages that there are templates for.
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
