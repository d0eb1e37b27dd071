package pool

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// retaining lets hosts retain slots.
func retaining(d time.Duration) func(*Spec) { return func(s *Spec) { s.Retain = d } }

// newRetaining is a rig with hosts on which slots of pool "db" may be retained, and have been asked
// for before.
func newRetaining(t *testing.T, limit int, hosts ...string) *rig {
	t.Helper()
	r := newRig(t, hosts...)
	r.pool("db", limit, retaining(4*time.Second))
	r.pass(time.Second)
	return r
}

// shows returns the claims that the slot keys of pool "db" show.
func (r *rig) shows() (all []string) {
	r.t.Helper()
	for kv := range r.etcd.All(r.keys.Slots("db")) {
		v, err := decodeSlot(string(kv.Key), kv.Value)
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, v.Claim)
	}
	return all
}

func TestARetainedSlotIsGrantedWithoutAWrite(t *testing.T) {
	r := newRetaining(t, 1, "one")
	one := r.hosts[0]
	first := one.ask("a", 1).got()
	before := r.etcd.Revision()
	one.giveBack("a")
	second := one.ask("b", 1).got()
	if rev := r.etcd.Revision(); rev != before {
		t.Errorf("%d revisions were written", rev-before)
	}
	if second.Fence != first.Fence+1 {
		t.Errorf("fencing token %d follows %d", second.Fence, first.Fence)
	}
	if got := r.shows(); len(got) != 1 || got[0] != "a" {
		t.Errorf("etcd shows %v", got)
	}
	r.pass(4 * time.Second)
	if got := r.shows(); len(got) != 1 || got[0] != "b" {
		t.Errorf("after the time to retain, etcd shows %v", got)
	}
	held, _ := newReader(r.snapshot(), r.keys).Claims()
	if len(held) != 1 || held[0].Fence != second.Fence {
		t.Errorf("etcd shows %+v, want fencing token %d", held, second.Fence)
	}
	one.giveBack("b")
	third := one.ask("c", 1).got()
	if third.Fence <= second.Fence {
		t.Errorf("fencing token %d follows %d", third.Fence, second.Fence)
	}
	one.giveBack("c")
	if r.pass(5 * time.Second); r.used() != 0 {
		t.Error("the idle slot is still held")
	}
	r.clean()
}

