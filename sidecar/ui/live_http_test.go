package ui_test

import (
	"bufio"
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// stream is a page that is shown.
type stream struct {
	t    testing.TB
	in   *bufio.Reader
	resp *http.Response
}

// look opens the stream of a page, until the test ends.
func (s *site) look(path string) *stream {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	s.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", s.base+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if s.cookie != nil {
		req.AddCookie(s.cookie)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" || resp.StatusCode != 200 {
		s.t.Fatalf("%s, %q", resp.Status, got)
	}
	checkHeaders(s.t, path+" as a stream", answer{header: resp.Header})
	return &stream{t: s.t, in: bufio.NewReader(resp.Body), resp: resp}
}

// next reads the next event; its name is empty at the end.
func (s *stream) next() (name, data string) {
	s.t.Helper()
	var lines []string
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return "", ""
		}
		switch line = strings.TrimSuffix(line, "\n"); {
		case line == "" && name != "":
			return name, strings.Join(lines, "\n")
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			lines = append(lines, line[len("data: "):])
		}
	}
}

// until reads events until the main part of the page is so.
func (s *stream) until(what string, is func(*document) bool) *document {
	s.t.Helper()
	for {
		name, data := s.next()
		if name == "" {
			s.t.Fatalf("it ended before %s", what)
		}
		if name != "main" {
			continue
		}
		if d := parse(s.t, data); is(d) {
			return d
		}
	}
}

func TestALivePageTellsOfChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.pool("db", 2)
	live := s.look("/pools?open=db")
	if name, data := live.next(); name != "title" || data != "Pools" {
		t.Errorf("the first is %q %q", name, data)
	}
	live.until("it has no holder", func(d *document) bool { return strings.Contains(text(d.must("pool-db")), "0/2") })
	s.claim(api.ClaimRequest{ID: "a", Pools: api.Slots{"db": 2}, RunID: "lines and <b>"})
	d := live.until("it is held", func(d *document) bool { return strings.Contains(text(d.must("pool-db")), "2/2") })
	if row := text(d.must("holds-db-a")); !strings.Contains(row, "and <b>") {
		t.Errorf("%q", row)
	}
	for _, n := range d.tags("time") {
		if got := text(n); !strings.HasSuffix(got, " UTC") {
			t.Errorf("a time is relative: %q", got)
		}
	}
	if len(d.tags("h1")) != 1 || len(d.tags("nav")) != 0 {
		t.Error("it is more or less than the main part")
	}
	if err := s.client.Release(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	live.until("it is free", func(d *document) bool { return d.id("holds-db-a") == nil })
}

func TestAStreamIsCountedWhileItIsOpen(t *testing.T) {
	s := newSite(t)
	streams := func(want string) func() bool {
		return func() bool {
			return strings.Contains(s.get("/metrics", header("Accept", "*/*")).body, "\nberth_http_event_streams "+want+"\n")
		}
	}
	live := s.look("/pools")
	s.eventually("it is counted", streams("1"))
	_ = live.resp.Body.Close()
	s.eventually("it is not counted any more", streams("0"))
}

func TestAStreamIsNotForWhoHasNotSignedIn(t *testing.T) {
	s := newSite(t, withToken)
	s.pool("db", 1)
	s.signIn()
	s.look("/pools").until("it is shown", func(d *document) bool { return d.id("pool-db") != nil })
	s.cookie = nil
	if got := s.get("/pools", header("Accept", "text/event-stream")); got.status != 401 || strings.Contains(got.body, "pool-db") {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestAStopEndsStreams(t *testing.T) {
	s := newSite(t)
	live := s.look("/pools")
	live.until("it is shown", func(*document) bool { return true })
	s.server.Stop(sidecar.Leave)
	for {
		if name, _ := live.next(); name == "" {
			break
		}
	}
	<-s.ended
}

func TestWithoutEtcdAPageSaysSoAndGoesOnTrying(t *testing.T) {
	s := launch(t, "127.0.0.1:1")
	s.t = t
	s.eventually("it says so", func() bool { return strings.Contains(s.get("/pools").body, "etcd_unavailable") })
	got := s.get("/pools")
	if got.status != http.StatusServiceUnavailable {
		t.Errorf("%d", got.status)
	}
	checkPage(t, "/pools without etcd", got)
	d := parse(t, got.body)
	for _, want := range []string{"etcd is unavailable", "It has been so since", "Check that etcd runs", "Status 503"} {
		if got := text(d.must("main")); !strings.Contains(got, want) {
			t.Errorf("it does not say %q: %s", want, got)
		}
	}
	if body := d.tags("body")[0]; attr(body, "data-live") != "/pools" {
		t.Error("it does not try again")
	}
	s.look("/pools").until("a stream says so, too", func(d *document) bool {
		return strings.Contains(text(d.root), "etcd is unavailable") && strings.Contains(text(d.root), " UTC")
	})
	if got := s.post("/signout", url.Values{}); got.status != 303 {
		t.Errorf("signing out: %d", got.status)
	}
}

func TestWhenEtcdGoesAwayTheLastStateIsNotShownAsTheState(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.pool("db", 1)
	live := s.look("/pools")
	live.until("the pool is shown", func(d *document) bool { return d.id("pool-db") != nil })
	s.etcd.Kill()
	d := live.until("etcd is said to be away", func(d *document) bool { return d.id("pool-db") == nil })
	if got := text(d.root); !strings.Contains(got, "is not known") || !strings.Contains(got, "It has been so since 20") {
		t.Errorf("%s", got)
	}
	if got := s.get("/pools"); got.status != 503 || strings.Contains(got.body, "pool-db") {
		t.Errorf("%d %s", got.status, got.body)
	}
}
