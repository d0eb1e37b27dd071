package deploy_test

import (
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testcert"
	"github.com/berthhq/berth/internal/trace/otlp"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
	"github.com/berthhq/berth/sidecar/worker"
)

// patience bounds every wait of a test, also on a busy machine.
const patience = 60 * time.Second

// What the page tells of a metric is what the processes have: with that type, and those
// labels. Of a metric that had no reason to be served in this test, the labels are seen
// where it is registered, and its type is the page's word alone.
func TestTheMetricsOfTheProcessesAreThoseOfThePage(t *testing.T) {
	page := documented(t)
	served, registered := scrapeFleet(t)
	for name, got := range registered {
		want, known := page[name]
		if !known {
			t.Errorf("%s is registered, and docs/reference/metrics.md has no row of it", name)
			continue
		}
		slices.Sort(got.labels)
		slices.Sort(want.labels)
		if !slices.Equal(got.labels, want.labels) {
			t.Errorf("%s has the labels %q; docs/reference/metrics.md says %q", name, got.labels, want.labels)
		}
	}
	for name, got := range served {
		want := page[name]
		slices.Sort(got.labels)
		slices.Sort(want.labels)
		if got.kind != want.kind || !slices.Equal(got.labels, want.labels) {
			t.Errorf("%s is served as a %s with the labels %q; docs/reference/metrics.md says a %s with %q",
				name, got.kind, got.labels, want.kind, want.labels)
		}
	}
	for name := range page {
		// A source is a process of its own, which this test does not start.
		if _, known := registered[name]; !known && !strings.HasPrefix(name, "berth_source_") {
			t.Errorf("docs/reference/metrics.md has a row of %s, and no process registers it", name)
		}
	}
	// Enough was done for these to have samples, or nothing was checked.
	for _, name := range []string{
		"berth_pool_claimed", "berth_claims_refused_total", "berth_runs", "berth_coordinator_tick_seconds",
		"berth_worker_steps_total", "berth_etcd_request_duration_seconds", "berth_http_requests_total",
	} {
		if len(page[name].labels) == 0 || len(served[name].labels) == 0 {
			t.Errorf("%s is not served with labels", name)
		}
	}
	missing := slices.DeleteFunc(slices.Sorted(maps.Keys(page)), func(name string) bool { _, ok := served[name]; return ok })
	t.Logf("%d of the %d metrics of the pages were served; not %s", len(served), len(page), strings.Join(missing, ", "))
}

// registry remembers what is registered: a metric with labels is served only when it
// has counted something.
type registry struct {
	*prometheus.Registry
	mu  sync.Mutex // guards all
	all catalog
}

func newRegistry() *registry { return &registry{Registry: prometheus.NewRegistry(), all: catalog{}} }

// description is how a metric tells of itself.
var description = regexp.MustCompile(`fqName: "(berth_[a-z_]+)".*constLabels: \{([^}]*)\}, variableLabels: \{([a-z_,]*)\}`)

func (r *registry) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	r.mu.Lock()
	for d := range descs {
		if m := description.FindStringSubmatch(d.String()); m != nil {
			f := family{labels: strings.FieldsFunc(m[3], func(c rune) bool { return c == ',' })}
			for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
				f.labels = append(f.labels, l[1])
			}
			r.all[m[1]] = f
		}
	}
	r.mu.Unlock()
	return r.Registry.Register(c)
}

func (r *registry) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// scrapeFleet starts a sidecar, a coordinator and a worker, has each do something, and
// returns what they serve, and what they have registered.
func scrapeFleet(t *testing.T) (served, registered catalog) {
	t.Helper()
	etcd := embedtest.New(t)
	sidecarReg, workerReg := newRegistry(), newRegistry()
	base, client := startSidecar(t, etcd, sidecarReg)
	lead(t, etcd, sidecarReg)
	work(t, etcd, workerReg)

	limit := 1
	_, err := client.SetPool(t.Context(), "db", api.PoolChange{Limit: &limit})
	must(t, err)
	_, err = client.Claim(t.Context(), api.ClaimRequest{ID: "held", Pools: map[string]int{"db": 1}})
	must(t, err)
	if _, err = client.Claim(t.Context(), api.ClaimRequest{Pools: map[string]int{"db": 2}}); problem.CodeOf(err) != problem.ExceedsLimit {
		t.Fatalf("a claim of two slots of one: %v", err)
	}
	must(t, client.Release(t.Context(), "held"))
	runSteps(t, etcd)

	rec := httptest.NewRecorder()
	promhttp.HandlerFor(workerReg, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	served = exposed(t, rec.Body.String())
	maps.Copy(served, exposed(t, get(t, base+"/metrics"))) // the worker's claims are like the sidecar's
	maps.Copy(workerReg.all, sidecarReg.all)

	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1") // its metrics are of processes with traces
	_, end, err := otlp.Start(t.Context(), otlp.Config{Service: "berth-test", Registerer: workerReg})
	must(t, err)
	end()
	return served, workerReg.all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", resp.Status, body)
	}
	return string(body)
}

