package pool

import (
	"errors"
	"slices"
	"testing"
	"time"

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
