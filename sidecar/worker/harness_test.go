package worker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// within bounds each wait of a test.
const within = 20 * time.Second

// yard is an etcd with a coordinator, and what is done by hand to its runs.
type yard struct {
	t    *testing.T
	etcd *embed.Server
	runs run.Store
	step step.Store
	// timeout, if it is not 0, bounds how long workers wait for slots.
	timeout time.Duration
	// from, if it is not nil, are the submitters whose commands workers run.
	from access.Patterns
	// tracer, if it is not nil, makes the spans of workers.
	tracer *trace.Tracer
	// log, if it is not nil, is that of workers.
	log hclog.Logger
}

func newYard(t *testing.T) *yard {
	t.Helper()
	y := &yard{t: t, etcd: embedtest.New(t)}
	b, keys := embedtest.Client(t, y.etcd), store.NewKeys(store.DefaultPrefix)
	y.runs = run.Store{Backend: b, Keys: keys, Journal: run.NewJournal(b, keys, "test/test", 0)}
	y.step = step.Store{Backend: b, Keys: keys, Journal: y.runs.Journal, Group: &store.Group{}}
	c := coordinator.New(coordinator.Config{Backend: embedtest.Client(t, y.etcd), Keys: keys, Host: "lead", CompactInterval: -1})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return y
}

// fan is a step with so many items, of which so many may be in flight.
func fan(name string, items, window int, change ...func(*step.Spec)) step.Spec {
	s := step.Spec{Name: name, Command: []string{"true"}, Concurrency: window}
	if items > 0 {
		s.Items = &step.Items{Range: &step.Range{From: 0, To: int64(items - 1), By: 1}}
	}
	for _, f := range change {
		f(&s)
	}
	return s
}

func (y *yard) submit(id string, specs ...step.Spec) {
	y.t.Helper()
	g, err := step.NewGraph(specs)
	if err == nil {
		_, _, err = y.step.Submit(y.t.Context(), y.runs, id, run.Spec{}, g)
	}
	if err != nil {
		y.t.Fatal(err)
	}
}

