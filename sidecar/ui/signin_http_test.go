package ui_test

import (
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/sidecar"
)

const token = "correct horse"

// withToken has a site ask for a token, whose name has to be escaped.
func withToken(c *sidecar.Config) {
	c.Policy.Open = false
	c.Tokens = accesstest.Tokens("ann<b>", token, "view", "operate")
}

// cookieOf is the cookie that an answer sets.
func cookieOf(t testing.TB, got answer) *http.Cookie {
	t.Helper()
	all := (&http.Response{Header: got.header}).Cookies()
	if len(all) != 1 {
		t.Fatalf("%d cookies are set by %d %s", len(all), got.status, got.body)
	}
	return all[0]
}

// signIn signs in, as a browser.
func (s *site) signIn() {
	s.t.Helper()
	got := s.post("/signin", url.Values{"token": {token}})
	if got.status != http.StatusSeeOther {
		s.t.Fatalf("%d %s", got.status, got.body)
	}
	s.cookie = cookieOf(s.t, got)
}

func TestWhoHasNotSignedInSeesNothing(t *testing.T) {
	s := newSite(t, withToken)
	s.pool("secret-pool", 1)
	got := s.get("/pools?open=secret-pool")
	if got.status != http.StatusSeeOther || got.header.Get("Location") != "/signin?to=%2Fpools%3Fopen%3Dsecret-pool" {
		t.Errorf("%d to %s", got.status, got.header.Get("Location"))
	}
	for what, got := range map[string]answer{
		"a program": s.get("/pools", header("Accept", "*/*")),
		"a stream":  s.get("/pools", header("Accept", "text/event-stream")),
		"the API":   s.get("/v1/pools"),
	} {
		if got.status != http.StatusUnauthorized || strings.Contains(got.body, "secret-pool") {
			t.Errorf("%s gets %d %s", what, got.status, got.body)
		}
	}
	d := s.page("/signin?to=%2Fpools%3Fopen%3Dsecret-pool")
	form := d.tags("form")
	if len(form) != 1 || attr(form[0], "method") != "post" || attr(form[0], "action") != "/signin" {
		t.Fatalf("forms: %d", len(form))
	}
	inputs := map[string]*html.Node{}
	for _, n := range d.tags("input") {
		inputs[attr(n, "name")] = n
		if attr(n, "type") != "hidden" && !labeled(d, n) {
			t.Errorf("%s has no label", attr(n, "name"))
		}
	}
	if attr(inputs["to"], "value") != "/pools?open=secret-pool" || attr(inputs["token"], "type") != "password" {
		t.Errorf("inputs: %v", inputs)
	}
	if got := text(d.root); strings.Contains(got, "Signed in") || strings.Contains(got, "Sign out") {
		t.Errorf("%s", got)
	}
}

// An unknown address is a page with the navigation.
func TestAnUnknownAddressIsNotFound(t *testing.T) {
	for _, with := range []string{"no token", "a token"} {
		s := newSite(t, func(c *sidecar.Config) {
			if with == "a token" {
				withToken(c)
			}
		})
		if with == "a token" {
			s.signIn()
		}
		for _, path := range []string{"/nothing", "/runs/", "/runs/r/steps", "/pools/db", "/index.html", "/actions/a/b"} {
			got := s.get(path)
			d := parse(t, got.body)
			checkPage(t, path, got)
			links := d.all(func(n *html.Node) bool { return n.Data == "a" && attr(n, "href") == "/queue" })
			if got.status != http.StatusNotFound || len(links) != 1 || strings.Contains(got.body, "Sign in") {
				t.Errorf("with %s: %s: %d, %d links to the queue: %s", with, path, got.status, len(links), text(d.root))
			}
		}
		got := s.send("DELETE", "/pools", nil, header("Sec-Fetch-Site", "same-origin"))
		if d := parse(t, got.body); got.status != http.StatusMethodNotAllowed || len(d.tags("nav")) != 1 {
			t.Errorf("with %s: a method that no page has: %d %s", with, got.status, text(d.root))
		}
		if got := s.get("/v1/nothing"); got.status != http.StatusNotFound || got.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("with %s: the API: %d %s", with, got.status, got.body)
		}
	}
}

func labeled(d *document, n *html.Node) bool {
	return len(d.all(func(l *html.Node) bool { return l.Data == "label" && attr(l, "for") == attr(n, "id") })) == 1
}

