package browser

import (
	"errors"
	"fmt"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// site serves pages by their paths.
func site(t *testing.T, pages map[string]string, more ...func(*http.ServeMux)) string {
	t.Helper()
	mux := http.NewServeMux()
	for path, text := range pages {
		kind := "text/html; charset=utf-8"
		if strings.HasSuffix(path, ".js") {
			kind = "text/javascript"
		}
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			fmt.Fprint(w, text)
		})
	}
	mux.HandleFunc("GET /favicon.ico", func(http.ResponseWriter, *http.Request) {})
	for _, add := range more {
		add(mux)
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestABrowserIsFound(t *testing.T) {
	gone := errors.New("not found")
	has := func(those ...string) func(string) (string, error) {
		return func(name string) (string, error) {
			if slices.Contains(those, name) {
				return "/bin/" + name, nil
			}
			return "", gone
		}
	}
	for _, c := range []struct {
		setting string
		look    func(string) (string, error)
		want    string
		skips   bool
		says    string
	}{
		{setting: "", look: has("google-chrome", "chromium"), want: "/bin/chromium"},
		{setting: "", look: has("google-chrome"), want: "/bin/google-chrome"},
		{setting: "mine", look: has("mine", "chromium"), want: "/bin/mine"},
		{setting: "", look: has(), skips: true, says: "apt-get install chromium"},
		{setting: "mine", look: has("chromium"), says: "BERTH_BROWSER=mine"},
	} {
		got, err := find(c.setting, c.look)
		if got != c.want || (err == nil) != (c.want != "") || errors.Is(err, errMissing) != c.skips {
			t.Errorf("%q: %q, %v", c.setting, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: error %v", c.setting, err)
		}
	}
}

// verdict is a test that records how it ends.
type verdict struct {
	testing.TB
	end string
}

func (*verdict) Helper()        {}
func (v *verdict) Skip(...any)  { v.end = "skipped" }
func (v *verdict) Fatal(...any) { v.end = "failed" }

func TestWhatIsMissingIsAFailureInCI(t *testing.T) {
	missing := fmt.Errorf("it is %w", errMissing)
	for _, c := range []struct {
		ci   string
		err  error
		want string
	}{{"", nil, ""}, {"", missing, "skipped"}, {"false", missing, "skipped"}, {"true", missing, "failed"}, {"", errors.New("other"), "failed"}} {
		t.Setenv(RequiredVar, c.ci)
		v := &verdict{TB: t}
		if need(v, c.err); v.end != c.want {
			t.Errorf("CI=%s, %v: %q, want %q", c.ci, c.err, v.end, c.want)
		}
	}
}

func TestWhatGoesWrongInATabIsAComplaint(t *testing.T) {
	other := site(t, map[string]string{"/pixel": ""})
	guarded := func(mux *http.ServeMux) {
		mux.HandleFunc("GET /guarded", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", "default-src 'self'")
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, `<!doctype html><title>x</title><p style="color: red">x</p><script>alert(1)</script>`)
		})
		mux.HandleFunc("GET /broken", func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
	}
	base := site(t, map[string]string{
		"/quiet":     `<!doctype html><title>x</title><p>Nothing</p>`,
		"/console":   `<!doctype html><title>x</title><script>console.error("oh", 7, {a: 1}); console.log("ah")</script>`,
		"/exception": `<!doctype html><title>x</title><script>setTimeout(() => { throw new Error("thrown") }); Promise.reject(new Error("rejected"))</script>`,
		"/missing":   `<!doctype html><title>x</title><img src="/gone.png" alt="">`,
		"/failed":    `<!doctype html><title>x</title><script>fetch("/broken").catch(() => {})</script>`,
		"/elsewhere": `<!doctype html><title>x</title><script>fetch("` + other + `/pixel", {mode: "no-cors"})</script>`,
	}, guarded)
	b := Open(t)
	for _, c := range []struct {
		path string
		want []string
	}{
		{"/quiet", nil},
		{"/console", []string{"console.error: ", "console.log: "}},
		{"/exception", []string{"Error: thrown", "Error: rejected"}},
		{"/missing", []string{"/gone.png: status 404"}},
		{"/nowhere", []string{"/nowhere: status 404"}},
		{"/failed", []string{"/broken failed: net::ERR_EMPTY_RESPONSE"}},
		{"/elsewhere", []string{"another host was asked: " + other}},
		{"/guarded", []string{"policy: style-src-attr forbids inline", "policy: script-src-elem forbids inline"}},
	} {
		b.Go(base + c.path)
		if len(c.want) > 0 {
			b.Expect(c.want...)
		}
		left := b.Complaints()
		if c.path == "/guarded" { // the browser tells in words of its own too
			left = slices.DeleteFunc(left, func(s string) bool { return strings.Contains(s, "ecurity") })
		}
		if len(left) > 0 {
			t.Errorf("%s: %q", c.path, left)
		}
	}
}

func TestExpectedComplaintsHaveToCome(t *testing.T) {
	all := []string{"one: a", "two: b", "one: c"}
	rest, err := expected(all, []string{"one"})
	if err != nil || !slices.Equal(rest, []string{"two: b"}) {
		t.Errorf("%q, %v", rest, err)
	}
	if _, err := expected(all, []string{"two", "three"}); err == nil || !strings.Contains(err.Error(), `["three"]`) {
		t.Errorf("a complaint that did not come: %v", err)
	}
}

func TestAPageIsReadAndUsed(t *testing.T) {
	base := site(t, map[string]string{
		"/": `<!doctype html><html lang="en"><title>x</title><meta name="viewport" content="width=device-width">
<style>:root { color-scheme: light dark } p { color: rgb(1, 2, 3) } @media (prefers-color-scheme: dark) { p { color: rgb(4, 5, 6) } }
@media (max-width: 500px) { .wide { display: none } } a:focus { outline: 2px solid red } #plain { outline: none }</style>
<h1>Title <span hidden>hidden</span></h1><p class="wide" data-x="7">Para</p>
<a href="/next" id="next">Next</a> <a href="#x" id="plain">Plain</a> <label>Name <input id="field" name="n" value="old"></label>
<select id="s" name="s" aria-label="Which"><option>a</option><option>b</option></select> <button id="late" disabled>Late</button> <output></output>
<script src="/x.js"></script>`,
		"/x.js": `const out = document.querySelector("output");
document.querySelector("#field").addEventListener("input", e => out.textContent = "typed " + e.target.value);
document.querySelector("#s").addEventListener("change", e => out.textContent = "chose " + e.target.value);
document.querySelector("#late").addEventListener("click", e => out.textContent = "clicked " + e.isTrusted);
addEventListener("keydown", e => { if (e.key === "Escape") { document.querySelector("#late").disabled = false; setTimeout(() => document.querySelector("p").remove(), 10) } });`,
		"/next": `<!doctype html><html lang="en"><title>y</title><h1>Second</h1>`,
	})
	b := Open(t)
	b.Go(base)
	if b.Status() != 200 || b.URL() != base+"/" {
		t.Errorf("%d %s", b.Status(), b.URL())
	}
	attr, has := b.Attr("p", "data-x")
	_, hasNot := b.Attr("p", "data-y")
	got := []any{b.Text("h1"), b.Texts("option"), attr, has, hasNot, b.Attrs("a", "href"), b.Count("a"), b.Shown("p"), b.Computed("p", "color")}
	want := []any{"Title", []string{"a", "b"}, "7", true, false, []string{"/next", "#x"}, 2, true, "rgb(1, 2, 3)"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	b.Dark(true)
	if c := b.Computed("p", "color"); c != "rgb(4, 5, 6)" {
		t.Errorf("in the dark it is %s", c)
	}
	b.Viewport(390, 800)
	if b.Shown("p") || Eval[int](b, "innerWidth") != 390 {
		t.Error("it is no phone")
	}
	b.Viewport(1000, 800)
	b.Type("#field", "new")
	b.WaitText("output", "typed new")
	b.Choose("#s", "b")
	b.WaitText("output", "chose b")
	b.Key("Escape")
	b.Click("#late")
	b.WaitText("output", "clicked true")
	b.WaitGone("p")
	b.WaitCount("a", 2)
	b.WaitShown("h1")
	var tour []string
	for _, f := range b.Tour() {
		tour = append(tour, fmt.Sprintf("%s %s %q %v", f.Tag, f.ID, f.Name, f.Marked))
	}
	if d := cmp.Diff([]string{
		`a next "Next" true`, `a plain "Plain" false`, `input field "Name" true`, `select s "Which" true`, `button late "Late" true`,
	}, tour); d != "" {
		t.Error(d)
	}
	path := filepath.Join(t.TempDir(), "deep", "shot.png")
	b.Screenshot(path)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if shot, err := png.DecodeConfig(f); err != nil || shot.Width != 1000 || shot.Height != 800 {
		t.Errorf("%v, %v", shot, err)
	}
	b.Follow("#next")
	if b.Text("h1") != "Second" {
		t.Error("it did not follow")
	}
}

func TestAWaitGoesOnOverNavigations(t *testing.T) {
	base := site(t, map[string]string{
		"/":     `<!doctype html><title>x</title><h1>First</h1><script>setTimeout(() => location.href = "/next", 50)</script>`,
		"/next": `<!doctype html><title>y</title><h1>Second</h1>`,
	})
	b := Open(t)
	b.Go(base)
	b.WaitText("h1", "Second")
}

func TestAPageWithoutScripts(t *testing.T) {
	base := site(t, map[string]string{
		"/":     `<!doctype html><title>x</title><h1>First</h1><a href="/next">Next</a><noscript><p>None</p></noscript><script>document.querySelector("h1").textContent = "Changed"</script>`,
		"/next": `<!doctype html><title>y</title><h1>Second</h1>`,
	})
	b := Open(t)
	b.NoScript(true)
	b.Go(base)
	if b.Text("h1") != "First" || b.Text("p") != "None" {
		t.Errorf("a script ran: %s", b.Text("body"))
	}
	b.Click("a")
	b.WaitText("h1", "Second")
	b.NoScript(false)
	b.Go(base)
	b.WaitText("h1", "Changed")
}

func TestTheNetworkGoesAndComesBack(t *testing.T) {
	base := site(t, map[string]string{
		"/": `<!doctype html><title>x</title><link rel="icon" href="data:,"><h1>?</h1><p>?</p><script>
const p = document.querySelector("p"), h = document.querySelector("h1");
addEventListener("offline", () => p.textContent = "offline"); addEventListener("online", () => p.textContent = "online");
setInterval(() => fetch("/here").then(() => h.textContent = "here", () => h.textContent = "gone"), 20)</script>`,
		"/here": "",
	})
	b := Open(t)
	b.Go(base)
	b.WaitText("h1", "here")
	b.Offline(true)
	b.WaitText("h1", "gone")
	b.WaitText("p", "offline")
	b.Offline(false)
	b.WaitText("h1", "here")
	b.WaitText("p", "online")
	b.Expect("/here failed: net::ERR_INTERNET_DISCONNECTED")
}

func TestAWireIsCutAndMended(t *testing.T) {
	base := site(t, map[string]string{
		"/": `<!doctype html><title>x</title><link rel="icon" href="data:,"><h1>?</h1><script>
const h = document.querySelector("h1");
const open = () => { const s = new EventSource("/stream");
  s.onmessage = e => h.textContent = e.data; s.onerror = () => { h.textContent = "gone"; s.close(); setTimeout(open, 20) } };
open()</script>`,
	}, func(mux *http.ServeMux) {
		mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: here\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
	})
	w := NewWire(t, base)
	b := Open(t)
	b.Go(w.URL)
	b.WaitText("h1", "here")
	w.Cut()
	b.WaitText("h1", "gone")
	w.Mend()
	b.WaitText("h1", "here")
	b.Expect("/stream failed: net::ERR_")
}
