package ui

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
)

// posted is a request that a page of ours has sent, unless a change says otherwise.
func posted(path string, form url.Values, change ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest("POST", "http://localhost:7420"+path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", "http://localhost:7420")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for _, f := range change {
		f(r)
	}
	return r
}

func TestOverTLSTheCookieIsForTLSAlone(t *testing.T) {
	p := New(Config{Token: "secret", Secure: true})
	mux := http.NewServeMux()
	p.Register(mux)
	send := func(change func(*http.Request)) *http.Response {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, posted(signinPath, url.Values{"name": {"Ada"}, "token": {"secret"}}, change))
		return w.Result()
	}
	resp := send(func(r *http.Request) {})
	if all := resp.Cookies(); resp.StatusCode != 303 || len(all) != 1 || all[0].Name != "__Host-berth" || !all[0].Secure || all[0].Path != "/" || all[0].Domain != "" {
		t.Errorf("%s, %+v", resp.Status, all)
	}
	// A browser that says nothing of sites says its origin, whose scheme counts, too.
	for origin, status := range map[string]int{"https://localhost:7420": 303, "http://localhost:7420": 403, "": 403, "null": 403, "https://localhost": 403} {
		resp := send(func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", origin)
		})
		if resp.StatusCode != status {
			t.Errorf("from %q: %s", origin, resp.Status)
		}
	}
}

func TestAFormIsTakenFromAPageOfOursAndFromWhoMayAct(t *testing.T) {
	const path = "/try"
	var who, from, field string
	var fails error
	ready := error(nil)
	serve := func(cfg Config, r *http.Request) *http.Response {
		who = ""
		cfg.Ready = func() (*Session, error) { return &Session{}, ready }
		p := New(cfg)
		p.posts = []form{{pattern: "POST " + path, do: func(ctx context.Context, _ *Session, r *http.Request) (string, error) {
			if whoOf(ctx) == "" {
				t.Error("who may not act does")
			}
			who, from, field = whoOf(ctx), fromOf(ctx), r.PostForm.Get("field")
			return p.withMessage("/pools", "done"), fails
		}}}
		mux := http.NewServeMux()
		p.Register(mux)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Result()
	}
	value := url.Values{"field": {"a&b"}}

	resp := serve(Config{Dev: true}, posted(path, value))
	if to := resp.Header.Get("Location"); resp.StatusCode != 303 || !strings.HasPrefix(to, "/pools?said=done&seal=") || who != "dev" || from == "" || field != "a&b" {
		t.Errorf("on dev: %s to %s by %q from %q: %q", resp.Status, to, who, from, field)
	}
	cookie := func(r *http.Request) {
		r.AddCookie(&http.Cookie{Name: "berth", Value: New(Config{Token: "x"}).pass("Ada", time.Now().Add(time.Minute))})
	}
	if resp := serve(Config{Token: "x"}, posted(path, value, cookie)); resp.StatusCode != 303 || who != "Ada" {
		t.Errorf("signed in: %s by %q", resp.Status, who)
	}
	for what, test := range map[string]struct {
		cfg Config
		r   *http.Request
	}{
		"read-only":           {Config{}, posted(path, value)},
		"not signed in":       {Config{Token: "x", Dev: true}, posted(path, value)},
		"of another server":   {Config{Token: "y"}, posted(path, value, cookie)},
		"by another site":     {Config{Dev: true}, posted(path, value, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })},
		"by a sister site":    {Config{Dev: true}, posted(path, value, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") })},
		"typed by the user":   {Config{Dev: true}, posted(path, value, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") })},
		"by nobody knows who": {Config{Dev: true}, posted(path, value, func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Del("Origin") })},
	} {
		if resp := serve(test.cfg, test.r); resp.StatusCode != 403 || who != "" {
			t.Errorf("%s: %s by %q", what, resp.Status, who)
		}
	}
	fails = problem.New(problem.PoolNotFound, "there is no pool 'db'")
	if resp := serve(Config{Dev: true}, posted(path, value)); resp.StatusCode != 404 {
		t.Errorf("what fails: %s", resp.Status)
	}
	fails, ready = nil, problem.New(problem.EtcdUnavailable, "etcd has not answered yet")
	if resp := serve(Config{Dev: true}, posted(path, value)); resp.StatusCode != 503 || who != "" {
		t.Errorf("without etcd: %s", resp.Status)
	}
}

func TestWhoIsNotToActDoesNotSeeAPageForIt(t *testing.T) {
	seen := false
	for cfg, want := range map[string]struct {
		cfg    Config
		status int
		says   string
	}{
		"read-only": {Config{}, 403, "read-only"},
		"a token":   {Config{Token: "x"}, 403, "Sign in"},
		"dev":       {Config{Dev: true}, 200, "Pools"},
	} {
		seen = false
		p := New(want.cfg)
		looks(t, p, func(int) (*view, error) {
			seen = true
			return held(1), nil
		})
		p.all[0].act = true
		mux := http.NewServeMux()
		p.Register(mux)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", "/looked-at", nil))
		if w.Code != want.status || !strings.Contains(w.Body.String(), want.says) || seen != (want.status == 200) {
			t.Errorf("%s: %d, looked %v: %s", cfg, w.Code, seen, w.Body)
		}
	}
}

func TestAClosedConnectionIsNoFault(t *testing.T) {
	var log strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	p := New(Config{Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
	looks(t, p, func(int) (*view, error) {
		cancel()
		return nil, context.Cause(ctx)
	})
	mux := http.NewServeMux()
	p.Register(mux)
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/looked-at", nil).WithContext(ctx))
	if log.String() != "" {
		t.Errorf("it is logged: %s", log.String())
	}
}
