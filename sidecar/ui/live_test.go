package ui

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// looks serves a page that shows, at each look, what a function says, and returns its address.
// The first look is number 1.
func looks(t *testing.T, p *Pages, show func(look int) (*view, error)) string {
	t.Helper()
	n := 0
	p.old = func(context.Context, *Session) error { return nil }
	p.cfg.Ready = func() (*Session, error) { return &Session{}, nil }
	p.all = []page{{pattern: "GET /looked-at", name: "pools", nav: "Pools", every: time.Millisecond, view: func(context.Context, *Session, *http.Request) (*view, error) {
		n++
		return show(n)
	}}}
	mux := http.NewServeMux()
	p.Register(mux)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(accesstest.As(r.Context(), accesstest.Admin)))
	}))
	t.Cleanup(func() {
		p.Close()
		server.Close()
	})
	return server.URL + "/looked-at"
}

// listen reads the stream at an address to its end.
func listen(t *testing.T, url string) string {
	t.Helper()
	resp := open(t, url)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func open(t *testing.T, url string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// held is a page of one pool with one holder, who has it since a moment that moves away.
func held(slots int) *view {
	since := time.Unix(1_000_000, 0)
	s := someStatus("db", slots, 3)
	d := poolDetailOf(pool.Detail{Holders: []pool.HolderStatus{{Claim: "c", Slots: slots, Since: since}}}, nil, nil, 10, since)
	return &view{Title: "Pools", Data: poolsPage{Sums: sumPools([]pool.Status{s}), Found: 1, Cards: []poolCard{{Status: s, Open: true, Detail: d}}}}
}

func TestAStreamTellsOfWhatDiffersAndOfNothingElse(t *testing.T) {
	p := New(Config{})
	url := looks(t, p, func(look int) (*view, error) {
		switch {
		case look < 20:
			return held(1), nil
		case look < 40:
			return held(2), nil
		case look < 60:
			return nil, errors.New("a secret of the server")
		case look < 80:
			v := held(2)
			v.Title = "Other pools"
			return v, nil
		case look == 100:
			p.Close()
		}
		return held(3), nil
	})
	got := listen(t, url)
	for what, want := range map[string]int{
		"event: main\n": 5, "event: title\n": 4, "data: Other pools\n": 1, "data: Internal error\n": 1,
		"1/3": 1, "2/3": 2, "3/3": 1, "its log says more": 1, "secret": 0,
		"retry: ": 1, " ago<": 0, "just now": 0,
	} {
		if n := strings.Count(got, what); n != want {
			t.Errorf("%q is there %d times, want %d in\n%s", what, n, want, got)
		}
	}
}

func TestALookThatFailsAgainAndAgainIsLoggedNowAndThen(t *testing.T) {
	var log strings.Builder
	p := New(Config{Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
	url := looks(t, p, func(look int) (*view, error) {
		if look == 50 {
			p.Close()
		}
		return nil, errors.New("by design")
	})
	listen(t, url)
	if n := strings.Count(log.String(), "by design"); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, log.String())
	}
}

func TestThereAreNoMoreStreamsThanCanBe(t *testing.T) {
	p := New(Config{})
	url := looks(t, p, func(int) (*view, error) { return held(1), nil })
	var leave func()
	for i := range maxStreams {
		var err error
		if leave, err = p.streams.Enter([]string{"a", "b"}[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	resp := open(t, url)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(body), `"too_many_requests"`) || resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s %s, %v", resp.Status, body, err)
	}
	leave()
	again := open(t, url)
	defer again.Body.Close()
	if again.StatusCode != 200 || p.streams.Open() != maxStreams {
		t.Errorf("%s with %d streams", again.Status, p.streams.Open())
	}
}

func TestATroubleLastsAsLongAsItIsTheSame(t *testing.T) {
	var tr trouble
	at := time.Unix(1_000_000, 0)
	if got := tr.since(problem.EtcdUnavailable, at); !got.Equal(at) {
		t.Errorf("%s", got)
	}
	if got := tr.since(problem.EtcdUnavailable, at.Add(time.Minute)); !got.Equal(at) {
		t.Errorf("it began again: %s", got)
	}
	if got := tr.since(problem.EtcdFull, at.Add(time.Minute)); !got.Equal(at.Add(time.Minute)) {
		t.Errorf("another one: %s", got)
	}
	tr.over()
	if got := tr.since(problem.EtcdFull, at.Add(time.Hour)); !got.Equal(at.Add(time.Hour)) {
		t.Errorf("after it was over: %s", got)
	}
	tr = trouble{born: at}
	if got := tr.since(problem.EtcdUnavailable, at.Add(time.Hour)); !got.Equal(at) {
		t.Errorf("there never was anything: %s", got)
	}
	tr.over()
	if got := tr.since(problem.EtcdUnavailable, at.Add(time.Hour)); !got.Equal(at.Add(time.Hour)) {
		t.Errorf("there was something: %s", got)
	}
}

func TestBackgroundTasksEndWithThePages(t *testing.T) {
	p := New(Config{Ready: func() (*Session, error) { return nil, problem.New(problem.EtcdUnavailable, "by design") }})
	if p.background(func(context.Context) { t.Error("it ran") }) {
		t.Error("it runs although nothing does")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		p.Run(ctx)
		close(done)
	}()
	ended := false
	for begun := false; !begun; {
		begun = p.background(func(ctx context.Context) {
			<-ctx.Done()
			ended = true
		})
	}
	cancel()
	<-done
	if !ended {
		t.Error("it was not waited for")
	}
	if p.background(func(context.Context) {}) {
		t.Error("it runs after the end")
	}
}
