package sidecar_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testlog"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// patience bounds every wait of a test, also on a busy machine.
const patience = 60 * time.Second

// running is a sidecar that serves, with a client for it over its socket.
type running struct {
	t      testing.TB
	server *sidecar.Server
	cfg    sidecar.Config
	client *client.Client
	log    *testlog.Buffer
	doc    *document // checks every answer that raw and client get
	ended  chan struct{}
	err    error
	base   string // of TCP
}

// config of a sidecar on an etcd, with folders of its own.
func config(t testing.TB, endpoint string) sidecar.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth") // a short path: those of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return sidecar.Config{
		Options:      instance.Options{Endpoints: []string{endpoint}, Host: "one", StateDir: filepath.Join(dir, "state")},
		Listen:       "127.0.0.1:0",
		Socket:       filepath.Join(dir, "run", "berth.sock"),
		DrainTimeout: -1,
		Policy:       access.Policy{Open: true}, // tests of access replace it
	}
}

// launch runs a sidecar that need not become ready.
func launch(t testing.TB, cfg sidecar.Config) *running {
	t.Helper()
	reg := prometheus.NewRegistry()
	cfg.Registerer, cfg.Gatherer = reg, reg
	log := testlog.New(t)
	if cfg.Logger == nil {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Debug})
	}
	r := &running{t: t, cfg: cfg, log: log, server: sidecar.New(cfg), ended: make(chan struct{})}
	if err := r.server.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if addr := r.server.Addr(); addr != nil {
		r.base = "http://" + addr.String()
	}
	go func() {
		defer close(r.ended)
		r.err = r.server.Run(context.Background())
	}()
	var err error
	if r.client, err = client.Dial("unix://"+cfg.Socket, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.client.Close()
		r.server.Stop(sidecar.Leave)
		r.wait()
	})
	return r
}

// start runs a sidecar and waits until it is ready.
func start(t testing.TB, cfg sidecar.Config) *running {
	t.Helper()
	r := launch(t, cfg)
	eventually(t, "the sidecar is ready", func() bool { return r.client.Ready(t.Context()) == nil })
	return r
}

// single starts a sidecar on an etcd of its own.
func single(t testing.TB, change ...func(*sidecar.Config)) *running {
	t.Helper()
	cfg := config(t, embedtest.New(t).Endpoint())
	for _, f := range change {
		f(&cfg)
	}
	return start(t, cfg)
}

// restarted stops a sidecar so that the next one takes its claims over, and
// starts that.
func (r *running) restarted() *running {
	r.t.Helper()
	r.server.Stop(sidecar.Leave)
	if err := r.wait(); err != nil {
		r.t.Fatal(err)
	}
	r.cfg.Logger = nil
	return start(r.t, r.cfg)
}

// wait waits until the server has ended.
func (r *running) wait() error {
	r.t.Helper()
	select {
	case <-r.ended:
		return r.err
	case <-time.After(patience):
		r.t.Error("the server does not end")
		return errors.New("not ended")
	}
}

func (r *running) pool(name string, limit int, change ...func(*api.PoolChange)) {
	r.t.Helper()
	c := api.PoolChange{Limit: &limit}
	for _, f := range change {
		f(&c)
	}
	if _, err := r.client.SetPool(r.t.Context(), name, c); err != nil {
		r.t.Fatal(err)
	}
}

// sees waits until the server knows a pool that another has made.
func (r *running) sees(name string) {
	r.t.Helper()
	eventually(r.t, "pool "+name+" is seen", func() bool {
		_, err := r.client.Pool(r.t.Context(), name)
		return err == nil
	})
}

// leases sets a pool's lease duration.
func leases(d time.Duration) func(*api.PoolChange) {
	return func(c *api.PoolChange) { c.LeaseDuration = api.DurationOf(d) }
}

func (r *running) claim(req api.ClaimRequest) *api.Claim {
	r.t.Helper()
	c, err := r.client.Claim(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// claimed is how many slots of a pool are held.
func (r *running) claimed(name string) int {
	r.t.Helper()
	p, err := r.client.Pool(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return p.Claimed
}

// free waits until all slots of a pool are free.
func (r *running) free(name string) {
	r.t.Helper()
	eventually(r.t, "pool "+name+" is free", func() bool {
		p, err := r.client.Pool(r.t.Context(), name)
		return err == nil && p.Claimed == 0
	})
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) problem(t testing.TB) api.Problem {
	t.Helper()
	var p api.Problem
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("an error of type %q: %s", got, a.body)
	}
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Errorf("%s is no problem: %v", a.body, err)
	}
	if p.Status != a.status || p.Title == "" || p.Code == "" || p.Detail == "" {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	return p
}

// request is one that no client of ours would send.
type request struct {
	method, path, body string
	kind               string // Content-Type; application/json if empty
	change             func(*http.Request)
}

// raw sends a request over TCP, and checks the answer against the document.
func (r *running) raw(q request) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), q.method, r.base+q.path, strings.NewReader(q.body))
	if err != nil {
		r.t.Fatal(err)
	}
	if q.kind == "" {
		q.kind = "application/json"
	}
	if q.body != "" && q.kind != "none" {
		req.Header.Set("Content-Type", q.kind)
	}
	if q.change != nil {
		q.change(req)
	}
	return r.do(req)
}

func (r *running) do(req *http.Request) answer {
	r.t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	if strings.HasPrefix(req.URL.Path, api.ClaimsPath) { // claims are the same user's as those of r.client
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", r.cfg.Socket)
		}
	}
	return r.roundTrip(tr, req)
}

func (r *running) roundTrip(tr *http.Transport, req *http.Request) answer {
	r.t.Helper()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.doc != nil {
		r.doc.check(r.t, req, resp, body)
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: body}
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func wantCode(t testing.TB, err error, want problem.Code) {
	t.Helper()
	if err == nil || problem.CodeOf(err) != want {
		t.Errorf("%v (%s), want %s", err, problem.CodeOf(err), want)
	}
}

// wantField wants input to be refused because of a field.
func wantField(t testing.TB, err error, field string) {
	t.Helper()
	var p *problem.Error
	if !errors.As(err, &p) || p.Code != problem.Invalid || p.Field != field {
		t.Errorf("%v, want a refusal of %s", err, field)
	}
}

// setLimit sets a pool through the Go API.
func setLimit(t testing.TB, c *instance.Client, name string, limit int) {
	t.Helper()
	if _, err := c.SetPool(t.Context(), name, pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
}

func decode(t testing.TB, a answer, v any) {
	t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil || a.status >= http.StatusBadRequest {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
}
