package ui_test

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/browser"
	"github.com/berthhq/berth/internal/testcert"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// reachable are the elements of a page that a keyboard has to reach, in their order.
const reachable = `[...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
  .filter(e => e.checkVisibility({checkVisibilityCSS: true}) && !e.disabled).length`

// countUpdates counts the elements that a page's updates add or remove from now on. Texts that show
// a time do not count.
const countUpdates = `(() => {
  window.updates = 0;
  new MutationObserver(all => updates += all.filter(m => [...m.addedNodes, ...m.removedNodes].some(n => n.nodeType === Node.ELEMENT_NODE)).length)
    .observe(document.body, {childList: true, subtree: true});
  return true })()`

// tour walks a page by keyboard, and returns what has had the focus and how many elements have
// to have had it. A walk during which the page was updated says nothing: it is done again.
func (s *scene) tour(path string) (all []browser.Focused, want string) {
	s.t.Helper()
	for {
		s.to(path)
		s.Eval(countUpdates)
		all, want = s.Tour(), fmt.Sprint(s.Eval(reachable))
		if fmt.Sprint(s.Eval(`window.updates`)) == "0" {
			return all, want
		}
		if err := s.t.Context().Err(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// With a keyboard alone one reaches all there is, in its order, and sees where one is.
func TestEveryPageIsWalkedByKeyboard(t *testing.T) {
	inFull(t)
	t.Parallel()
	s := newScene(t)
	for _, path := range paths {
		tour, want := s.tour(path)
		if fmt.Sprint(len(tour)) != want {
			t.Errorf("%s: the keyboard reaches %d of %s, the last %+v", path, len(tour), want, tour[len(tour)-1])
		}
		if first := tour[0]; first.Href != "#main" {
			t.Errorf("%s: first is %v", path, first)
		}
		for i, f := range tour {
			if !f.Marked || f.Name == "" {
				t.Errorf("%s: where the focus is can't be seen or read out: %+v", path, f)
			}
			if i > 0 && f.At < tour[i-1].At {
				t.Errorf("%s: %q comes after %q, and stands before it", path, f.Name, tour[i-1].Name)
			}
		}
	}
	s.Key("Tab")
	if f := s.Focus(); f.Href != "#main" {
		t.Errorf("behind the last comes %+v", f)
	}
	s.Key("Enter")
	s.WaitFor("the main part has the focus", `document.activeElement.id === "main"`)
}

// press goes on by Tab to what has a name, and presses a key there.
func (h *browserSite) press(name, key string) {
	h.t.Helper()
	var seen []string
	for range 200 {
		h.Key("Tab")
		f := h.Focus()
		if f.Name == name {
			h.Key(key)
			return
		}
		seen = append(seen, f.Name)
	}
	h.t.Fatalf("the keyboard does not come to %q; it was at %q", name, seen)
}

func TestARunIsCanceledByKeyboard(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.submit(api.RunRequest{ID: "r1", Name: "Nightly"})
	h.to("/pools")
	h.Loads(func() { h.press("Queue", "Enter") })
	h.Loads(func() { h.press("r1", "Enter") })
	h.Loads(func() { h.press("Cancel this run…", "Enter") })
	h.press("Reason", "ArrowRight")
	h.Loads(func() { h.press("Cancel the run", " ") })
	h.WaitText("#run-status", "canceled")
	if r, err := h.store.Get(t.Context(), "r1"); err != nil || r.Status != run.Canceled {
		t.Errorf("the run is %v, %v", r.Status, err)
	}
}

func TestAPoolIsExpandedByKeyboard(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 2)
	h.claim(api.ClaimRequest{ID: "c1", Pools: api.Slots{"db": 1}})
	h.to("/pools")
	for h.Focus().ID != "open-db" {
		h.Key("Tab")
	}
	h.Key("Enter")
	h.WaitShown("#holds-db-c1")
	if f := h.Focus(); f.ID != "open-db" {
		t.Errorf("the focus has gone to %+v", f)
	}
	if v, _ := h.Attr("#open-db", "aria-expanded"); v != "true" {
		t.Errorf("it says that it is expanded: %q", v)
	}
	h.Key("Tab")
	h.Key("Shift+Tab")
	h.Key("Enter")
	h.WaitGone("#holds-db-c1")
}

// Without scripts everything works; what changes is seen when it is asked for again.
func TestEverythingWorksWithoutScripts(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.NoScript(true)
	h.pool("db", 4)
	h.submit(api.RunRequest{ID: "r1", Name: "Nightly", Steps: api.RunSteps{{Name: "load", Command: []string{"true"}, Items: items(3)}}})
	h.submit(api.RunRequest{ID: "r2", Name: "Other"})
	h.claim(api.ClaimRequest{ID: "c1", Pools: api.Slots{"db": 2}})
	h.to("/pools")
	h.wantText("#pool-db", "2/4")
	if times := h.Texts("#pool-db time, #as-of"); len(times) == 0 || times[0] == "" {
		t.Errorf("times are %q", times)
	}
	h.Follow("#open-db")
	h.wantText("#holds-db-c1", "c1", "one")
	h.claim(api.ClaimRequest{ID: "c2", Pools: api.Slots{"db": 1}})
	h.Follow("footer a")
	h.wantText("#pool-db", "3/4", "c2")
	h.Follow(`#holds-db-c1 a[href*="/actions/revoke"]`)
	h.Follow("#do")
	h.wantText("#message", "c1")
	h.to("/queue")
	h.Type("#filter-q", "nightly")
	h.Follow("form.filter button")
	if ids := h.Texts("#waiting tbody th"); !slices.Equal(ids, []string{"r1"}) {
		t.Errorf("named like that are %q", ids)
	}
	h.Follow("#run-r1 th a")
	h.Follow("#step-load th a")
	h.wantText("#instance-2", "requested")
	for _, tab := range []string{"timeline", "concurrency", "logs", "events", "steps"} {
		h.Follow("#tab-" + tab)
		if h.Count("#of-"+tab) != 1 {
			t.Errorf("the tab %s does not show it", tab)
		}
	}
	h.Follow("#cancel-run")
	h.Type("#reason", "not needed")
	h.Follow("#do")
	h.wantText("#run-status", "canceled")
	h.wantText("#run-error", "not needed")
	for _, path := range []string{"/runs", "/hosts", "/actions"} {
		h.to(path)
		h.WantNoFindings()
	}
}

// One signs in, on loopback or over TLS.
func TestOneSignsInBeforeAnythingIsSeen(t *testing.T) {
	inFull(t)
	t.Parallel()
	t.Run("on loopback", func(t *testing.T) {
		signsIn(t, newBrowserSite(t, withToken))
	})
	t.Run("over TLS", func(t *testing.T) {
		pair := testcert.New(t).Server(t)
		cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		h := newBrowserSite(t, withToken, func(c *sidecar.Config) {
			c.TLS = func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} }
		})
		h.base = strings.Replace(h.base, "http:", "https:", 1)
		h.AnyCertificate()
		signsIn(t, h)
	})
}

