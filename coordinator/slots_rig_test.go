package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/engine"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/wire"
)

// pool makes a pool, or changes its limit.
func (fl *fleet) pool(name string, limit int, change ...func(*pool.Change)) {
	fl.t.Helper()
	ch := pool.Change{Limit: &limit}
	for _, f := range change {
		f(&ch)
	}
	if _, err := fl.pools().Set(fl.t.Context(), name, ch); err != nil {
		fl.t.Fatal(err)
	}
}

func reserveAfter(d time.Duration) func(*pool.Change) {
	return func(ch *pool.Change) { ch.ReserveAfter = &d }
}

func (fl *fleet) pools() registry.Registry { return registry.Registry{Backend: fl.root, Keys: fl.keys} }

func needs(name string, n int) func(*run.Spec) {
	return func(s *run.Spec) {
		if s.Pools == nil {
			s.Pools = map[string]int{}
		}
		s.Pools[name] = n
	}
}

// claims returns who holds slots: claims by run, as host, slots and lease.
func (fl *fleet) claims() map[string]pool.HolderStatus {
	fl.t.Helper()
	all, err := list.Read(fl.t.Context(), fl.root, fl.keys)
	if err != nil {
		fl.t.Fatal(err)
	}
	held, _ := all.Claims()
	by := map[string]pool.HolderStatus{}
	for _, h := range held {
		by[h.Run] = h
	}
	return by
}

// holds checks which runs hold slots, and on which host.
func (fl *fleet) holds(want map[string]string) {
	fl.t.Helper()
	got := map[string]string{}
	for id, h := range fl.claims() {
		got[id] = h.Host
	}
	if !maps.Equal(got, want) {
		fl.t.Errorf("slots are held by %v, want %v", got, want)
	}
}

// starter is a host that starts runs with pools.
type starter struct {
	fl     *fleet
	by     *storetest.Backend
	engine *engine.Engine
	lease  store.LeaseID

	mu     sync.Mutex // guards what follows
	claims map[string]*pool.Claim
}

func (fl *fleet) starter(host string) *starter {
	s := &starter{fl: fl, by: fl.root.Peer(), lease: fl.executor(), claims: map[string]*pool.Claim{}}
	s.engine = engine.New(engine.Config{Backend: s.by, Keys: fl.keys, Host: host, Instance: "sidecar", Leases: s, WaiterLeases: s})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.engine.Run(ctx)
	}()
	fl.t.Cleanup(func() { cancel(); <-done; s.by.Close() })
	fl.proceed()
	return s
}

// It has one lease for everything.

func (s *starter) Acquire(time.Duration, int) (store.LeaseID, bool) { return s.lease, true }
func (s *starter) Release(store.LeaseID, int)                       {}
func (s *starter) Valid(store.LeaseID) bool                         { return true }
func (s *starter) Suspect(...store.LeaseID)                         {}
func (s *starter) Trouble() error                                   { return nil }

func (s *starter) Lease(context.Context) (store.LeaseID, error) { return s.lease, nil }

func (s *starter) TakeOver(ctx context.Context, r *run.Run, x store.Extra) (store.Fence, error) {
	cl, err := s.engine.TakeOver(ctx, pool.TakeOver{ID: r.Claim, Fence: r.Fence(), Slots: r.Pools, Holder: pool.Holder{Run: r.ID, Bind: run.BindExecutor}, Extra: x})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims[r.ID] = cl
	return cl.Fence, nil
}

func (s *starter) start(id string) (*run.Run, error) {
	return s.fl.Start(s.fl.t.Context(), id, run.Executor{Host: "x", Instance: "sidecar"}, s)
}

// finish ends a run and gives its slots back.
func (s *starter) finish(r *run.Run) error {
	_, err := s.fl.Finish(s.fl.t.Context(), r.ID, r.Fence(), run.Succeeded, "", nil)
	s.mu.Lock()
	cl := s.claims[r.ID]
	s.mu.Unlock()
	if cl != nil {
		if err := s.engine.Release(s.fl.t.Context(), cl); err != nil {
			s.fl.t.Error(err)
		}
	}
	return err
}

