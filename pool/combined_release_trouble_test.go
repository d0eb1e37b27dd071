package pool

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// never is a condition that does not hold.
func never() store.Extra {
	return store.Extra{If: []*pb.Compare{store.ModEquals("/b/elsewhere", 1)}}
}

// revoked, then released with a write that does not happen: no operator frees
// it when its grace is over.
func TestARevokedClaimThatPartsAndStaysIsFreed(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	c := h.ask("a", 1).got()
	next := h.ask("b", 1)
	h.requestRevocation("a", c.Fence)
	wantRevoked(t, c)
	reply := make(chan combinedResult, 1)
	h.releaseCombined(c, &combinedRelease{extra: never(), reply: reply}, r.now)
	h.core.tick(r.now) // while the batch is under way, or etcd is slow
	r.resolve()
	if p := <-reply; p.err != store.ErrChanged {
		t.Fatal(p.err)
	}
	r.pass(3 * RevokeGrace)
	if h.revocations() != 0 {
		t.Error("the revocation is left")
	}
	if len(next.reply) == 0 {
		t.Errorf("its slots are taken still, %s after its grace has ended", 2*RevokeGrace)
	}
}

// a claim that is lost, is given back with something else, and stays held: its end is published twice.
func TestALostClaimThatStaysIsLostOnce(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	c := h.ask("a", 1).got()
	var events []Event
	s := make(chan Event, 64)
	h.broker.add(&subscriber{events: s})
	h.leaseLost(h.leases[DefaultLeaseDuration], errStopped, r.now)
	reply := make(chan combinedResult, 1)
	h.releaseCombined(c, &combinedRelease{extra: never(), reply: reply}, r.now)
	r.resolve()
	<-reply
	for len(s) > 0 {
		if ev := <-s; ev.Type == ClaimEnded {
			events = append(events, ev)
		}
	}
	if len(events) != 1 {
		t.Errorf("its end got %d times", len(events))
	}
}

// ledger counts what is reserved on leases.
type ledger struct {
	Leases
	n   int
	low int
}

func (l *ledger) Acquire(d time.Duration, keys int) (store.LeaseID, bool) {
	id, ok := l.Leases.Acquire(d, keys)
	if ok {
		l.n += keys
	}
	return id, ok
}

func (l *ledger) Release(id store.LeaseID, keys int) {
	l.n -= keys
	l.low = min(l.low, l.n)
	l.Leases.Release(id, keys)
}

// Keys on leases are released once, however a combined release ends.
func TestACombinedReleaseReleasesItsReservationsOnce(t *testing.T) {
	always := store.Extra{Then: []*pb.RequestOp{store.Put("/b/x", []byte("1"), 0)}}
	executed := func(r *rig) func(*pb.TxnRequest) error {
		n := 0
		return func(x *pb.TxnRequest) error {
			if n++; n > 1 {
				return nil
			}
			_, _ = r.etcd.Txn(x)
			return store.ErrUnavailable
		}
	}
	lost := func(*rig) func(*pb.TxnRequest) error {
		n := 0
		return func(*pb.TxnRequest) error {
			if n++; n > 1 {
				return nil
			}
			return store.ErrUnavailable
		}
	}
	invalid := func(*rig) func(*pb.TxnRequest) error {
		n := 0
		return func(*pb.TxnRequest) error {
			if n++; n > 2 {
				return nil
			}
			return store.ErrInvalid
		}
	}
	for name, c := range map[string]struct {
		x      store.Extra
		refuse func(*rig) func(*pb.TxnRequest) error
		also   func(*rigHost, *Claim)
	}{
		"it goes":              {x: always},
		"it stays":             {x: never()},
		"unknown, done":        {x: always, refuse: executed},
		"unknown, not done":    {x: always, refuse: lost},
		"unknown, stays":       {x: never(), refuse: lost},
		"invalid":              {x: always, refuse: invalid},
		"lost lease meanwhile": {x: never(), also: func(h *rigHost, c *Claim) { h.leaseLost(c.Lease, errStopped, h.r.now) }},
		"forced meanwhile": {x: always, also: func(h *rigHost, c *Claim) {
			s := h.entries["a"].slots[0].ref
			h.r.txn(store.Delete(h.r.keys.Slot(s.pool, s.group, s.index)))
		}},
		"forced, seen meanwhile": {x: always, also: func(h *rigHost, c *Claim) {
			s := h.entries["a"].slots[0].ref
			h.r.txn(store.Delete(h.r.keys.Slot(s.pool, s.group, s.index)))
			h.listen()
		}},
		"released meanwhile": {x: never(), also: func(h *rigHost, c *Claim) { h.release(c, make(chan error, 1), h.r.now) }},
		"resync meanwhile":   {x: always, also: func(h *rigHost, c *Claim) { h.resync() }},
		"parts twice": {x: never(), also: func(h *rigHost, c *Claim) {
			h.releaseCombined(c, &combinedRelease{extra: always, reply: make(chan combinedResult, 1)}, h.r.now)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, shape := range []int{0, 4} {
				r := newRig(t, "one")
				h := r.hosts[0]
				l := &ledger{Leases: h.core.leases}
				h.core.leases = l
				r.pool("db", 2)
				cl := h.ask("a", 1).got()
				next := h.ask("b", 2)
				h.nested = shape
				reply := make(chan combinedResult, 1)
				if c.refuse != nil {
					h.refuse = c.refuse(r)
				}
				h.releaseCombined(cl, &combinedRelease{extra: c.x, reply: reply}, r.now)
				if c.also != nil {
					c.also(h, cl)
				}
				r.resolve()
				r.pass(20 * time.Second)
				p := <-reply
				t.Log(shape, p.revision, p.err, r.used())
				h.release(cl, make(chan error, 1), h.r.now)
				r.resolve()
				r.pass(20 * time.Second)
				if cl.Context().Err() == nil {
					t.Error("it has not ended")
				}
				next.got()
				h.giveBack("b")
				r.clean()
				if l.n != 0 || l.low < 0 {
					t.Errorf("%d keys are reserved (%d at the least)", l.n, l.low)
				}
			}
		})
	}
}

// that something else did not hold with which a claim was to be given back is no lost
// race of those who would have had its slots.
func TestAClaimThatStaysIsNoLostRace(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 2)
	cl := h.ask("a", 1).got()
	h.ask("b", 2).waits()
	for range queueAfter {
		reply := make(chan combinedResult, 1)
		h.releaseCombined(cl, &combinedRelease{extra: never(), reply: reply}, r.now)
		r.resolve()
		if p := <-reply; p.err != store.ErrChanged {
			t.Fatal(p.err)
		}
		for range calmBatches { // others come and go
			h.ask("x", 1, noWait)
			if e := h.entries["x"]; e != nil && e.claim != nil {
				h.giveBack("x")
			}
		}
	}
	if e := h.entries["b"]; e.conflicts > 0 {
		t.Errorf("b has lost %d races", e.conflicts)
	}
}
