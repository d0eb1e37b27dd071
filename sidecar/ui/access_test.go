package ui

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
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
	p := New(Config{Tokens: accesstest.Tokens("ci", "secret"), Secure: true})
	mux := http.NewServeMux()
	p.Register(mux)
	send := func(change func(*http.Request)) *http.Response {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, posted(signinPath, url.Values{"token": {"secret"}}, change))
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

// by is the request of an identity.
func by(id access.Identity) func(*http.Request) {
	return func(r *http.Request) { *r = *r.WithContext(accesstest.As(r.Context(), id)) }
}

func TestAFormIsTakenFromAPageOfOursAndFromWhoMayAct(t *testing.T) {
	const path = "/try"
	var who, field string
	var fails error
	ready := error(nil)
	serve := func(r *http.Request) *http.Response {
		who = ""
		p := New(Config{Ready: func() (*Session, error) { return &Session{}, ready }})
		p.posts = []form{{pattern: "POST " + path, do: func(ctx context.Context, _ *Session, r *http.Request) (string, error) {
			if err := access.Allow(ctx, access.Operate); err != nil {
				return "", err
			}
			who, field = access.Of(ctx).String(), r.PostForm.Get("field")
			return p.withMessage("/pools", "done"), fails
		}}}
		mux := http.NewServeMux()
		p.Register(mux)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Result()
	}
	value := url.Values{"field": {"a&b"}}
	admin := by(accesstest.Admin)

	resp := serve(posted(path, value, admin))
	if to := resp.Header.Get("Location"); resp.StatusCode != 303 || !strings.HasPrefix(to, "/pools?said=done&seal=") || who != "user:admin" || field != "a&b" {
		t.Errorf("%s to %s by %q: %q", resp.Status, to, who, field)
	}
	for what, test := range map[string]struct {
		r      *http.Request
		status int
	}{
		"anonymous":         {posted(path, value), 401},
		"without a role":    {posted(path, value, by(access.Identity{Kind: access.User, Name: "ann", Grants: access.DefaultGrants})), 403},
		"by another site":   {posted(path, value, admin, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }), 403},
		"by a sister site":  {posted(path, value, admin, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }), 403},
		"typed by the user": {posted(path, value, admin, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }), 403},
		"of unknown origin": {posted(path, value, admin, func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Del("Origin") }), 403},
	} {
		if resp := serve(test.r); resp.StatusCode != test.status || who != "" {
			t.Errorf("%s: %s by %q", what, resp.Status, who)
		}
	}
	fails = problem.New(problem.PoolNotFound, "there is no pool 'db'")
	if resp := serve(posted(path, value, admin)); resp.StatusCode != 404 {
		t.Errorf("what fails: %s", resp.Status)
	}
	fails, ready = nil, problem.New(problem.EtcdUnavailable, "etcd has not answered yet")
	if resp := serve(posted(path, value, admin)); resp.StatusCode != 503 || who != "" {
		t.Errorf("without etcd: %s", resp.Status)
	}
}

func TestAPageIsShownToWhoHasItsRole(t *testing.T) {
	viewer := access.Identity{Kind: access.User, Name: "ann", Grants: access.DefaultGrants}
	for name, test := range map[string]struct {
		id     access.Identity
		tokens func() access.Tokens
		status int
		says   string
	}{
		"anonymous":              {access.Identity{}, nil, 401, "This needs the role view. This address does not ask who you are"},
		"anonymous with sign-in": {access.Identity{}, accesstest.Tokens("ci", "x"), 303, ""},
		"without a role":         {access.Identity{Kind: access.User, Name: "ann"}, nil, 403, "This needs the role view, which user:ann does not have."},
		"a viewer":               {viewer, nil, 200, "Pools"},
		"an administrator":       {accesstest.Admin, nil, 200, "Pools"},
	} {
		seen := false
		p := New(Config{Tokens: test.tokens})
		looks(t, p, func(int) (*view, error) {
			seen = true
			return held(1), nil
		})
		mux := http.NewServeMux()
		p.Register(mux)
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/looked-at", nil)
		r.Header.Set("Accept", "text/html")
		by(test.id)(r)
		mux.ServeHTTP(w, r)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.says) || seen != (test.status == 200) {
			t.Errorf("%s: %d, seen %v: %s", name, w.Code, seen, w.Body)
		}
	}
}