func signsIn(t *testing.T, h *browserSite) {
	t.Helper()
	h.pool("db", 4)
	h.Go(h.base + "/pools?open=db")
	if !strings.Contains(h.URL(), "/signin") || h.Count("#pool-db") > 0 {
		t.Fatalf("without a token one comes to %s: %s", h.URL(), h.Text("body"))
	}
	for _, dark := range []bool{true, false} {
		h.Dark(dark)
		h.WantNoFindings()
	}
	h.Type("#token", "a guess")
	h.Follow("main button")
	h.wantText("#signin-problem", "not one that this server knows")
	h.WantNoFindings()
	h.Type("#token", token)
	h.Follow("main button")
	if want := h.base + "/pools?open=db"; h.URL() != want {
		t.Errorf("one comes to %s, and not to %s", h.URL(), want)
	}
	h.wantText("header", "Signed in as token:ann<b>")
	if got := h.Eval("document.cookie"); got != "" {
		t.Errorf("scripts can read the cookie: %v", got)
	}
	same := h.stays()
	h.claim(api.ClaimRequest{ID: "c1", Pools: api.Slots{"db": 2}})
	h.WaitText("#pool-db .use-text", "2/4") // live, too
	same()
	h.Follow(`#pool-db a[href*="/actions/pause"]`)
	h.wantText("main", "recorded with the name token:ann<b>")
	h.Follow("#do")
	h.WaitText("#pool-db", "paused")
	h.wantActions("token:ann<b> | pause pool | db | done")
	h.Follow("header form button")
	h.Go(h.base + "/pools")
	if !strings.Contains(h.URL(), "/signin") {
		t.Errorf("signed out, one comes to %s", h.URL())
	}
	for _, c := range h.Complaints() { // the wrong token is shown with a status of its own
		if !strings.Contains(c, "/signin: status 401") && !strings.Contains(c, "DocumentCookie") {
			t.Errorf("in the browser: %s", c)
		}
	}
}

