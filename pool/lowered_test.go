package pool

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const overText = "pool 'db' has a limit of 1, this claim needs 2"

// lowered is a rig in which "wide" of host "one" waits for 2 slots while the limit is lowered to 1.
func lowered(t *testing.T) (r *rig, one, two *rigHost, wide asked) {
	t.Helper()
	r = newRig(t, "one", "two")
	one, two = r.hosts[0], r.hosts[1]
	r.pool("db", 3, func(s *Spec) { s.ReserveAfter = 0 })
	two.ask("holder", 3).got()
	wide = one.ask("wide", 2)
	wide.waits()
	r.spec("db", 1, func(s *Spec) { s.ReserveAfter = 0 })
	r.resolve()
	return r, one, two, wide
}

// wantReason checks why a claim waits, as its instance and as etcd says.
func (r *rig) wantReason(h *rigHost, id, want string) {
	r.t.Helper()
	if got := h.reason(h.entries[id]).Text; got != want {
		r.t.Errorf("%s waits because %q, want %q", id, got, want)
	}
	why, err := newReader(r.snapshot(), r.keys).why(id, own{})
	if err != nil || why.Reason.Text != want {
		r.t.Errorf("etcd shows that %s waits because %q (%v), want %q", id, why.Reason.Text, err, want)
	}
}

func TestAClaimThatWaitsKeepsWaitingWhenTheLimitIsLoweredBelowIt(t *testing.T) {
	r, one, two, wide := lowered(t)
	wide.waits()
	r.wantReason(one, "wide", overText)
	for _, h := range r.hosts { // a new claim is refused, whether it would wait or not
		h.ask("new", 2).refused(problem.ExceedsLimit)
		h.ask("new", 2, noWait).refused(problem.ExceedsLimit)
	}
	one.ask("wide", 2, noWait).refused(problem.ExceedsLimit)
	two.giveBack("holder")
	wide.waits()
	two.ask("narrow", 1).got() // nothing is reserved
	one.ask("next", 1).waits()
	two.giveBack("narrow")
	r.wantUsed(1) // next has it
	one.giveBack("next")
	r.pass(time.Minute)
	wide.waits()
	r.wantUsed(0)
	r.spec("db", 2)
	r.resolve()
	wide.got()
	r.wantUsed(2)
	r.sound()
}

func TestAClaimKeepsWaitingBelowItsLimitOnEveryWayBackIntoTheQueue(t *testing.T) {
	for name, back := range map[string]func(t *testing.T, r *rig, one, two *rigHost, wide asked) asked{
		"its client comes back": func(_ *testing.T, r *rig, one, _ *rigHost, wide asked) asked {
			wide.cancel()
			r.pass(time.Second)
			return one.ask("wide", 2)
		},
		"its client asks once more": func(_ *testing.T, _ *rig, one, _ *rigHost, _ asked) asked { return one.ask("wide", 2) },
		"it is withdrawn for a moment": func(_ *testing.T, r *rig, one, _ *rigHost, wide asked) asked {
			one.withdraw("wide", r.now)
			r.resolve()
			return one.ask("wide", 2)
		},
		"its instance loses the leases of its waiters": func(t *testing.T, r *rig, one, _ *rigHost, wide asked) asked {
			old := one.waiterLeaseID
			if err := r.etcd.Revoke(old); err != nil {
				t.Fatal(err)
			}
			var err error
			if one.waiterLeaseID, _, err = r.etcd.Grant(time.Hour); err != nil {
				t.Fatal(err)
			}
			one.leaseLost(old, errors.New("lost"), r.now)
			r.resolve()
			return wide
		},
		"its instance reads everything again": func(_ *testing.T, r *rig, one, _ *rigHost, wide asked) asked {
			one.resync(store.ErrCompacted)
			r.resolve()
			return wide
		},
		"another instance dispatches": func(_ *testing.T, r *rig, one, two *rigHost, wide asked) asked {
			two.ask("behind", 1).waits()
			one.wedged = true
			r.pass(5 * time.Second)
			one.wedged = false
			r.pass(time.Second)
			return wide
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, one, two, wide := lowered(t)
			wide = back(t, r, one, two, wide)
			r.pass(time.Second)
			wide.waits()
			if !slices.ContainsFunc(r.inQueue(), func(s string) bool { return s == "wide" || s == "wide reserves" }) {
				t.Errorf("waiting are %q, want wide among them", r.inQueue())
			}
			r.wantReason(one, "wide", overText)
			two.giveBack("holder")
			r.spec("db", 3)
			r.pass(time.Second)
			wide.got()
			r.sound()
		})
	}
}

