package ui_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/browser"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/worker"
)

// browserSite is a site with all that pages can show, and a browser in front of it.
type browserSite struct {
	*runSite
	*browser.Browser
	t *testing.T
}

// inFull skips a test in the short run, which is for the race detector: it finds races of the
// server, which the tests of handlers and of live pages exercise as much.
func inFull(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it tests the browser; in a short run those of live pages do")
	}
}

func newBrowserSite(t *testing.T, change ...func(*sidecar.Config)) *browserSite {
	t.Helper()
	b := browser.Open(t) // first: without one there is nothing to start
	h := &browserSite{runSite: newRunSite(t, change...), Browser: b, t: t}
	t.Cleanup(func() { b.Go("about:blank") }) // before the site ends, which the page would complain of
	return h
}

// to opens a page of the site.
func (h *browserSite) to(path string) {
	h.t.Helper()
	h.Go(h.base + path)
	if got := h.Status(); got != 200 {
		h.t.Fatalf("%s: status %d: %s", path, got, h.Text("body"))
	}
}

// wantText wants texts to be read in an element.
func (h *browserSite) wantText(selector string, parts ...string) {
	h.t.Helper()
	got := strings.Join(strings.Fields(h.Text(selector)), " ")
	for _, part := range parts {
		if !strings.Contains(got, part) {
			h.t.Errorf("%s says %q, and not %q", selector, got, part)
		}
	}
}

// instance is a process on some host, until the test ends.
func (h *browserSite) instance(o instance.Options) *instance.Client {
	h.t.Helper()
	o.Endpoints = []string{h.etcd.Endpoint()}
	c, err := instance.Open(h.t.Context(), o)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Leave() }) // what it holds goes with its etcd
	return c
}

// holds has an instance take slots.
func (h *browserSite) holds(c *instance.Client, id string, slots instance.Slots, more ...instance.ClaimOption) *instance.Claim {
	h.t.Helper()
	for name := range slots {
		h.eventually("pool "+name+" is seen by "+c.Host(), func() bool { return c.HasPool(name) })
	}
	claim, err := c.Claim(h.t.Context(), slots, append(more, instance.WithID(id), instance.WithWait(patience))...)
	if err != nil {
		h.t.Fatal(err)
	}
	return claim
}

// works starts a worker on a host, and returns what its jobs do.
func (h *browserSite) works(host string, concurrency int) *stage {
	h.t.Helper()
	queues := []string{step.DefaultQueue}
	c := h.instance(instance.Options{Host: host, Instance: worker.Role, Role: worker.Role, Capacity: concurrency, Queues: queues, Version: "v0.9.0"})
	s := &stage{jobs: map[string]*job{}}
	w := worker.New(worker.Config{Client: c, Queues: queues, Concurrency: concurrency, Runner: s, Dir: h.t.TempDir()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	h.t.Cleanup(func() {
		ended := w.Drain(ctx)
		w.Stop(ctx)
		<-ended
		cancel()
		<-done
	})
	return s
}

// stage is where the jobs of a worker are, which end as a test says.
type stage struct {
	mu   sync.Mutex // guards what follows
	jobs map[string]*job
}

// job is an attempt on a stage.
type job struct {
	done    chan struct{}
	once    sync.Once
	outcome step.Outcome

	mu     sync.Mutex // guards output
	output []byte
}

// write has the attempt write something.
func (j *job) write(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.output = fmt.Appendf(j.output, format, args...)
}

// Start begins an attempt.
func (s *stage) Start(_ string, t *step.Taken, _, _ time.Duration) (worker.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := &job{done: make(chan struct{})}
	s.jobs[fmt.Sprintf("%s/%s/%d", t.Run, t.Step, t.Index)] = j
	return j, nil
}

// Open finds nothing: nothing is older than its stage.
func (s *stage) Open(string, *step.Taken) (worker.Job, error) { return nil, nil }

// runs tells which job an instance has, nil if none.
func (s *stage) runs(id string) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs[id]
}

func (j *job) end(o step.Outcome) {
	j.once.Do(func() {
		j.outcome = o
		close(j.done)
	})
}

func (j *job) Done() <-chan struct{} { return j.done }
func (j *job) Outcome() step.Outcome { return j.outcome }
func (j *job) Output(int) []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append(slices.Clone(j.output), j.outcome.Output...)
}
func (j *job) Stop(reason string) {
	j.end(step.Outcome{Status: step.Failed, ExitCode: 143, Error: "it was stopped: " + reason})
}
func (j *job) Extend(time.Duration) {}
func (j *job) Close()               {}

// ends ends an instance that runs on a stage, as soon as it does.
func (h *browserSite) ends(s *stage, id string, o step.Outcome) {
	h.t.Helper()
	h.eventually(id+" runs", func() bool { return s.runs(id) != nil })
	s.runs(id).end(o)
}

func succeeded(output string, args ...any) step.Outcome {
	return step.Outcome{Status: step.Succeeded, Output: []byte(fmt.Sprintf(output, args...))}
}

// Eval is the value of an expression in the page.
func (h *browserSite) Eval(expression string) any {
	h.t.Helper()
	return browser.Eval[any](h.Browser, expression)
}
