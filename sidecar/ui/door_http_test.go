package ui_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os/user"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/internal/problem"
)

func TestRequestsOfOtherSitesAreRefusedAlsoForReads(t *testing.T) {
	s := newSite(t)
	s.pool("secret-pool", 1)
	sheet := attr(s.page("/pools").all(func(n *html.Node) bool { return n.Data == "link" && attr(n, "rel") == "stylesheet" })[0], "href")
	foreign := func(r *http.Request) { r.Host = "berth.evil.example" }
	for what, change := range map[string]func(*http.Request){
		"a name that is not ours":   foreign,
		"another site's page":       header("Origin", "http://evil.example"),
		"another port's page":       header("Origin", "http://127.0.0.1:1"),
		"a link or frame of a site": header("Sec-Fetch-Site", "cross-site"),
		"a sister site":             header("Sec-Fetch-Site", "same-site"),
		"a sandboxed page":          header("Origin", "null"),
	} {
		for _, path := range []string{"/", "/pools", sheet, "/signin", "/nothing"} {
			got := s.get(path, change)
			if got.status != http.StatusForbidden || strings.Contains(got.body, "secret-pool") || !strings.HasPrefix(got.header.Get("Content-Type"), "text/html") {
				t.Errorf("%s at %s: %d %s", what, path, got.status, got.body)
			}
			if got.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s at %s may read it", what, path)
			}
			checkPage(t, "/refused "+what, got)
			d := parse(t, got.body)
			if plain := len(d.tags("link"))+len(d.tags("script")) == 0; plain != strings.HasPrefix(what, "a name") {
				t.Errorf("%s at %s: it loads what it does not get, or does without what it could get", what, path)
			}
			if len(d.tags("nav")) != 0 || len(d.all(func(n *html.Node) bool { return n.Data == "body" && has(n, "data-live") })) != 0 {
				t.Errorf("%s at %s: it looks like a page", what, path)
			}
			for _, kind := range []string{"text/event-stream", "*/*"} { // a script says why it gets nothing, too
				got := s.get(path, change, header("Accept", kind))
				if got.status != http.StatusForbidden || got.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(got.body, string(problem.Forbidden)) {
					t.Errorf("%s at %s as %s: %d %s", what, path, kind, got.status, got.body)
				}
			}
		}
		if got := s.post("/signout", nil, change); got.status != http.StatusForbidden {
			t.Errorf("%s signs out: %d", what, got.status)
		}
	}
	for what, change := range map[string]func(*http.Request){
		"typed":        header("Sec-Fetch-Site", "none"),
		"its own page": header("Sec-Fetch-Site", "same-origin"),
		"its own too":  header("Origin", s.base),
	} {
		if got := s.get("/pools", change); got.status != http.StatusOK {
			t.Errorf("%s: %d", what, got.status)
		}
	}
}

func TestALinkOfAnotherSiteLeadsOn(t *testing.T) {
	s := newSite(t)
	got := s.get("/pools?open=db&q=%22%3E", header("Sec-Fetch-Site", "cross-site"))
	d := parse(t, got.body)
	links := d.within(d.must("main")).tags("a")
	if len(links) != 1 || attr(links[0], "href") != "/pools?open=db&q=%22%3E" {
		t.Errorf("%d links in %s", len(links), got.body)
	}
	// Who came by another name has gone on to nothing of ours.
	got = s.get("/pools", func(r *http.Request) { r.Host = "evil.example" })
	if d := parse(t, got.body); len(d.within(d.must("main")).tags("a")) != 0 {
		t.Errorf("%s", got.body)
	}
}

func TestABrowserGetsPagesOfErrorsAndAProgramProblems(t *testing.T) {
	s := newSite(t)
	for path, status := range map[string]int{"/nothing": 404, "/ui/x/nothing.css": 404, "/pools?page=x": 422, "/ui/x/..%2fpages.go": 404} {
		got := s.get(path)
		if got.status != status || !strings.HasPrefix(got.header.Get("Content-Type"), "text/html") {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
		checkPage(t, path, got)
	}
	got := s.send("POST", "/pools", nil)
	if got.status != 405 || got.header.Get("Allow") == "" {
		t.Errorf("POST: %d %v", got.status, got.header)
	}
	checkPage(t, "POST /pools", got)
	if got := s.send("HEAD", "/pools", nil); got.status != 200 || got.body != "" {
		t.Errorf("HEAD: %d %q", got.status, got.body)
	}
	for _, path := range []string{"/nothing", "/v1/nothing"} {
		got := s.get(path, header("Accept", "*/*"))
		if got.status != 404 || got.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %v", path, got.status, got.header)
		}
	}
	if got := s.get("/v1/pools/nothing"); got.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("the API answers a browser with %q", got.header.Get("Content-Type"))
	}
	got = s.get("/%3Cscript%3Ealert(1)%3C/script%3E")
	if got.status != 404 || strings.Contains(got.body, "<script>alert") {
		t.Errorf("%s", got.body)
	}
}

