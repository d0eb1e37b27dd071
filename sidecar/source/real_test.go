package source

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// countRuns counts how often each run is made.
func countRuns(keys store.Keys, made map[string]int) func(int64, []*mvccpb.Event, *pb.TxnRequest) {
	return func(rev int64, events []*mvccpb.Event, _ *pb.TxnRequest) {
		for _, ev := range events {
			key := string(ev.Kv.Key)
			if len(key) > len(keys.Runs()) && key[:len(keys.Runs())] == keys.Runs() && ev.Type == mvccpb.Event_PUT && ev.Kv.CreateRevision == rev {
				made[key]++
			}
		}
	}
}

// The same with a real etcd and a real command: files of a folder become runs, the next
// process takes over, and what is gone is deleted with the source.
func TestARealEtcdAndARealCommand(t *testing.T) {
	b := embedtest.Client(t, embedtest.New(t))
	keys := store.NewKeys("/b/")
	dir := t.TempDir()
	spec := testSpec()
	spec.Interval = MaxInterval // it is woken
	spec.Steps = []step.Spec{{Name: "load", Command: []string{"load", "{{.item}}"}}}
	command := Command{Argv: []string{"ls", dir}, Env: os.Environ(), Timeout: time.Minute}
	runs := run.Store{Backend: b, Keys: keys, Journal: run.NewJournal(b, keys, "test/test", 0)}
	all := Store{b, keys}
	start := func() (stop func()) {
		s := New(Config{Backend: b, Keys: keys, Spec: spec, List: command.List, Host: "x"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		return func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Run ended with %v", err)
			}
		}
	}
	file := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func() Poll {
		// Put as Wake does, which wants to know of the source first.
		rev, err := store.Commit(t.Context(), b, nil, store.Put(keys.SourceWake("inbox"), store.Encode(wake{V: store.Now}), 0))
		if err != nil {
			t.Fatal(err)
		}
		l, err := all.Await(t.Context(), "inbox", rev)
		if err != nil || l.Error != "" {
			t.Fatal(l, err)
		}
		return l
	}
	file("a")
	file("b c")
	one := start()
	if l := look(); l.Listed != 2 || l.Refused != 1 {
		t.Errorf("%+v", l)
	}
	two := start()
	for {
		if o, err := all.Get(t.Context(), "inbox"); err != nil || len(o.Candidates) == 2 {
			break
		}
	}
	one()
	file("d")
	look()
	o, err := all.Get(t.Context(), "inbox")
	if err != nil || len(o.Candidates) != 1 || o.Known != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := all.Wake(t.Context(), "inbox"); err != nil {
		t.Error(err)
	}
	two()
	if _, err := all.Wake(t.Context(), "inbox"); problem.CodeOf(err) != problem.Precondition {
		t.Errorf("no process runs it: %v", err)
	}
	made, err := runs.All(t.Context())
	if err != nil || len(made.Runs) != 2 || made.Runs[0].ID != "inbox.a" || made.Runs[1].ID != "inbox.d" || made.Runs[1].Status != run.Queued {
		t.Errorf("%+v, %v", made.Runs, err)
	}
	if err := all.Delete(t.Context(), "inbox"); err != nil {
		t.Error(err)
	}
	if left, err := all.All(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%+v, %v", left, err)
	}
}