func TestOneSignsInWithTheToken(t *testing.T) {
	s := newSite(t, withToken)
	s.pool("db", 1)
	got := s.post("/signin", url.Values{"token": {token}, "to": {"/pools?open=db"}})
	if got.status != http.StatusSeeOther || got.header.Get("Location") != "/pools?open=db" {
		t.Fatalf("%d to %q: %s", got.status, got.header.Get("Location"), got.body)
	}
	checkHeaders(t, "/signin", got)
	c := cookieOf(t, got)
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.MaxAge != 12*60*60 || c.Domain != "" || c.Secure {
		t.Errorf("the cookie is %+v", c)
	}
	if strings.Contains(c.Value, token) {
		t.Error("the cookie tells the token")
	}
	s.cookie = c
	d := s.page("/pools")
	if got := text(d.root); !strings.Contains(got, "Signed in as token:ann<b> Sign out") || !strings.Contains(got, "Pause…") {
		t.Errorf("%s", got)
	}
	// A cookie opens pages and nothing else: what a browser sends by itself is no token.
	for _, path := range []string{"/v1/pools", "/metrics"} {
		if got := s.get(path, header("Accept", "*/*")); got.status != http.StatusUnauthorized {
			t.Errorf("a cookie opens %s: %d", path, got.status)
		}
	}
	if got := s.get("/signin?to=//evil.example"); !strings.Contains(got.body, `value="/pools"`) || strings.Contains(got.body, `"//evil`) {
		t.Errorf("signing in leads elsewhere: %s", got.body)
	}

	got = s.post("/signout", url.Values{})
	if out := cookieOf(t, got); got.status != http.StatusSeeOther || got.header.Get("Location") != "/signin" || out.MaxAge >= 0 || out.Value != "" {
		t.Errorf("signing out: %d, %+v", got.status, out)
	}
	if log := s.log.String(); strings.Contains(log, "horse") {
		t.Error("the log tells the token")
	}
}

func TestAWrongTokenSignsNobodyIn(t *testing.T) {
	s := newSite(t, withToken)
	for what, test := range map[string]struct {
		form   url.Values
		change func(*http.Request)
		status int
		says   string
	}{
		"a wrong token":  {url.Values{"token": {"wrong"}}, nil, 401, "not one that this server knows"},
		"no token":       {url.Values{}, nil, 401, "not one that this server knows"},
		"another site":   {url.Values{"token": {token}}, header("Origin", "http://evil.example"), 403, "other sites"},
		"a sister site":  {url.Values{"token": {token}}, header("Sec-Fetch-Site", "same-site"), 403, "other sites"},
		"unknown origin": {url.Values{"token": {token}}, func(r *http.Request) { r.Header.Del("Origin"); r.Header.Del("Sec-Fetch-Site") }, 403, "other sites"},
		"JSON":           {url.Values{"token": {token}}, header("Content-Type", "text/plain"), 415, "text/plain"},
	} {
		change := test.change
		if change == nil {
			change = func(*http.Request) {}
		}
		got := s.post("/signin", test.form, change)
		if got.status != test.status || !strings.Contains(got.body, test.says) || len(got.header.Values("Set-Cookie")) != 0 {
			t.Errorf("%s: %d, %v, %s", what, got.status, got.header, got.body)
		}
		if strings.Contains(got.body, token) {
			t.Errorf("%s: it tells the token", what)
		}
		checkPage(t, "/signin, "+what, got)
	}
	// The token in the address, where logs and histories keep it, is none.
	if got := s.post("/signin?token="+url.QueryEscape(token), nil); got.status != 401 {
		t.Errorf("%d", got.status)
	}
}

func TestAForgedOrEndedCookieIsNone(t *testing.T) {
	s := newSite(t, withToken)
	s.signIn()
	good := *s.cookie
	if got := s.get("/pools"); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	parts := strings.Split(good.Value, ".")
	for what, value := range map[string]string{
		"another name": "RXZl." + parts[1] + "." + parts[2],
		"a later end":  parts[0] + ".9999999999." + parts[2],
		"nothing":      "",
		"no signature": parts[0] + "." + parts[1] + ".",
	} {
		s.cookie = &http.Cookie{Name: good.Name, Value: value}
		if got := s.get("/pools"); got.status != http.StatusSeeOther {
			t.Errorf("%s: %d", what, got.status)
		}
	}
	other := newSite(t, func(c *sidecar.Config) {
		c.Policy.Open, c.Tokens = false, accesstest.Tokens("ann<b>", "another", "view")
	})
	other.cookie = &good
	if got := other.get("/pools"); got.status != http.StatusSeeOther {
		t.Errorf("where another token is asked for: %d", got.status)
	}
}