// slotCount follows the slots of pools, for a referee.
type slotCount struct {
	keys  wire.Keys
	slots map[string]slotSeen
	limit map[string]int
}

type slotSeen struct {
	pool, claim string
	n           int
}

// take takes the events of a revision, and reports what is wrong then.
func (c *slotCount) take(rev int64, events []*mvccpb.Event) (wrong []string) {
	grown := map[string]bool{}
	for _, ev := range events {
		key := string(ev.Kv.Key)
		name, isSpec := strings.CutSuffix(strings.TrimPrefix(key, c.keys.Pools()), "/spec")
		_, err := c.keys.Ref(key)
		switch {
		case isSpec && ev.Type == mvccpb.Event_PUT:
			spec, _, err := wire.DecodeSpec(key, ev.Kv.Value, rev)
			if err != nil {
				wrong = append(wrong, err.Error())
			}
			c.limit[name] = spec.Limit
		case err != nil:
		case ev.Type == mvccpb.Event_DELETE:
			delete(c.slots, key)
		default:
			ref, s, err := c.keys.DecodeSlot(key, ev.Kv.Value, ev.Kv.CreateRevision)
			if err != nil {
				wrong = append(wrong, err.Error())
			}
			c.slots[key] = slotSeen{ref.Pool, s.Claim, max(1, s.Block.Count)}
			grown[ref.Pool] = true
		}
	}
	for name := range grown {
		if n := c.used(name); n > c.limit[name] {
			wrong = append(wrong, fmt.Sprintf("revision %d: %d slots of %s, allowed are %d", rev, n, name, c.limit[name]))
		}
	}
	return wrong
}

func (c *slotCount) used(name string) (n int) {
	for _, s := range c.slots {
		if s.pool == name {
			n += s.n
		}
	}
	return n
}

// of is what a claim holds, as [run.PoolList] spells it.
func (c *slotCount) of(claim string) string {
	held := map[string]int{}
	for _, s := range c.slots {
		if s.claim == claim {
			held[s.pool] += s.n
		}
	}
	return run.PoolList(held)
}

// watchSlots has the referee check, at every revision, that no pool is overfull, and
// that who is admitted or started has its slots.
func (fl *fleet) watchSlots() {
	c := &slotCount{keys: wire.Keys{Keys: fl.keys}, slots: map[string]slotSeen{}, limit: map[string]int{}}
	fl.root.Do(func(e *storetest.Etcd) {
		e.OnCommit(func(rev int64, events []*mvccpb.Event, txn *pb.TxnRequest) {
			fl.referee.committed(rev, events, txn)
			wrong := c.take(rev, events)
			for _, ev := range events {
				id, ok := strings.CutPrefix(string(ev.Kv.Key), fl.keys.Runs())
				if r := fl.referee.runs[id]; ok && r != nil && r.Status.InProgress() && c.of(r.Claim) != run.PoolList(r.Pools) {
					wrong = append(wrong, fmt.Sprintf("revision %d: %s is %s and holds %q", rev, id, r.Status, c.of(r.Claim)))
				}
			}
			for _, w := range wrong {
				fl.t.Error(w)
			}
		})
	})
}

// endRuns starts and finishes runs until all have ended, or reports which have not.
func (s *starter) endRuns(running map[string]*run.Run, finish bool) {
	s.fl.t.Helper()
	all, err := s.fl.All(s.fl.t.Context())
	if err != nil {
		s.fl.t.Fatal(err)
	}
	for _, r := range all.With(run.NotStarted) {
		if started, err := s.start(r.ID); err == nil {
			running[r.ID] = started
		}
	}
	if !finish {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(running)) {
		if err := s.finish(running[id]); err != nil && problem.CodeOf(err) != problem.RunLost {
			s.fl.t.Errorf("finish %s: %v", id, err)
		}
		delete(running, id)
	}
}