// The host that retains slots knows who has them before etcd shows it.
func TestReadingsShowWhoHasRetainedSlots(t *testing.T) {
	r := newRetaining(t, 1, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	one.ask("a", 1).got()
	one.giveBack("a")
	want := func(h *rigHost, claim string, until time.Time) {
		t.Helper()
		d, err := newReader(r.snapshot(), r.keys).pool("db", h.own())
		if err != nil || len(d.Holders) != 1 || d.Holders[0].Claim != claim || !d.Holders[0].RetainedUntil.Equal(until) {
			t.Errorf("%s shows %+v, %v, want %s, retained until %s", h.name, d.Holders, err, claim, until)
		}
	}
	want(one, "a", r.now.Add(4*time.Second))
	want(two, "a", time.Time{})
	b := one.ask("b", 1).got()
	want(one, "b", time.Time{})
	want(two, "a", time.Time{})
	if w, err := newReader(r.snapshot(), r.keys).why("b", one.own()); err != nil || w.Held == nil || w.Held.Fence != b.Fence {
		t.Errorf("why b: %+v, %v", w, err)
	}
	if _, err := newReader(r.snapshot(), r.keys).why("a", one.own()); problem.CodeOf(err) != problem.ClaimNotFound {
		t.Errorf("why a, which has ended: %v", err)
	}
	before := one.own()
	r.pass(4 * time.Second)
	want(two, "b", time.Time{})
	if w, err := newReader(r.snapshot(), r.keys).why("b", before); err != nil || len(w.All) != 1 {
		t.Errorf("b, which was written since, is held %d times: %v", len(w.All), err)
	}
}

func TestAnIdleSlotIsRecalledAtOnce(t *testing.T) {
	r := newRetaining(t, 1, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	one.ask("a", 1).got()
	one.giveBack("a")
	r.wantUsed(1)
	two.ask("b", 1).got()
	two.giveBack("b")
	r.pass(5 * time.Second)
	r.clean()
}

// Slots in use go on to claims of their own host until the waiter of another one is late.
func TestASlotGoesOnToItsOwnHostForAWhile(t *testing.T) {
	r := newRetaining(t, 1, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	one.ask("first", 1).got()
	one.giveBack("first")
	one.ask("a", 1).got()
	other := two.ask("other", 1)
	next := one.ask("b", 1)
	one.giveBack("a")
	next.got()
	other.waits()
	r.pass(3 * time.Second)
	last := one.ask("c", 1)
	one.giveBack("b")
	other.got()
	last.waits()
}

// A waiter does not begin to wait again when another instance becomes the dispatcher.
func TestAWaiterIsLateUnderANewDispatcherToo(t *testing.T) {
	for name, lose := range map[string]func(*rig, *rigHost){
		"it hangs": func(_ *rig, two *rigHost) { two.wedged = true },
		"it ends": func(r *rig, two *rigHost) {
			two.wedged = true
			_ = r.etcd.Revoke(two.waiterLeaseID)
		},
	} {
		t.Run(name, func(t *testing.T) { waitUnderANewDispatcher(t, lose) })
	}
}

func waitUnderANewDispatcher(t *testing.T, lose func(*rig, *rigHost)) {
	r := newRig(t, "one", "two", "three")
	r.pool("db", 1, retaining(10*time.Second))
	r.pass(time.Second)
	one, two, three := r.hosts[0], r.hosts[1], r.hosts[2]
	one.ask("a", 1).got()
	one.giveBack("a")
	one.ask("b", 1).got()
	two.ask("first", 1, func(r *Request) { r.Priority = -1 })
	other := three.ask("other", 1)
	has := "b"
	passOn := func(d time.Duration) {
		for end := r.now.Add(d); r.now.Before(end) && len(other.reply) == 0; {
			next := fmt.Sprint("b", r.now.UnixMilli())
			one.ask(next, 1)
			one.giveBack(has)
			r.pass(100 * time.Millisecond)
			has = next
		}
	}
	if passOn(time.Second); len(other.reply) > 0 || !two.dispatches(two.view.pool("db")) {
		t.Fatal("the waiter is late, or the dispatcher is another instance")
	}
	lose(r, two)
	passOn(silentAfter + silentSpread + time.Second)
	other.got()
}

func TestRetainedSlotsObeyTheSpec(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"lower limit":  func(r *rig) { r.pool("db", 1, retaining(4*time.Second)) },
		"paused":       func(r *rig) { r.pool("db", 2, retaining(4*time.Second), func(s *Spec) { s.Paused = true }) },
		"not retained": func(r *rig) { r.pool("db", 2) },
		"deleted":      func(r *rig) { r.txn(store.Delete(r.keys.Spec("db"))); r.resolve() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRetaining(t, 2, "one")
			one := r.hosts[0]
			one.ask("a", 1).got()
			one.ask("b", 1).got()
			one.giveBack("a")
			change(r)
			one.ask("c", 1, noWait)
			one.giveBack("b")
			one.ask("d", 1, noWait)
			if len(one.regrants)+len(one.core.idle) != 0 {
				t.Errorf("%d claims were granted without a write, and %d slots are idle", len(one.regrants), len(one.core.idle))
			}
			r.sound()
		})
	}
}

// What an operator does with a claim that has ended goes for the one that has its slots.
func TestRevocationsOfRetainedSlots(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		r := newRetaining(t, 1, "one")
		cl := r.hosts[0].ask("a", 1).got()
		r.hosts[0].giveBack("a")
		r.hosts[0].requestRevocation("a", cl.Fence)
		r.wantUsed(0)
	})
	t.Run("granted again", func(t *testing.T) {
		r := newRetaining(t, 1, "one")
		one := r.hosts[0]
		cl := one.ask("a", 1).got()
		one.giveBack("a")
		next := one.ask("b", 1).got()
		one.requestRevocation("a", cl.Fence)
		if got := r.shows(); len(got) != 1 || got[0] != "b" || next.Context().Err() != nil {
			t.Errorf("etcd shows %v, and the claim has ended: %v", got, next.Err())
		}
	})
	t.Run("by force", func(t *testing.T) {
		r := newRetaining(t, 1, "one")
		one := r.hosts[0]
		cl := one.ask("a", 1).got()
		one.giveBack("a")
		next := one.ask("b", 1).got()
		for kv := range r.etcd.All(r.keys.Slots("db")) {
			r.txn(store.Delete(string(kv.Key)))
		}
		one.revoke("a", revocationValue{Fence: cl.Fence, Forced: true}, r.etcd.Revision(), r.now)
		r.resolve()
		if problem.CodeOf(next.Err()) != problem.ClaimLost {
			t.Errorf("its slots were freed, and it has ended with %v", next.Err())
		}
	})
}