func (y *yard) pool(name string, limit int) {
	y.t.Helper()
	if _, err := (registry.Registry{Backend: y.runs.Backend, Keys: y.runs.Keys}).Set(y.t.Context(), name, pool.Change{Limit: &limit}); err != nil {
		y.t.Fatal(err)
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !so(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// is waits until a run has a status.
func (y *yard) is(id string, want run.Status) {
	y.t.Helper()
	eventually(y.t, fmt.Sprintf("run %s is %s", id, want), func() bool {
		r, err := y.runs.Get(y.t.Context(), id)
		return err == nil && r.Status == want
	})
}

// status of an instance.
func (y *yard) status(id string) step.Status {
	y.t.Helper()
	sid, err := store.ParseStepID(id)
	if err != nil {
		y.t.Fatal(err)
	}
	i, err := y.step.Get(y.t.Context(), sid)
	if err != nil {
		y.t.Fatal(err)
	}
	return i.Status
}

// statuses counts the instances of a step.
func (y *yard) statuses(run, name string, n int) map[step.Status]int {
	y.t.Helper()
	all := map[step.Status]int{}
	for i := range n {
		all[y.status(store.StepID{Run: run, Step: name, Index: i}.String())]++
	}
	return all
}

// stage is a runner whose jobs do what a test tells them.
type stage struct {
	mu   sync.Mutex // guards what follows
	jobs map[string]*job
	// ended are those that have ended: what a command leaves behind is there until it is removed.
	ended map[string]*job
	// auto ends each at once.
	auto  bool
	seen  []string // in the order of their starts
	most  int      // that ran at a time
	onRun func(*step.Taken)
	// files, if it is not empty, is where the jobs write.
	files string
}

func newStage() *stage {
	return &stage{jobs: map[string]*job{}, ended: map[string]*job{}}
}

// job is an attempt on a stage.
type job struct {
	s       *stage
	name    string
	done    chan struct{}
	outcome step.Outcome
	stopped string
}

func (s *stage) Start(_ string, t *step.Taken, _, _ time.Duration) (Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := &job{s: s, name: t.StepID.String(), done: make(chan struct{})}
	if s.files != "" {
		s.jobs[j.name] = j
		s.seen = append(s.seen, j.name)
		return &filer{j}, nil
	}
	s.seen = append(s.seen, j.name)
	if s.onRun != nil {
		s.onRun(t)
	}
	if s.auto {
		j.outcome.Status = step.Succeeded
		close(j.done)
		return j, nil
	}
	s.jobs[j.name] = j
	s.most = max(s.most, len(s.jobs))
	return j, nil
}

// Open finds a job that was left, even if it has ended since.
func (s *stage) Open(_ string, t *step.Taken) (Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := cmp.Or(s.jobs[t.StepID.String()], s.ended[t.StepID.String()]); j != nil {
		if s.files != "" {
			return &filer{j}, nil
		}
		return j, nil
	}
	return nil, nil
}

func (j *job) Done() <-chan struct{} { return j.done }
func (j *job) Outcome() step.Outcome { return j.outcome }
func (j *job) Output(int) []byte     { return []byte("output of " + j.name + "\n") }
func (j *job) Extend(time.Duration)  {}
func (j *job) Close()                {}

// filer is a job whose output is a file.
type filer struct{ *job }

func (j *filer) File() string { return j.s.file(j.name) }
func (j *filer) Shift() int64 { return 0 }

// file is where a job of a name writes.
func (s *stage) file(name string) string {
	return filepath.Join(s.files, strings.ReplaceAll(name, "/", "-"))
}

// Stop ends a job as a command does that obeys.
func (j *job) Stop(reason string) {
	j.stopped = reason
	j.s.end(j.name, step.Outcome{Status: step.Failed, ExitCode: 143, Error: "it was stopped"})
}

// end ends a job.
func (s *stage) end(name string, o step.Outcome) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[name]
	if j == nil {
		return false
	}
	delete(s.jobs, name)
	s.ended[name] = j
	j.outcome = o
	close(j.done)
	return true
}

// running are the jobs that run.
func (s *stage) running() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.jobs))
}

// runs waits until just these run.
func (s *stage) runs(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	eventually(t, "running are "+strings.Join(want, ", "), func() bool { return slices.Equal(s.running(), want) })
}

// crew is a worker under test.
type crew struct {
	*Worker
	client *instance.Client
	end    context.CancelFunc
	done   chan struct{}
}

// worker starts a worker. The same host and state directory make it the next process of
// the same worker.
func (y *yard) worker(host, dir string, concurrency int, r Runner) *crew {
	y.t.Helper()
	o := instance.Options{Endpoints: []string{y.etcd.Endpoint()}, Host: host, Instance: "worker", Role: Role, Capacity: concurrency, Queues: []string{step.DefaultQueue}}
	o.ClaimTimeout = y.timeout
	folder := ""
	if dir != "" {
		o.StateDir, folder = dir, filepath.Join(dir, "steps")
	}
	client, err := instance.Open(y.t.Context(), o)
	if err != nil {
		y.t.Fatal(err)
	}
	c := &crew{client: client, done: make(chan struct{})}
	cfg := Config{Client: client, Queues: []string{step.DefaultQueue}, Concurrency: concurrency, Runner: r, Dir: folder, CommandsFrom: y.from, Tracer: y.tracer, Logger: y.log}
	if dir != "" {
		cfg.OutputDir, cfg.KeepOutput = OutputFolder(dir, "worker"), 1<<20
	}
	c.Worker = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	go func() {
		defer close(c.done)
		_ = c.Run(ctx)
	}()
	return c
}

// leave ends the process of a worker, which leaves everything to the next.
func (c *crew) leave() {
	c.end()
	<-c.done
	_ = c.client.Leave()
}

// close ends a worker for good.
func (c *crew) close(t *testing.T) {
	t.Helper()
	ended := c.Drain(t.Context())
	c.Stop(t.Context())
	<-ended
	c.end()
	<-c.done
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := c.client.Close(ctx); err != nil {
		t.Error(err)
	}
}
