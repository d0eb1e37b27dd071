package coordinator

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// fleet is candidates on one stand-in for etcd, on a fake clock, with a referee who
// sees every revision.
type fleet struct {
	t    *testing.T
	root *storetest.Backend
	keys store.Keys
	run.Store
	referee *referee
}

// candidate is one of them, through a client of its own.
type candidate struct {
	*Coordinator
	by   *storetest.Backend
	stop func()
}

func inFleet(t *testing.T, f func(t *testing.T, fl *fleet)) {
	synctest.Test(t, func(t *testing.T) {
		root := storetest.NewBackend(storetest.New(storetest.Options{}))
		t.Cleanup(root.Close)
		keys := store.NewKeys("/b/")
		fl := &fleet{t: t, root: root, keys: keys, referee: newReferee(t, keys)}
		fl.Store = run.Store{Backend: root, Keys: keys, Journal: run.NewJournal(root, keys, "test/test", 0)}
		root.Do(func(e *storetest.Etcd) { e.OnCommit(fl.referee.committed) })
		f(t, fl)
	})
}

// candidate starts one that stops when the test ends.
func (fl *fleet) candidate(host string, change ...func(*Config)) *candidate {
	by := fl.root.Peer()
	cfg := Config{Backend: by, Keys: fl.keys, Host: host}
	for _, f := range change {
		f(&cfg)
	}
	c := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	stop := func() { cancel(); <-done }
	fl.t.Cleanup(func() { stop(); by.Close() })
	fl.proceed()
	return &candidate{c, by, stop}
}

// proceed lets each process do what there is to do now, in some ticks.
func (fl *fleet) proceed() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (fl *fleet) submit(id string, change ...func(*run.Spec)) {
	fl.t.Helper()
	var s run.Spec
	for _, f := range change {
		f(&s)
	}
	if _, _, err := fl.Submit(fl.t.Context(), id, s); err != nil {
		fl.t.Fatal(err)
	}
}

func tag(key, value string) func(*run.Spec) {
	return func(s *run.Spec) {
		if s.Tags == nil {
			s.Tags = map[string]string{}
		}
		s.Tags[key] = value
	}
}

func priority(p int) func(*run.Spec) { return func(s *run.Spec) { s.Priority = p } }
func retries(n int) func(*run.Spec)  { return func(s *run.Spec) { s.Retries = n } }

// limit sets limits.
func (fl *fleet) limit(most int, tags ...run.TagLimit) {
	fl.t.Helper()
	if _, _, err := fl.SetLimits(fl.t.Context(), run.LimitsChange{MaxConcurrentRuns: &most, Tags: tags}); err != nil {
		fl.t.Fatal(err)
	}
}

// executor is a host's lease, on which its executors are seen.
func (fl *fleet) executor() store.LeaseID {
	fl.t.Helper()
	id, _, err := fl.root.Grant(fl.t.Context(), time.Hour)
	if err != nil {
		fl.t.Fatal(err)
	}
	return id
}

// onLease is a [run.Home] for runs without pools.
type onLease struct {
	run.Home
	lease store.LeaseID
}

func (l onLease) Lease(context.Context) (store.LeaseID, error) { return l.lease, nil }

func (fl *fleet) start(id string, lease store.LeaseID) *run.Run {
	fl.t.Helper()
	r, err := fl.Start(fl.t.Context(), id, run.Executor{Host: "x", Instance: "sidecar"}, onLease{lease: lease})
	if err != nil {
		fl.t.Fatal(err)
	}
	return r
}

func (fl *fleet) finish(r *run.Run) {
	fl.t.Helper()
	if _, err := fl.Finish(fl.t.Context(), r.ID, r.Fence(), run.Succeeded, "", nil); err != nil {
		fl.t.Fatal(err)
	}
}

// lose ends the executor of a run.
func (fl *fleet) lose(id string) { fl.txn(store.Delete(fl.keys.ActiveRun("x", id))) }

func (fl *fleet) put(key, value string) { fl.txn(store.Put(key, []byte(value), 0)) }

func (fl *fleet) txn(ops ...*pb.RequestOp) {
	fl.t.Helper()
	if _, err := fl.root.Txn(fl.t.Context(), &pb.TxnRequest{Success: ops}); err != nil {
		fl.t.Fatal(err)
	}
}