// An id is one claim in etcd, also while keys show an earlier one of it.
func TestAnIDIsUsedAgainWhileItsSlotsAreRetained(t *testing.T) {
	r := newRetaining(t, 3, "one")
	one := r.hosts[0]
	one.ask("a", 1).got()
	one.giveBack("a")
	one.ask("a", 2).got() // other slots than those that are idle
	if got := r.shows(); len(got) != 1 && len(got) != 2 || got[0] != "a" {
		t.Errorf("etcd shows %v", got)
	}
	r.sound()
	r.wantUsed(2)
	one.giveBack("a")
	again := one.ask("a", 2).got()
	one.giveBack("a")
	if last := one.ask("a", 2).got(); last.Fence != again.Fence+1 {
		t.Errorf("fencing token %d follows %d", last.Fence, again.Fence)
	}
}

func TestARemoteHolderGetsNoRetainedSlots(t *testing.T) {
	remote := func(r *Request) { r.Remote = true }
	r := newRetaining(t, 1, "one")
	one := r.hosts[0]
	one.ask("a", 1).got()
	one.giveBack("a")
	one.ask("b", 1, remote).got()
	if got := r.shows(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("etcd shows %v", got)
	}
	c := one.ask("c", 1, remote, func(r *Request) { r.Wait = time.Hour })
	one.giveBack("b")
	c.got()
	if got := r.shows(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("etcd shows %v", got)
	}
	r.sound()
}

// brokenJournal keeps nothing.
type brokenJournal struct{ simJournal }

func (*brokenJournal) Put(string, []byte) error { return errors.New("no space left on device") }

func TestSlotsAreNotRetained(t *testing.T) {
	for name, spoil := range map[string]func(r *rig, h *rigHost){
		"without a journal":    func(_ *rig, h *rigHost) { h.journal = &brokenJournal{} },
		"on an invalid lease":  func(_ *rig, h *rigHost) { clear(h.leases) },
		"on old news":          func(r *rig, _ *rigHost) { r.now = r.now.Add(newsWithin) },
		"while it is stopping": func(_ *rig, h *rigHost) { h.core.stopping = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRetaining(t, 1, "one")
			one := r.hosts[0]
			one.ask("a", 1).got()
			spoil(r, one)
			one.giveBack("a")
			r.wantUsed(0)
		})
	}
}

