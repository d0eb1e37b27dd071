package source

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/internal/testlog"
)

// rig is sources on one stand-in for etcd, on a fake clock.
type rig struct {
	t    *testing.T
	root *storetest.Backend
	keys store.Keys
	Store
	runs run.Store
	log  testlog.Buffer

	specs Spec
	begun time.Time

	mu     sync.Mutex    // guards what follows
	output string        // what is listed
	err    error         // why nothing is
	hang   chan struct{} // a look waits for it, if there is one
	looks  []string      // who has looked, and when
}

func inRig(t *testing.T, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		root := storetest.NewBackend(storetest.New(storetest.Options{}))
		t.Cleanup(root.Close)
		keys := store.NewKeys("/b/")
		r := &rig{t: t, root: root, keys: keys, Store: Store{root, keys}, begun: time.Now(), specs: testSpec()}
		r.runs = run.Store{Backend: root, Keys: keys, Journal: run.NewJournal(root, keys, "test/test", 0)}
		r.specs.Steps = []step.Spec{{Name: "load", Command: []string{"load", "{{.item}}"}}}
		f(t, r)
	})
}

// process is one of a source.
type process struct {
	*Source
	by   *storetest.Backend
	reg  *prometheus.Registry
	stop func()
}

// source starts a process that stops when the test ends.
func (r *rig) source(host string) *process {
	by, reg := r.root.Peer(), prometheus.NewRegistry()
	s := New(Config{
		Backend: by, Keys: r.keys, Spec: r.specs, Host: host, Logger: newLogger(&r.log), Registerer: reg,
		List: func(ctx context.Context) ([]byte, error) {
			r.mu.Lock()
			output, err, hang := r.output, r.err, r.hang
			r.looks = append(r.looks, host+time.Since(r.begun).Round(time.Second).String())
			r.mu.Unlock()
			if hang != nil {
				select {
				case <-hang:
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			return []byte(output), err
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop := func() {
		if cancel(); !stopped {
			if err := <-done; !errors.Is(err, context.Canceled) {
				r.t.Errorf("Run ended with %v", err)
			}
		}
		stopped = true
	}
	r.t.Cleanup(func() { stop(); by.Close() })
	r.wait(time.Second)
	return &process{s, by, reg, stop}
}

// metric returns the value of a series, given as a name and the value of its label
// besides that of the source, if it has one.
func (p *process) metric(series string) (value float64) {
	families, err := p.reg.Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		for _, m := range f.Metric {
			name, ours := f.GetName(), false
			for _, l := range m.Label {
				if l.GetName() == "source" {
					ours = l.GetValue() == p.cfg.Spec.Name
				} else {
					name += " " + l.GetValue()
				}
			}
			if name == series && ours {
				value += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return value
}

// wait lets time pass, and then everything come to rest.
func (r *rig) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// wantRuns checks which runs there are, in the order of the queue.
func (r *rig) wantRuns(want ...string) {
	r.t.Helper()
	all, err := r.runs.All(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	var got []string
	for _, q := range all.Queue() {
		got = append(got, q.ID)
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("runs %q, want %q", got, want)
	}
}

// lists has looks list something from now on, or fail.
func (r *rig) lists(output string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.output, r.err = output, err
}

// looked returns who has looked when, since it was asked last.
func (r *rig) looked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.looks
	r.looks = nil
	return all
}

// wantPolls checks who has looked when, since it was asked last.
func (r *rig) wantPolls(want ...string) {
	r.t.Helper()
	if got := r.looked(); !slices.Equal(got, want) {
		r.t.Errorf("looks %q, want %q", got, want)
	}
}

func (r *rig) last() Poll {
	r.t.Helper()
	o, err := r.Get(r.t.Context(), r.specs.Name)
	if err != nil || o.Last == nil {
		r.t.Fatalf("no look: %+v, %v", o, err)
	}
	return *o.Last
}

// forgetRun does what a coordinator does when a run is old.
func (r *rig) forgetRun(id string) {
	r.t.Helper()
	r.txn(store.Delete(r.keys.Run(id)), store.Delete(r.keys.Graph(id)), store.DeleteAll(r.keys.Works(id)))
}

func (r *rig) txn(ops ...*pb.RequestOp) {
	r.t.Helper()
	if _, err := r.root.Txn(r.t.Context(), &pb.TxnRequest{Success: ops}); err != nil {
		r.t.Fatal(err)
	}
}

// marked are the ids that are marked.
func (r *rig) marked() (all []string) {
	r.root.Do(func(e *storetest.Etcd) {
		for kv := range e.All(r.keys.DedupRecords(r.specs.Name)) {
			all = append(all, strings.TrimPrefix(string(kv.Key), r.keys.DedupRecords(r.specs.Name)))
		}
	})
	return all
}