// revision is that of etcd now, and since what has happened from another on.
func (fl *fleet) revision() (rev int64) {
	fl.root.Do(func(e *storetest.Etcd) { rev = e.Revision() })
	return rev
}

func (fl *fleet) since(rev int64) (all []storetest.Revision, err error) {
	fl.root.Do(func(e *storetest.Etcd) { all, err = e.Since(fl.keys.Prefix(), rev) })
	return all, err
}

// is checks the status of runs, and the reason of those that wait.
func (fl *fleet) is(want map[string]string) {
	fl.t.Helper()
	fl.proceed()
	for id, status := range want {
		r, err := fl.Get(fl.t.Context(), id)
		if err != nil {
			fl.t.Error(err)
			continue
		}
		got := string(r.Status)
		if r.Block != nil {
			got += ": " + r.Block.Text
		}
		if got != status {
			fl.t.Errorf("run %s is %q, want %q", id, got, status)
		}
	}
}

// referee checks every revision: limits hold whenever a run is admitted, and
// statuses come in their order.
type referee struct {
	t      *testing.T
	keys   store.Keys
	limits run.Limits
	runs   map[string]*run.Run
	admits map[string]int
}

func newReferee(t *testing.T, keys store.Keys) *referee {
	return &referee{t: t, keys: keys, limits: run.DefaultLimits(), runs: map[string]*run.Run{}, admits: map[string]int{}}
}

func (f *referee) committed(rev int64, events []*mvccpb.Event, _ *pb.TxnRequest) {
	admitted := false
	for _, ev := range events {
		key := string(ev.Kv.Key)
		switch {
		case key == f.keys.Limits() && ev.Type == mvccpb.Event_PUT:
			if l, err := run.DecodeLimits(key, ev.Kv.Value); err == nil {
				f.limits = l
			}
		case len(key) > len(f.keys.Runs()) && key[:len(f.keys.Runs())] == f.keys.Runs():
			admitted = f.run(rev, key[len(f.keys.Runs()):], ev) || admitted
		}
	}
	if admitted {
		f.check(rev)
	}
}

// run takes what became of a run, and reports whether it was admitted.
func (f *referee) run(rev int64, id string, ev *mvccpb.Event) (admitted bool) {
	old := f.runs[id]
	delete(f.runs, id)
	if ev.Type == mvccpb.Event_DELETE {
		return false
	}
	r, err := run.Decode(f.keys, ev.Kv)
	if err != nil {
		return false // by a test
	}
	f.runs[id] = r
	if old == nil || old.Status == r.Status {
		return false
	}
	legal := map[run.Status][]run.Status{
		run.Storing:    {run.Queued, run.Canceled},
		run.Queued:     {run.NotStarted, run.Canceled},
		run.NotStarted: {run.Running, run.Queued, run.Failed, run.Canceled},
		run.Running:    {run.Queued, run.Succeeded, run.Failed, run.Canceled},
		run.Failed:     {run.Queued}, // tried again, as the next
		run.Canceled:   {run.Queued},
	}
	ok := false
	for _, s := range legal[old.Status] {
		ok = ok || s == r.Status
	}
	if !ok {
		f.t.Errorf("revision %d: run %s went from %s to %s", rev, id, old.Status, r.Status)
	}
	if r.Status == run.NotStarted {
		f.admits[id]++
		return true
	}
	return false
}

// check counts what is in progress.
func (f *referee) check(rev int64) {
	all, used := 0, map[string]int{}
	for _, r := range f.runs {
		if !r.Status.InProgress() {
			continue
		}
		all++
		for k, v := range r.Tags {
			used[k]++
			used[k+"="+v]++
		}
	}
	over := func(what string, n, limit int) {
		if limit != run.Unlimited && n > limit {
			f.t.Errorf("revision %d: %s: %d in progress, allowed are %d", rev, what, n, limit)
		}
	}
	over("all", all, f.limits.MaxConcurrentRuns)
	for _, l := range f.limits.Tags {
		for what, n := range used {
			if what == l.Name() || l.PerUniqueValue && len(what) > len(l.Key) && what[:len(l.Key)+1] == l.Key+"=" {
				over(fmt.Sprintf("%s of %s", what, l), n, l.Limit)
			}
		}
	}
}