// A claim that comes back when its place is no longer kept is a new one.
func TestAClaimThatComesBackLateIsRefusedAboveTheLimit(t *testing.T) {
	r, one, _, wide := lowered(t)
	wide.cancel()
	r.pass(keepPlace + time.Second)
	one.ask("wide", 2).refused(problem.ExceedsLimit)
}

// A claim of several pools waits if the limit of one of them is lowered, and holds up none that
// need the others.
func TestAClaimOfSeveralPoolsKeepsWaitingBelowALimit(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 2, func(s *Spec) { s.ReserveAfter = 0 })
	r.pool("gpu", 2, func(s *Spec) { s.ReserveAfter = 0 })
	one, two := r.hosts[0], r.hosts[1]
	both := func(r *Request) { r.Slots["gpu"] = 1 }
	two.ask("holder", 2).got()
	wide := one.ask("wide", 2, both)
	wide.waits()
	r.spec("db", 1)
	r.resolve()
	r.wantReason(one, "wide", overText)
	two.ask("gpu", 2, func(r *Request) { r.Slots = map[string]int{"gpu": 2} }).got()
	two.giveBack("gpu")
	two.giveBack("holder")
	wide.waits()
	two.ask("new", 2, both).refused(problem.ExceedsLimit)
	r.spec("db", 2)
	r.resolve()
	wide.got()
	r.sound()
}

// So does a claim that waits for slots that its own instance retains.
func TestAClaimThatWaitsForRetainedSlotsKeepsWaitingBelowALimit(t *testing.T) {
	r := newRig(t, "one")
	one := r.hosts[0]
	retain := func(s *Spec) { s.Retain = 4 * time.Second }
	r.pool("db", 2, retain)
	one.ask("a", 2).got()
	one.giveBack("a")
	one.ask("b", 2).got()
	wide := one.ask("wide", 2)
	wide.waits()
	if e := one.entries["wide"]; e.order.Since != 0 {
		t.Fatal("it waits in the queue")
	}
	r.spec("db", 1, retain)
	r.resolve()
	one.ask("new", 2).refused(problem.ExceedsLimit)
	r.pass(5 * time.Second)
	wide.waits()
	r.wantReason(one, "wide", overText)
	one.giveBack("b")
	r.spec("db", 2, retain)
	r.pass(time.Second)
	wide.got()
	r.sound()
}

// slowRig is a rig in which host "one" sees the specs of the pools "db" and "gpu" as they were, of
// 3 slots each, which host "two" holds. See has it see those of some pools as they are.
func slowRig(t *testing.T) (r *rig, one, two *rigHost, see func(names ...string)) {
	t.Helper()
	r = newRig(t, "one", "two")
	one, two = r.hosts[0], r.hosts[1]
	known := map[string]*mvccpb.KeyValue{}
	for _, name := range []string{"db", "gpu"} {
		r.pool(name, 3)
		two.ask("holder-"+name, 0, slotsOf(name, 3)).got()
		known[r.keys.Spec(name)] = r.key(r.keys.Spec(name))
	}
	one.feeds.sees = func(ev *mvccpb.Event) *mvccpb.Event {
		if spec := known[string(ev.Kv.Key)]; spec != nil {
			return &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: spec}
		}
		return ev
	}
	return r, one, two, func(names ...string) {
		t.Helper()
		for _, name := range names {
			known[r.keys.Spec(name)] = r.key(r.keys.Spec(name))
		}
		one.resync()
		r.pass(time.Second)
	}
}