func TestWhatPagesLoadIsKeptUntilItChanges(t *testing.T) {
	s := newSite(t)
	d := s.page("/pools")
	var paths []string
	for _, n := range d.all(func(n *html.Node) bool { return n.Data == "link" || n.Data == "script" }) {
		paths = append(paths, attr(n, "href")+attr(n, "src"))
	}
	if len(paths) != 4 {
		t.Errorf("it loads %q", paths)
	}
	for _, path := range paths {
		got := s.get(path)
		if got.status != 200 || got.header.Get("Cache-Control") != "public, max-age=31536000, immutable" || got.body == "" {
			t.Errorf("%s: %d %v", path, got.status, got.header)
		}
		checkHeaders(t, path, got)
		part := strings.Split(path, "/")
		part[2] = "0123"
		if got := s.get(strings.Join(part, "/")); got.status != 200 || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("what an older page asks for: %d %v", got.status, got.header)
		}
	}
	kinds := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	for _, path := range paths {
		for end, kind := range kinds {
			if got := s.get(path).header.Get("Content-Type"); strings.HasSuffix(path, end) && got != kind {
				t.Errorf("%s is %q", path, got)
			}
		}
	}
}

// A browser gets to the socket by ssh or a proxy. It is the user of that, whatever it shows.
func TestOverTheSocketPagesAreThoseOfTheUser(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, withToken)
	s.pool("db", 1)
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.cfg.Socket)
	}}
	via := func(method, address, body string, headers ...string) (status int, says string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	for what, headers := range map[string][]string{
		"a program": nil, "a browser": {"User-Agent", "Mozilla/5.0", "Sec-Fetch-Site", "none"},
		"one with a cookie": {"User-Agent", "Mozilla/5.0", "Cookie", "berth=x.y.z"},
	} {
		status, body := via("GET", "http://localhost:8080/pools", "", headers...)
		page := parse(t, body)
		if got := text(page.root); status != 200 || !strings.Contains(got, "You are user:"+me.Username) || strings.Contains(got, "Sign") || !strings.Contains(got, "Pause…") {
			t.Errorf("%s: %d %s", what, status, got)
		}
	}
	if status, body := via("GET", "http://localhost:8080/pools", "", "Authorization", "Bearer wrong"); status != http.StatusUnauthorized {
		t.Errorf("one that shows a wrong token: %d %s", status, body)
	}
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "User-Agent", "Mozilla/5.0"}
	for what, headers := range map[string][]string{
		"another site":          {"Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site"},
		"another port":          {"Origin", "http://localhost:1", "Sec-Fetch-Site", "same-site"},
		"a scheme that is none": {"Origin", "ftp://localhost:8080"},
	} {
		if status, body := via("POST", "http://localhost:8080/actions/pause", "pool=db", append(headers, form...)...); status != 403 {
			t.Errorf("%s acts: %d %s", what, status, body)
		}
	}
	// The page of a site whose name it has made lead here is of the same origin as far as the
	// browser knows.
	for _, path := range []string{"/pools", "/v1/pools"} {
		if status, body := via("GET", "http://evil.example:8080"+path, "", "User-Agent", "Mozilla/5.0"); status != 403 || strings.Contains(body, `"db"`) {
			t.Errorf("a page of evil.example reads %s: %d %s", path, status, body)
		}
	}
	if status, body := via("POST", "http://localhost:8080/actions/pause", "pool=db", append(form, "Origin", "http://localhost:8080", "Sec-Fetch-Site", "same-origin")...); status != 303 {
		t.Errorf("the user acts: %d %s", status, body)
	}
	if p, err := s.client.Pool(t.Context(), "db"); err != nil || !p.Paused {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestPagesAreCountedByTheirRoutes(t *testing.T) {
	s := newSite(t)
	s.page("/pools?open=x")
	s.get("/nothing-" + "made-up")
	got := s.get("/metrics", header("Accept", "*/*")).body
	if !strings.Contains(got, `berth_http_requests_total{code="200",method="GET",route="/pools"} 1`) || strings.Contains(got, "made-up") {
		t.Errorf("%s", got)
	}
}