func TestAProgramReadsPagesWithTheToken(t *testing.T) {
	s := newSite(t, withToken)
	s.pool("db", 1)
	got := s.get("/pools", header("Authorization", "Bearer "+token), header("Accept", "*/*"))
	if got.status != 200 || !strings.Contains(got.body, "pool-db") {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if !strings.Contains(got.body, "Pause…") {
		t.Error("the token may not act")
	}
}

func TestWithoutATokenPagesAreReadOnlyButOnDev(t *testing.T) {
	for dev, want := range map[bool]bool{true: true, false: false} {
		s := newSite(t, func(c *sidecar.Config) { c.Policy.Open = dev })
		s.pool("db", 1)
		d := s.page("/pools?open=db")
		if got := strings.Contains(text(d.root), "Pause…"); got != want {
			t.Errorf("dev %v: actions are offered: %v", dev, got)
		}
		if got := strings.Contains(text(d.root), "everyone may act"); got != want {
			t.Errorf("dev %v: the page says so: %v", dev, got)
		}
		if strings.Contains(text(d.root), "Sign") {
			t.Error("there is nothing to sign in with")
		}
		if got := text(s.page("/signin").must("main")); !strings.Contains(got, "asks for no token") {
			t.Errorf("%s", got)
		}
		if got := s.post("/signin", url.Values{"token": {""}}); got.status != 303 || len(got.header.Values("Set-Cookie")) != 0 {
			t.Errorf("an empty token signs in: %d", got.status)
		}
		got := s.post("/signin", url.Values{"token": {"any"}})
		if got.status != http.StatusUnauthorized || !strings.Contains(got.body, "has no tokens") {
			t.Errorf("a token that can't be verified signs in: %d", got.status)
		}
		checkPage(t, "/signin, without tokens", got)
		s.cookie = &http.Cookie{Name: "berth", Value: "QWRh.9999999999.x"}
		if got := strings.Contains(s.get("/pools").body, "QWRh"); got {
			t.Error("a cookie is believed")
		}
	}
}

func TestSigningInIsSlowedDownLikeRequests(t *testing.T) {
	s := newSite(t, withToken)
	early := s.post("/signin", url.Values{"token": {"wrong"}})
	for range 5 {
		if got := s.post("/signin", url.Values{"token": {"wrong"}}); got.status != http.StatusUnauthorized {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	for range 4 {
		if got := s.get("/v1/pools", header("Authorization", "Bearer wrong")); got.status != http.StatusUnauthorized {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	got := s.post("/signin", url.Values{"token": {token}, "to": {"/queue"}})
	if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") != "60" || len(got.header.Values("Set-Cookie")) != 0 || early.status != http.StatusUnauthorized {
		t.Errorf("%d %v", got.status, got.header)
	}
	checkPage(t, "/signin, too often", got)
	d := parse(t, got.body)
	if says := text(d.must("signin-problem")); !strings.Contains(says, "Too many wrong tokens") || !strings.Contains(says, "try again in a minute") {
		t.Errorf("%s", says)
	}
	if to := attr(d.all(func(n *html.Node) bool { return attr(n, "name") == "to" })[0], "value"); to != "/queue" {
		t.Errorf("after it one comes to %q", to)
	}
	for _, path := range []string{"/v1/pools", "/pools"} {
		got := s.get(path, header("Authorization", "Bearer "+token), header("Accept", "*/*"))
		if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "too_many_requests") {
			t.Errorf("%s: %d %v %s", path, got.status, got.header, got.body)
		}
	}
	got = s.get("/pools", header("Authorization", "Bearer "+token))
	checkPage(t, "/pools, too often", got)
	if got.status != http.StatusTooManyRequests || !strings.Contains(got.body, "too many wrong tokens") {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestWhoIsInIsNotSlowedDownByTheGuessesOfOthers(t *testing.T) {
	s := newSite(t, withToken)
	s.signIn()
	for range 20 {
		s.post("/signin", url.Values{"token": {"wrong"}})
	}
	if got := s.post("/signin", url.Values{"token": {"wrong"}}); got.status != http.StatusTooManyRequests {
		t.Errorf("a guess: %d", got.status)
	}
	s.page("/pools")
	if got := s.get("/v1/pools", header("Authorization", "Bearer "+token)); got.status != http.StatusOK {
		t.Errorf("the token that was used here: %d %s", got.status, got.body)
	}
	s.signIn()
}

// A page that is open shows nothing more once its token was revoked or has expired, or has other
// roles.
func TestASessionEndsWithItsToken(t *testing.T) {
	t.Parallel()
	var tokens atomic.Pointer[access.Tokens]
	set := func(ts access.Tokens) { tokens.Store(&ts) }
	s := newSite(t, withToken, func(c *sidecar.Config) {
		set(c.Tokens())
		c.Tokens = func() access.Tokens { return *tokens.Load() }
	})
	first := *tokens.Load()
	expired := access.Tokens{}
	old := first.List[0]
	old.Expires = time.Now().Add(-time.Second)
	if err := expired.Add(old, time.Now()); err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		tokens access.Tokens
		status int
	}{
		"revoked":              {access.Tokens{}, http.StatusSeeOther},
		"expired":              {expired, http.StatusSeeOther},
		"revoked and replaced": {accesstest.Tokens("ann<b>", "another", "view", "operate")(), http.StatusSeeOther},
		"with other roles":     {accesstest.Tokens("ann<b>", token, "view")(), http.StatusOK},
	} {
		set(first)
		s.signIn()
		live := s.look("/pools")
		live.until("it is shown", func(*document) bool { return true })
		set(test.tokens)
		for name := "main"; name != ""; {
			name, _ = live.next()
		}
		if got := s.get("/pools"); got.status != test.status {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
		if got := s.post("/actions/pause", url.Values{"pool": {"db"}}); got.status != map[int]int{200: 403, 303: 401}[test.status] {
			t.Errorf("%s, and yet one acts: %d %s", what, got.status, got.body)
		}
	}
}