// slotsOf has a request ask for slots of one pool more, and of "db" only if it is to.
func slotsOf(name string, n int) func(*Request) {
	return func(r *Request) {
		if r.Slots["db"] == 0 {
			delete(r.Slots, "db")
		}
		r.Slots[name] = n
	}
}

func TestANewClaimIsRefusedOnceItsInstanceSeesThatTheLimitWasLoweredBefore(t *testing.T) {
	for name, back := range map[string]func(r *rig, one *rigHost, late asked) asked{
		"as it came": func(_ *rig, _ *rigHost, late asked) asked { return late },
		"its client has come back": func(r *rig, one *rigHost, late asked) asked {
			late.cancel()
			r.pass(time.Second)
			return one.ask("late", 2)
		},
		"its waiter was written again": func(r *rig, one *rigHost, late asked) asked {
			if err := r.etcd.Revoke(one.waiterLeaseID); err != nil {
				r.t.Fatal(err)
			}
			one.leaseLost(one.waiterLeaseID, errors.New("lost"), r.now)
			one.waiterLeaseID, _, _ = r.etcd.Grant(time.Hour)
			r.pass(time.Second)
			return late
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, one, two, see := slowRig(t)
			r.spec("db", 1)
			r.resolve()
			two.ask("there", 2).refused(problem.ExceedsLimit)
			late := one.ask("late", 2)
			late.waits()
			r.pass(time.Minute)
			late = back(r, one, late)
			late.waits()
			r.wantWaiters("late")
			see("db")
			late.refused(problem.ExceedsLimit)
			r.wantWaiters()
			one.ask("late", 2).refused(problem.ExceedsLimit)
			r.sound()
		})
	}
}

func TestANewClaimIsRefusedIfTheAnswerToTheWriteOfItsWaiterWasLost(t *testing.T) {
	r, one, _, see := slowRig(t)
	r.spec("db", 1)
	r.resolve()
	one.refuse = func(txn *pb.TxnRequest) error {
		one.refuse = nil
		if _, err := r.etcd.Txn(txn); err != nil {
			t.Fatal(err)
		}
		return store.ErrUnavailable
	}
	late := one.ask("late", 2)
	late.waits()
	see("db")
	late.refused(problem.ExceedsLimit)
	r.wantWaiters()
}

func TestANewClaimIsRefusedOnceASlowInstanceSeesOneOfTheLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after []string // of which pools the limits are lowered, before and after the claim
		refused       string   // the pool for which it is refused
	}{
		"all lowered before":           {before: []string{"db", "gpu"}, refused: "db"},
		"the first one lowered before": {before: []string{"db"}, after: []string{"gpu"}, refused: "db"},
		"the last one lowered before":  {before: []string{"gpu"}, after: []string{"db"}, refused: "gpu"},
		"all lowered after":            {after: []string{"db", "gpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, one, two, see := slowRig(t)
			lower := func(names []string) {
				for _, name := range names {
					r.spec(name, 1)
				}
				r.resolve()
			}
			lower(tc.before)
			both := one.ask("both", 2, slotsOf("gpu", 2))
			both.waits()
			lower(tc.after)
			for _, name := range tc.after {
				see(name)
				both.waits()
			}
			if tc.refused == "" {
				two.giveBack("holder-db")
				two.giveBack("holder-gpu")
				r.spec("db", 3)
				r.spec("gpu", 3)
				see("db", "gpu")
				both.got()
				return
			}
			see("db", "gpu")
			if err := both.refused(problem.ExceedsLimit); !strings.Contains(err.Error(), "'"+tc.refused+"'") {
				t.Errorf("it is refused with %q, want pool %s", err, tc.refused)
			}
			r.sound()
		})
	}
}

