package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/registry"
)

// faulty is a backend with hooks.
type faulty struct {
	store.Backend
	txn func(ctx context.Context, t *pb.TxnRequest) error
	rng func(ctx context.Context, r *pb.RangeRequest) error
	// dial, if it is not nil, connects the whole worker.
	dial func(ctx context.Context, address string) (net.Conn, error)
}

func (f *faulty) Txn(ctx context.Context, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if f.txn != nil {
		if err := f.txn(ctx, t); err != nil {
			return nil, err
		}
	}
	return f.Backend.Txn(ctx, t)
}

func (f *faulty) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if f.rng != nil {
		if err := f.rng(ctx, r); err != nil {
			return nil, err
		}
	}
	return f.Backend.Range(ctx, r)
}

// wide is how many slots a claim takes that is of more keys than are released together with the
// end of an instance: so that end is written by itself.
const wide = 10_000

// loses has the worker lose the answer to the transaction that takes an instance with its slots:
// so what the instance is to do is read by itself.
func (f *faulty) loses(y *yard, id store.StepID) {
	marker, lost := []byte(y.runs.Keys.ActiveStep("a", id)), &atomic.Bool{}
	taken := func() bool {
		i, err := y.step.Get(context.Background(), id)
		return err != nil || i.Status != step.Scheduled
	}
	f.dial = func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		return &losing{Conn: c, marker: marker, lost: lost, taken: taken}, err
	}
	y.t.Cleanup(func() {
		if !lost.Load() {
			y.t.Error("no answer was lost")
		}
	})
}

// losing is a connection that ends when an answer is to come to the first write with a marker.
type losing struct {
	net.Conn
	marker []byte
	lost   *atomic.Bool // by any connection
	ends   atomic.Bool
	taken  func() bool // what was written has happened
}

func (l *losing) Write(b []byte) (int, error) {
	if bytes.Contains(b, l.marker) && l.lost.CompareAndSwap(false, true) {
		l.ends.Store(true)
	}
	return l.Conn.Write(b)
}

func (l *losing) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if !l.ends.Load() {
		return n, err
	}
	for end := time.Now().Add(within); !l.taken() && time.Now().Before(end); {
		<-time.After(5 * time.Millisecond)
	}
	return 0, errors.Join(io.ErrUnexpectedEOF, l.Close())
}

func (y *yard) faultyWorker(host, dir string, concurrency int, r Runner, f *faulty) *crew {
	y.t.Helper()
	o := instance.Options{Endpoints: []string{y.etcd.Endpoint()}, Host: host, Instance: "worker", Role: Role, Capacity: concurrency, Queues: []string{step.DefaultQueue}, Dial: f.dial}
	client, err := instance.Open(y.t.Context(), o)
	if err != nil {
		y.t.Fatal(err)
	}
	c := &crew{client: client, done: make(chan struct{})}
	c.Worker = New(Config{Client: client, Queues: []string{step.DefaultQueue}, Concurrency: concurrency, Runner: r})
	f.Backend = c.Worker.steps.Backend
	c.Worker.steps.Backend = f
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	go func() {
		defer close(c.done)
		_ = c.Run(ctx)
	}()
	return c
}

// one take that never reached etcd leaves the instance untaken for ever.
func TestALostTakeIsTriedAgain(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	s.auto = true
	var lost atomic.Int32
	f := &faulty{txn: func(_ context.Context, r *pb.TxnRequest) error {
		if strings.Contains(r.String(), "/ready/") && lost.Add(1) == 1 {
			return fmt.Errorf("txn: %w", store.ErrUnavailable)
		}
		return nil
	}}
	w := y.faultyWorker("a", "", 1, s, f)
	defer w.close(t)
	y.submit("r", fan("m", 1, 0))
	y.is("r", run.Succeeded) // waits 20 s: four sweeps
}

// The wait for slots ends just when the slots were granted: the instance FAILS.
func TestLeavingTheLineFailsNothing(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 1)
	reading := make(chan struct{}, 16)
	f := &faulty{rng: func(ctx context.Context, r *pb.RangeRequest) error {
		if strings.HasPrefix(string(r.Key), y.runs.Keys.Works("r")+"slotted") {
			reading <- struct{}{}
			<-time.After(50 * time.Millisecond) // a slow etcd
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		return nil
	}}
	f.loses(y, idOf(t, "r/slotted/000000"))
	w := y.faultyWorker("a", "", 1, s, f)
	defer w.close(t)
	y.submit("r", fan("slotted", 1, 0, func(s *step.Spec) { s.Pools = map[string]int{"db": 1} }))
	select {
	case <-reading: // its slots are taken, what it is to do is being read
	case <-time.After(within):
		t.Fatal("what it is to do is not read")
	}
	_ = w.Drain(t.Context())
	eventually(t, "it is no more running", func() bool { return y.status("r/slotted/000000") != step.Running })
	i, _ := y.step.Get(t.Context(), idOf(t, "r/slotted/000000"))
	if i.Status == step.Failed {
		t.Fatalf("the instance failed, and its run with it, because its worker was drained: %s", i.Error)
	}
}