// Claims that wait on their own host alone are canceled, time out and end with it like others.
func TestClaimsWaitForRetainedSlots(t *testing.T) {
	r := newRetaining(t, 1, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	one.ask("a", 1).got()
	other := two.ask("other", 1)
	one.giveBack("a")
	held := other.got() // so that the pool is full, and slots of the kind were released here
	one.wedged = true
	var waits countsWaits
	observed := func(r *Request) { r.Observer = &waits }
	low, gone, late, high := one.ask("low", 1, observed), one.ask("gone", 1, observed), one.ask("late", 1, observed), one.ask("high", 1, rank(1), observed)
	if n := len(one.retentions[kindOf(needsOf(map[string]int{"db": 1}))].local); n < 2 || int(waits) != n {
		t.Fatalf("%d claims wait on their host alone, and observers know of %d", n, waits)
	}
	one.core.cancel("gone", gone.reply, errStopped, r.now)
	one.core.timeout("late", late.reply, nil, r.now)
	one.wedged = false
	gone.refused(problem.Stopping)
	late.refused(problem.ClaimTimeout)
	two.giveBack(held.ID) // it is idle there, until a claim of the other host waits in etcd
	r.pass(2 * time.Second)
	high.got()
	low.waits()
	one.core.stop()
	low.refused(problem.Stopping)
}

// countsWaits is an observer that counts the requests that have to wait.
type countsWaits int

func (w *countsWaits) Waits(time.Time) { *w++ }
func (*countsWaits) Written(Write)     {}

// narrowRetaining is a rig whose hosts do not watch the pool as a whole.
func narrowRetaining(t *testing.T, limit int, hosts ...string) *rig {
	t.Helper()
	r, _ := narrowRig(t, hosts...)
	r.pool("db", limit, retaining(4*time.Second))
	return r
}

// news has the hosts read the spec of pool "db", as they do twice a second.
func (r *rig) news() {
	r.t.Helper()
	for _, h := range r.hosts {
		p := h.view.pool("db")
		resp, err := r.etcd.Txn(&pb.TxnRequest{Success: h.markGets(p)})
		if err != nil {
			r.t.Fatal(err)
		}
		h.polled([]*poolView{p}, resp, r.now, r.now)
	}
	r.resolve()
}

// A rewrite that was carried out, and whose answer was lost, leaves the claim as it is.
func TestTheAnswerToARewriteIsLost(t *testing.T) {
	r := narrowRetaining(t, 1, "one")
	one := r.hosts[0]
	one.ask("0", 1).got()
	for i := range 8 { // until the pool is not watched any more
		one.giveBack(fmt.Sprint(i))
		one.ask(fmt.Sprint(i+1), 1).got()
		r.pass(time.Second)
		r.news()
	}
	one.giveBack("8")
	b := one.ask("b", 1).got()
	one.wantScope("db", nothing)
	lost := false
	one.refuse = func(txn *pb.TxnRequest) error {
		if b := one.core.inFlight; lost || b == nil || len(b.rewrites) == 0 {
			return nil
		}
		lost = true
		if _, err := r.etcd.Txn(txn); err != nil {
			t.Fatal(err)
		}
		return store.ErrUnavailable
	}
	for range 24 {
		r.pass(tickEvery)
		r.news()
	}
	if !lost || b.Err() != nil || r.used() != 1 || len(one.regrants) != 0 {
		t.Errorf("lost: %t, claim: %v, slots: %d, regrants: %d", lost, b.Err(), r.used(), len(one.regrants))
	}
}

// What etcd shows names the claim for operators, also after keys were put again.
func TestARevocationByForceOfWhatARewriteShows(t *testing.T) {
	r := narrowRetaining(t, 1, "one")
	one := r.hosts[0]
	one.ask("w", 1).got()
	one.giveBack("w")
	one.ask("a", 1).got()
	r.news()
	one.giveBack("a")
	one.ask("b", 1).got()
	for range 40 {
		r.pass(tickEvery)
		r.news()
	}
	held, _ := newReader(r.snapshot(), r.keys).Claims()
	one.giveBack("b")
	c := one.ask("c", 1).got()
	for kv := range r.etcd.All(r.keys.Slots("db")) {
		r.txn(store.Delete(string(kv.Key)))
	}
	one.revoke("b", revocationValue{Fence: held[0].Fence, Forced: true}, r.etcd.Revision(), r.now)
	r.resolve()
	if c.Err() == nil || len(one.core.idle)+len(one.regrants) != 0 {
		t.Errorf("the claim goes on: %v; %d idle, %d regrants", c.Err(), len(one.core.idle), len(one.regrants))
	}
}

// A rewrite that is not possible for a while is tried again.
func TestARewriteIsTriedAgain(t *testing.T) {
	r := newRetaining(t, 1, "one")
	one := r.hosts[0]
	one.ask("a", 1).got()
	one.giveBack("a")
	b := one.ask("b", 1).got()
	r.pass(3*time.Second - tickEvery)
	r.now = r.now.Add(tickEvery)
	reply := make(chan combinedResult, 1)
	one.core.releaseCombined(b, &combinedRelease{extra: store.Extra{If: []*pb.Compare{store.CreateEquals(r.keys.Spec("db"), 0)}}, reply: reply}, r.now)
	r.resolve()
	r.pass(4 * time.Second)
	if got := r.shows(); len(got) != 1 || got[0] != "b" {
		t.Errorf("etcd shows %v", got)
	}
}

// A claim of a low priority that waits on its own host reserves like others.
func TestAClaimDoesNotStarveOnItsOwnHost(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 1, retaining(4*time.Second), func(s *Spec) { s.ReserveAfter = 2 * time.Second })
	r.pass(time.Second)
	one := r.hosts[0]
	one.ask("h0", 1, rank(1)).got()
	one.giveBack("h0")
	one.ask("h1", 1, rank(1)).got()
	low := one.ask("low", 1)
	for i := 1; len(low.reply) == 0; i++ {
		if i == 100 {
			t.Fatal("it has waited for 10 s")
		}
		next := one.ask(fmt.Sprintf("h%d", i+1), 1, rank(1))
		r.pass(100 * time.Millisecond)
		one.giveBack(fmt.Sprintf("h%d", i))
		if len(low.reply) == 0 {
			next.got()
		}
	}
}

// A notice that comes back after a restore of etcd is of a claim that has ended.
func TestANoticeOfRetainedSlotsFreesNothing(t *testing.T) {
	r := newRetaining(t, 1, "one")
	one := r.hosts[0]
	cl := one.ask("a", 1).got()
	slots := one.entries["a"].slots
	one.giveBack("a")
	b := one.ask("b", 1).got()
	p := one.view.pool("db")
	one.view.setNotice(p, &notice{
		key: r.keys.Notice("db", "one", "i", "a"), claim: "a", lease: cl.Lease, rev: cl.Fence.Revision(), slots: slots,
		order: Order{Claim: "a", By: hash("one/i")},
	}, one.core.name())
	one.takeNotices(r.now)
	r.resolve()
	if r.used() != 1 || b.Err() != nil {
		t.Errorf("%d slots are held, and the claim: %v", r.used(), b.Err())
	}
}