// A page of another site gets nothing, whether it reads, frames or sends.
func TestPagesOfOtherSitesGetNothing(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("secret", 4)
	other := newBrowserSite(t) // any other site; one with no policy of its own would do as well
	port := h.base[strings.LastIndex(h.base, ":"):]
	h.Go("http://evil.test" + port + "/pools") // a name that leads here, and is not ours
	if h.Status() != 403 || strings.Contains(h.Text("body"), "secret") {
		t.Errorf("by another name: %d %s", h.Status(), h.Text("body"))
	}
	h.WantNoFindings()
	h.Expect("evil.test"+port+"/pools: status 403", "Cross-Origin-Opener-Policy", "favicon.ico: status 403")
	h.Allow(h.base)
	h.Go(other.base + "/signin")
	h.Eval(`(() => {
  const f = document.createElement("form");
  f.action = "` + h.base + `/actions/pause?pool=secret"; f.method = "get"; f.id = "evil";
  const b = document.createElement("button"); b.textContent = "Go"; f.append(b);
  const a = document.createElement("a"); a.href = "` + h.base + `/pools"; a.id = "link"; a.textContent = "Link";
  document.querySelector("main").prepend(a, f) })()`)
	h.Follow("#link")
	if h.Status() != 403 || h.Count("#pool-secret") != 0 {
		t.Errorf("by a link of another site: %d %s", h.Status(), h.Text("body"))
	}
	h.WantNoFindings()
	h.Follow("main a") // one's own click on our page goes on
	h.WaitShown("#pool-secret")
	h.Expect("/pools: status 403")
}

// What a visitor sees depends on their roles. All of it can be read and walked by everyone.
func TestPagesAreThoseOfTheirVisitor(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t, withVisitors)
	h.pool("db", 9)
	h.pool("etl-a", 9)
	h.claims("ann", api.ClaimRequest{ID: "anns", Pools: api.Slots{"db": 1}})
	h.claims("bob", api.ClaimRequest{ID: "bobs", Pools: api.Slots{"etl-a": 1}})
	enter := func(name string) {
		h.Go(h.base + "/signin?to=/pools%3Fopen%3Ddb%26open%3Detl-a")
		h.Type("#token", name+"-secret")
		h.Follow("main button")
		h.wantText("header", "Signed in as token:"+name)
		h.WaitShown("#holds-etl-a-bobs")
	}
	for name, actions := range map[string]int{"viewer": 0, "ann": 1, "etl": 4, "operator": 8} {
		enter(name)
		if got := h.Count(`main a[href^="/actions/"]`); got != actions {
			t.Errorf("%s finds %d actions, want %d", name, got, actions)
		}
		for _, dark := range []bool{true, false} {
			h.Dark(dark)
			h.WantNoFindings()
		}
		h.Follow("header form button")
	}
	enter("etl")
	h.Go(h.base + "/actions/delete?pool=db")
	h.wantText("main", "You may not do this", "the role operate:db, which token:etl does not have", `"token:etl operate:db"`)
	if h.Status() != 403 || h.Count("nav a") < 5 {
		t.Errorf("%d: %s", h.Status(), h.Text("body"))
	}
	h.WantNoFindings()
	h.Follow("header form button")
	for range 12 {
		h.post("/signin", url.Values{"token": {"wrong"}})
	}
	h.Type("#token", "a guess")
	h.Follow("main button")
	h.wantText("#signin-problem", "Too many wrong tokens", "in a minute")
	h.WantNoFindings()
	h.Expect("/actions/delete?pool=db: status 403", "/signin: status 429")
}

// A page that is open when its token is revoked leads to the sign-in by itself.
func TestAPageWhoseTokenIsRevokedAsksToSignIn(t *testing.T) {
	inFull(t)
	t.Parallel()
	var revoked atomic.Bool
	h := newBrowserSite(t, withToken, func(c *sidecar.Config) {
		tokens := c.Tokens
		c.Tokens = func() access.Tokens {
			if revoked.Load() {
				return access.Tokens{}
			}
			return tokens()
		}
	})
	h.Go(h.base + "/signin?to=/queue")
	h.Type("#token", token)
	h.Follow("main button")
	h.wantText("header", "Signed in as")
	h.Loads(func() { revoked.Store(true) })
	h.WaitFor("one is asked to sign in", `location.pathname === "/signin" && new URLSearchParams(location.search).get("to") === "/queue"`)
	h.wantText("header", "You are anonymous")
	h.Expect("/queue: status 401")
}

func TestAnOpenServerSaysThatEveryoneMayAct(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.to("/pools")
	h.wantText("header", "You are anonymous: this server is open, and everyone may act")
	h.WantNoFindings()
}
