package ui_test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testlog"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/client"
)

// patience bounds every wait of a test, also on a busy machine.
const patience = 60 * time.Second

// site is a sidecar that serves its pages, on a real etcd.
type site struct {
	t      testing.TB
	etcd   *embed.Server // nil if there is none
	server *sidecar.Server
	client *client.Client
	cfg    sidecar.Config
	base   string
	log    *testlog.Buffer
	ended  chan struct{}
	// cookie is sent with each request.
	cookie *http.Cookie
}

// newSite starts a sidecar on an etcd of its own. Visitors may act unless a change says
// otherwise.
func newSite(t testing.TB, change ...func(*sidecar.Config)) *site {
	t.Helper()
	etcd := embedtest.New(t)
	s := launch(t, etcd.Endpoint(), change...)
	s.etcd = etcd
	s.eventually("the sidecar is ready", func() bool { return s.client.Ready(t.Context()) == nil })
	return s
}

// launch starts a sidecar that need not become ready.
func launch(t testing.TB, endpoint string, change ...func(*sidecar.Config)) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth") // a short path: those of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	reg := prometheus.NewRegistry()
	s := &site{t: t, log: testlog.New(t), ended: make(chan struct{})}
	s.cfg = sidecar.Config{
		Options: instance.Options{Endpoints: []string{endpoint}, Host: "one", StateDir: filepath.Join(dir, "state")},
		Listen:  "127.0.0.1:0", Socket: filepath.Join(dir, "berth.sock"), DrainTimeout: -1, Policy: access.Policy{Open: true},
		Registerer: reg, Gatherer: reg,
		Logger: hclog.New(&hclog.LoggerOptions{Output: s.log, Level: hclog.Debug}),
	}
	for _, f := range change {
		f(&s.cfg)
	}
	s.server = sidecar.New(s.cfg)
	if err := s.server.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.base = "http://" + s.server.Addr().String()
	var failed error
	go func() {
		defer close(s.ended)
		failed = s.server.Run(context.Background())
	}()
	if s.client, err = client.Dial("unix://"+s.cfg.Socket, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.client.Close()
		s.server.Stop(sidecar.Leave)
		select {
		case <-s.ended:
			if failed != nil && s.etcd != nil {
				t.Errorf("the server: %v", failed)
			}
		case <-time.After(patience):
			t.Error("the server does not end")
		}
	})
	return s
}

// eventually waits until something is so.
func (s *site) eventually(what string, is func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			s.t.Fatalf("in vain: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   string
}

// send sends a request as a browser does that shows the answer, unless a change says otherwise.
func (s *site) send(method, path string, body io.Reader, change ...func(*http.Request)) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
	if s.cookie != nil {
		req.AddCookie(s.cookie)
	}
	for _, f := range change {
		f(req)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: string(data)}
}

func (s *site) get(path string, change ...func(*http.Request)) answer {
	s.t.Helper()
	return s.send("GET", path, nil, change...)
}

// post sends a form as a page of ours has a browser send it, unless a change says otherwise.
func (s *site) post(path string, form url.Values, change ...func(*http.Request)) answer {
	s.t.Helper()
	return s.send("POST", path, strings.NewReader(form.Encode()), append([]func(*http.Request){func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", s.base)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}}, change...)...)
}

// header sets a header of a request.
func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// page gets a page that is to be there, and reads it.
func (s *site) page(path string) *document {
	s.t.Helper()
	got := s.get(path)
	if got.status != http.StatusOK {
		s.t.Fatalf("GET %s: %d\n%s", path, got.status, got.body)
	}
	checkPage(s.t, path, got)
	return parse(s.t, got.body)
}

// until gets a page again and again until something on it is so.
func (s *site) until(path, what string, is func(*document) bool) *document {
	s.t.Helper()
	var d *document
	s.eventually(what, func() bool {
		d = s.page(path)
		return is(d)
	})
	return d
}