// startSidecar starts a sidecar, and returns its address and a client.
func startSidecar(t *testing.T, etcd *embed.Server, reg *registry) (base string, c *client.Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth") // a short path: those of sockets are bounded
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	pair := testcert.New(t).Server(t)
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	must(t, err)
	secure, err := sidecar.ServeHealth(t.Context(), sidecar.Config{ // the metrics of TLS
		Listen: "127.0.0.1:0", Registerer: reg, Gatherer: reg,
		TLS: func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} },
	}, func() error { return nil })
	must(t, err)
	t.Cleanup(func() { must(t, secure.Close()) })
	server := sidecar.New(sidecar.Config{
		Options: instance.Options{
			Endpoints: []string{etcd.Endpoint()}, Host: "one", StateDir: filepath.Join(dir, "state"),
		},
		Listen: "127.0.0.1:0", Socket: filepath.Join(dir, "berth.sock"), DrainTimeout: -1,
		Registerer: reg, Gatherer: reg,
	})
	must(t, server.Listen(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(context.Background()) }()
	c, err = client.Dial("unix://"+filepath.Join(dir, "berth.sock"), "")
	must(t, err)
	t.Cleanup(func() {
		c.Close()
		server.Stop(sidecar.Revoke)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the sidecar is ready", func() bool { return c.Ready(t.Context()) == nil })
	return "http://" + server.Addr().String(), c
}

// lead runs a coordinator.
func lead(t *testing.T, etcd *embed.Server, reg prometheus.Registerer) {
	t.Helper()
	c := coordinator.New(coordinator.Config{
		Backend: embedtest.Client(t, etcd), Keys: store.NewKeys(store.DefaultPrefix), Host: "one", Registerer: reg,
	})
	until(t, func(ctx context.Context) { _ = c.Run(ctx) })
}

// until runs something while a test runs.
func until(t *testing.T, f func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// work runs a worker.
func work(t *testing.T, etcd *embed.Server, reg prometheus.Registerer) {
	t.Helper()
	client, err := instance.Open(t.Context(), instance.Options{
		Endpoints: []string{etcd.Endpoint()}, Host: "two", Instance: worker.Role, Role: worker.Role, Capacity: 2, Registerer: reg,
	})
	must(t, err)
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	w := worker.New(worker.Config{
		Client: client, Queues: []string{step.DefaultQueue}, Concurrency: 2, Runner: noRunner{}, Dir: t.TempDir(), Registerer: reg,
	})
	until(t, func(ctx context.Context) { _ = w.Run(ctx) })
}

// noRunner runs nothing, and is done.
type noRunner struct{}

func (noRunner) Start(string, *step.Taken, time.Duration, time.Duration) (worker.Job, error) {
	return noJob{}, nil
}
func (noRunner) Open(string, *step.Taken) (worker.Job, error) { return nil, nil }

type noJob struct{}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (noJob) Done() <-chan struct{} { return closed }
func (noJob) Outcome() step.Outcome { return step.Outcome{Status: step.Succeeded} }
func (noJob) Output(int) []byte     { return nil }
func (noJob) Stop(string)           {}
func (noJob) Extend(time.Duration)  {}
func (noJob) Close()                {}

// runSteps has a run of two step instances done.
func runSteps(t *testing.T, etcd *embed.Server) {
	t.Helper()
	b, keys := embedtest.Client(t, etcd), store.NewKeys(store.DefaultPrefix)
	runs := run.Store{Backend: b, Keys: keys, Journal: run.NewJournal(b, keys, "test/test", 0)}
	steps := step.Store{Backend: b, Keys: keys, Journal: runs.Journal, Group: &store.Group{}}
	g, err := step.NewGraph([]step.Spec{{Name: "a", Command: []string{"true"}}, {
		Name: "b", Command: []string{"true"}, Needs: []string{"a"}, Pools: map[string]int{"db": 1},
	}})
	must(t, err)
	_, _, err = steps.Submit(t.Context(), runs, "r", run.Spec{}, g)
	must(t, err)
	eventually(t, "the run has succeeded", func() bool {
		r, err := runs.Get(t.Context(), "r")
		return err == nil && r.Status == run.Succeeded
	})
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}
