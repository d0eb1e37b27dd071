package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar/ui"
)

// counting is a backend that counts what is asked of etcd.
type counting struct {
	store.Backend
	mu   sync.Mutex
	asks map[string]int // by what was read, and how
}

func (c *counting) count(kind string, key, end []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(end) > 0 {
		kind += " all of"
	}
	c.asks[kind+" "+string(key)]++
}

func (c *counting) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if r.Key[len(r.Key)-1] == 0 {
		c.count("read more of", []byte(strings.Split(string(r.Key), "/runs/")[0]+"/runs/"), r.RangeEnd)
	} else {
		c.count("read", r.Key, r.RangeEnd)
	}
	return c.Backend.Range(ctx, r)
}

func (c *counting) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	for _, op := range r.Success {
		if get := op.GetRequestRange(); get != nil {
			c.count("get", get.Key, get.RangeEnd)
		}
	}
	c.count("txn", nil, nil)
	return c.Backend.Txn(ctx, r)
}

func (c *counting) Watch(ctx context.Context, keys store.KeyRange, from int64) store.Watch {
	c.count("watch", []byte(keys.Key), nil)
	return c.Backend.Watch(ctx, keys, from)
}

// taken returns what was counted since it was last called.
func (c *counting) taken() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	asks := c.asks
	c.asks = map[string]int{}
	return asks
}

// crowd is many queued runs, and the pages of them.
type crowd struct {
	t     testing.TB
	mux   *http.ServeMux
	asked *counting
	store run.Store // another process's
}

// newCrowd queues so many runs, of which every tenth has steps.
func newCrowd(t testing.TB, runs int) *crowd {
	t.Helper()
	etcd := embedtest.New(t)
	client, err := instance.Open(t.Context(), instance.Options{Endpoints: []string{etcd.Endpoint()}, Host: "one"})
	if err != nil {
		t.Fatal(err)
	}
	backend, keys := client.Store()
	c := &crowd{t: t, mux: http.NewServeMux(), asked: &counting{Backend: backend, asks: map[string]int{}}}
	c.store = run.Store{Backend: embedtest.Client(t, etcd), Keys: keys}

	g, err := step.NewGraph([]step.Spec{{Name: "extract", External: true}, {Name: "load", External: true, Needs: []string{"extract"}}})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]byte{}
	for i := range runs {
		id := fmt.Sprintf("run-%05d", i)
		values[keys.Run(id)] = queuedRecord(func(r *run.Record) {
			block := run.TagLimitBlock("env", "prod", 2, 2)
			r.Name, r.Priority, r.Block = fmt.Sprintf("Job %05d", i), i%5, &block
			r.Tags = map[string]string{"env": "prod", "team": fmt.Sprint("t", i%20)}
			if i%10 == 4 {
				r.Steps, r.Digest = 2, "d"
			}
		})
		if i%10 == 4 {
			values[keys.Graph(id)] = g.Encode()
		}
	}
	fill(t, c.store.Backend, values)

	session := &ui.Session{
		Client: client,
		Runs:   run.Store{Backend: c.asked, Keys: keys},
		Steps:  step.Store{Backend: c.asked, Keys: keys},
	}
	pages := ui.New(ui.Config{Ready: func() (*ui.Session, error) { return session, nil }})
	pages.Register(c.mux)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		pages.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		pages.Close()
		if err := client.Leave(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// get renders a page.
func (c *crowd) get(path string) string {
	w := httptest.NewRecorder()
	c.mux.ServeHTTP(w, httptest.NewRequestWithContext(accesstest.As(c.t.Context(), accesstest.Admin), "GET", path, nil))
	if w.Code != http.StatusOK {
		c.t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// many is how many runs are fluid.
const many = 10_000

// crowdPages are pages of many runs.
var crowdPages = map[string]string{
	"queue":          "/queue",
	"queue deep":     "/queue?after=2~1~0~0~run-05000",
	"queue by words": "/queue?q=job+0777",
	"queue by tag":   "/queue?tag=team%3Dt7",
	"runs":           "/runs",
	"runs by status": "/runs?status=running",
}

// However many pages are rendered, all runs are read once, when the first is.
func TestPagesOfManyRunsAreRenderedFromMemory(t *testing.T) {
	c := newCrowd(t, many)
	c.asked.taken()
	first := parse(t, c.get("/queue"))
	if got := text(first.must("waiting")); !strings.Contains(got, "1–50 of 10,000") || len(first.runs()) != 50 || first.runs()[0] != "run-00004" {
		t.Fatal(got)
	}
	asked := c.asked.taken()
	if asked["read all of /berth/runs/"] != 1 || asked["read more of all of /berth/runs/"] == 0 {
		t.Errorf("the first look asked for %v", asked)
	}

	// The pages are rendered until at least two seconds of looks have passed: that is
	// counted, and nothing else depends on it.
	begun, renders := time.Now(), 0
	for ; renders < 20 || time.Since(begun) < 2*time.Second; renders++ {
		for _, path := range crowdPages {
			c.get(path)
		}
	}
	passed := int(time.Since(begun)/time.Second) + 2
	total := 0
	for what, n := range c.asked.taken() {
		total += n
		switch {
		case strings.Contains(what, "all of /berth/runs/") || strings.HasPrefix(what, "watch"):
			t.Errorf("%d pages asked %d times: %s", renders, n, what)
		case strings.HasPrefix(what, "get /berth/steps/") && n > 1:
			t.Errorf("the steps of a run were read %d times: %s", n, what)
		case strings.HasPrefix(what, "read ") && n > passed:
			t.Errorf("in %d s it was asked %d times: %s", passed, n, what)
		}
	}
	t.Logf("%d pages in %s asked etcd for %d things", renders*len(crowdPages), time.Since(begun).Round(time.Millisecond), total)

	// And they are rendered as things are.
	if _, err := store.Commit(t.Context(), c.store.Backend, nil, store.Put(c.store.Keys.Run("urgent"), queuedRecord(func(r *run.Record) { r.Priority = 999 }), 0)); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); parse(t, c.get("/queue")).runs()[0] != "urgent"; {
		if time.Since(begun) > patience {
			t.Fatal("a run that came is not shown")
		}
	}
}

func BenchmarkPageOfManyRuns(b *testing.B) {
	c := newCrowd(b, many)
	for name, path := range crowdPages {
		b.Run(name, func(b *testing.B) {
			c.get(path)
			for b.Loop() {
				c.get(path)
			}
		})
	}
}