// A limit of 0 lets all wait, and what waits then keeps waiting when the pool is opened for less.
func TestAClaimOfAClosedPoolKeepsWaitingWhenItIsOpenedForLess(t *testing.T) {
	r, one, two, see := slowRig(t)
	r.spec("db", 0)
	see("db")
	wide := one.ask("wide", 2)
	wide.waits()
	r.spec("db", 1)
	r.resolve()
	late := one.ask("late", 2)
	late.waits()
	see("db")
	wide.waits()
	late.refused(problem.ExceedsLimit)
	two.giveBack("holder-db")
	r.spec("db", 2)
	see("db")
	wide.got()
}

// rewinds returns a function that restores etcd as it is now, with its revision.
func (r *rig) rewinds(h *rigHost) (restore func()) {
	h.core.leases.Acquire(DefaultSpec().LeaseDuration, 1) // it outlasts the restore
	saved := r.etcd.Save()
	for range 100 {
		r.txn(store.Put("/b/other", nil, 0))
	}
	return func() {
		r.etcd.Restore(saved, saved.Revision()-r.etcd.Revision())
		for _, h := range r.hosts {
			h.resync(store.ErrRestored)
		}
	}
}

func TestAClaimOfASlowInstanceKeepsWaitingBelowALimitLoweredAfterIt(t *testing.T) {
	for name, ask := range map[string]func(r *rig, one *rigHost, lower func()) asked{
		"its waiter was written": func(_ *rig, one *rigHost, _ func()) asked { return one.ask("wide", 2) },
		"the answer to the write of its waiter was lost": func(r *rig, one *rigHost, lower func()) asked {
			one.refuse = func(txn *pb.TxnRequest) error {
				one.refuse = nil
				if _, err := r.etcd.Txn(txn); err != nil {
					r.t.Fatal(err)
				}
				lower()
				return store.ErrUnavailable
			}
			return one.ask("wide", 2)
		},
		"the answer was lost, and the lease of its waiter": func(r *rig, one *rigHost, lower func()) asked {
			one.refuse = func(txn *pb.TxnRequest) error {
				if _, err := r.etcd.Txn(txn); err != nil {
					r.t.Fatal(err)
				}
				lower()
				one.refuse, one.wedged = nil, true
				return store.ErrUnavailable
			}
			wide := one.ask("wide", 2)
			if err := r.etcd.Revoke(one.waiterLeaseID); err != nil {
				r.t.Fatal(err)
			}
			one.leaseLost(one.waiterLeaseID, errors.New("lost"), r.now)
			one.waiterLeaseID, _, _ = r.etcd.Grant(time.Hour)
			one.wedged = false
			return wide
		},
		"etcd refuses its waiter": func(_ *rig, one *rigHost, _ func()) asked {
			one.refuse = func(txn *pb.TxnRequest) error {
				if one.inFlight != nil && len(one.inFlight.puts) > 0 {
					return store.ErrDenied
				}
				return nil
			}
			return one.ask("wide", 2)
		},
		"no waiters are written": func(_ *rig, one *rigHost, _ func()) asked {
			one.waiterLeases = nil
			return one.ask("wide", 2)
		},
		"etcd is restored to an earlier revision": func(r *rig, one *rigHost, _ func()) asked {
			restore := r.rewinds(one)
			wide := one.ask("wide", 2)
			restore()
			return wide
		},
		"etcd is restored before its client comes back": func(r *rig, one *rigHost, _ func()) asked {
			restore := r.rewinds(one)
			one.ask("wide", 2).cancel()
			restore()
			return one.ask("wide", 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, one, two, see := slowRig(t)
			lower := sync.OnceFunc(func() { r.spec("db", 1) })
			wide := ask(r, one, lower)
			wide.waits()
			lower()
			r.pass(time.Second)
			wide.waits()
			see("db")
			wide.waits()
			one.ask("new", 2).refused(problem.ExceedsLimit)
			one.refuse = nil
			two.giveBack("holder-db")
			r.spec("db", 2)
			see("db")
			r.pass(time.Minute)
			wide.got()
			r.sound()
		})
	}
}