// the same without a drain: a plain instance that fills the worker.
func TestAPlainInstanceFailsNoSlottedOne(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 1)
	f := &faulty{rng: func(ctx context.Context, r *pb.RangeRequest) error {
		if strings.HasPrefix(string(r.Key), y.runs.Keys.Works("r")) {
			<-time.After(50 * time.Millisecond) // a slow etcd
			return ctx.Err()
		}
		return nil
	}}
	f.loses(y, idOf(t, "r/slotted/000000"))
	w := y.faultyWorker("a", "", 1, s, f)
	defer w.close(t)
	y.submit("r", fan("slotted", 1, 0, func(s *step.Spec) { s.Pools = map[string]int{"db": 1} }), fan("plain", 1, 0))
	eventually(t, "plain runs", func() bool { return len(s.running()) > 0 || y.status("r/slotted/000000") == step.Failed })
	eventually(t, "slotted moved on", func() bool {
		for _, id := range s.running() {
			s.end(id, succeeded)
		}
		st := y.status("r/slotted/000000")
		return st == step.Succeeded || st == step.Failed
	})
	if i, _ := y.step.Get(t.Context(), idOf(t, "r/slotted/000000")); i.Status == step.Failed {
		t.Fatalf("failed: %s", i.Error)
	}
}

// one read without an answer fails an item for good.
func TestAReadWithoutAnAnswerFailsNothing(t *testing.T) {
	y, s := newYard(t), newStage()
	s.auto = true
	y.pool("db", 1)
	var n atomic.Int32
	f := &faulty{rng: func(ctx context.Context, r *pb.RangeRequest) error {
		if strings.HasPrefix(string(r.Key), y.runs.Keys.Works("r")) && n.Add(1) == 1 {
			return fmt.Errorf("range: %w", store.ErrUnavailable)
		}
		return nil
	}}
	f.loses(y, idOf(t, "r/slotted/000000"))
	w := y.faultyWorker("a", "", 1, s, f)
	defer w.close(t)
	y.submit("r", fan("slotted", 1, 0, func(s *step.Spec) { s.Pools = map[string]int{"db": 1} }))
	eventually(t, "it has ended", func() bool { return y.status("r/slotted/000000").Ended() })
	if i, _ := y.step.Get(t.Context(), idOf(t, "r/slotted/000000")); i.Status == step.Failed {
		t.Fatalf("failed: %s", i.Error)
	}
}

// names that are allowed make folder names that no file system takes.
func TestLongNamesRun(t *testing.T) {
	y, s := newYard(t), newStage()
	s.auto = true
	w := y.worker("a", t.TempDir(), 1, s)
	defer w.close(t)
	id := strings.Repeat("r", 64)
	y.submit(id, fan(strings.Repeat("s", 60), 1, 0))
	y.is(id, run.Succeeded)
}

// instances of a pool that is paused hold up those of another.
func TestAFullPoolHoldsUpNoOther(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("full", 0)
	y.pool("free", 5)
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("one", fan("m", 4, 0, func(s *step.Spec) { s.Pools = map[string]int{"full": 1} }))
	eventually(t, "published", func() bool { return y.status("one/m/000003") == step.Scheduled })
	y.submit("two", fan("m", 1, 0, func(s *step.Spec) { s.Pools = map[string]int{"free": 1} }))
	s.runs(t, "two/m/000000")
}

// instances of a pool that was deleted hold up all others with slots.
func TestADeletedPoolHoldsUpNoOther(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("gone", 1)
	y.pool("free", 5)
	y.submit("one", fan("m", 4, 0, func(s *step.Spec) { s.Pools = map[string]int{"gone": 1} }))
	eventually(t, "published", func() bool { return y.status("one/m/000003") == step.Scheduled })
	if _, err := (registry.Registry{Backend: y.runs.Backend, Keys: y.runs.Keys}).Delete(t.Context(), "gone", nil); err != nil {
		t.Fatal(err)
	}
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("two", fan("m", 1, 0, func(s *step.Spec) { s.Pools = map[string]int{"free": 1} }))
	s.runs(t, "two/m/000000")
}

// etcd goes away while a claim is released; the worker is asked to end.
func TestAWorkerEndsWhileEtcdIsAway(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	y.pool("db", wide)
	finished := make(chan struct{})
	var once atomic.Bool
	f := &faulty{}
	w := y.faultyWorker("a", "", 1, s, f)
	real := f.Backend
	f.Backend = &after{Backend: real, done: func(r *pb.TxnRequest) {
		if strings.Contains(r.String(), "end_fence") && once.CompareAndSwap(false, true) {
			_ = y.etcd.Close()
			close(finished)
		}
	}}
	y.submit("r", fan("slotted", 1, 0, func(s *step.Spec) { s.Pools = map[string]int{"db": wide} }))
	s.runs(t, "r/slotted/000000")
	s.end("r/slotted/000000", succeeded)
	<-finished
	<-time.After(500 * time.Millisecond)
	w.end()
	select {
	case <-w.done:
	case <-time.After(40 * time.Second):
		t.Error("the worker does not end while etcd is away")
	}
	_ = w.client.Leave()
	<-w.done
}

type after struct {
	store.Backend
	done func(*pb.TxnRequest)
}

func (a *after) Txn(ctx context.Context, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	resp, err := a.Backend.Txn(ctx, t)
	a.done(t)
	return resp, err
}
