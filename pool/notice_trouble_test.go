package pool

import (
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// The next life of an instance takes over what was granted to the one before, unless it was
// still to be confirmed, or leaves it to its lease.
func TestTheNextLifeOfAnInstanceHeedsNotices(t *testing.T) {
	type life struct {
		adopt     bool
		confirmed bool // it needs no confirmation
		acked     bool // it was acknowledged
		held      bool // by the next life
		used      int  // slots in the end
	}
	for name, tc := range map[string]life{
		"it adopts":                               {adopt: true, confirmed: true, held: true, used: 1},
		"it adopts what was acknowledged":         {adopt: true, confirmed: true, acked: true, held: true, used: 1},
		"it adopts, and that is to be confirmed":  {adopt: true},
		"it does not adopt":                       {confirmed: true, used: 1},
		"it does not adopt what was acknowledged": {confirmed: true, acked: true, used: 1},
		"it does not adopt, to be confirmed":      {},
	} {
		t.Run(name, func(t *testing.T) {
			c := newContested(t)
			if !tc.confirmed {
				c.pass(aliveWithin + tickEvery)
			}
			if tc.acked {
				c.three.giveBack("holder")
				c.w.got()
				c.wantNotices()
			} else {
				c.grant()
			}
			c.one.wedged = true
			lease := c.one.leases[DefaultSpec().LeaseDuration]
			var next *rigHost
			if tc.adopt {
				next = c.host("one", lease)
				next.leases = c.one.leases
			} else {
				next = c.host("one")
				c.one.leases = map[time.Duration]store.LeaseID{} // it is not renewed
			}
			c.resolve()
			c.wantNotices()
			if e := next.entries["w"]; (e != nil && e.state == held) != tc.held {
				t.Errorf("the next life holds it: %t, want %t", !tc.held, tc.held)
			}
			if tc.used == 0 {
				c.d.got()
				return
			}
			c.wantUsed(1)
			c.d.waits()
			if tc.held {
				next.giveBack("w")
			} else {
				c.pass(DefaultSpec().LeaseDuration + time.Second)
			}
			c.d.got()
			c.sound()
		})
	}
}

// The waiters of an earlier life are deleted, and what they are granted meanwhile is given back.
func TestTheNextLifeOfAnInstanceDeletesItsWaiters(t *testing.T) {
	for _, adopt := range []bool{false, true} {
		c := newContested(t, extra(store.CreateEquals("/side/c", 0), "/side/then"))
		grant := c.granting()
		var leases []store.LeaseID
		if adopt {
			leases = append(leases, c.one.leases[DefaultSpec().LeaseDuration])
		}
		next := c.host("one", leases...)
		next.leases = c.one.leases
		next.wedged = true
		deletes := next.plans()
		for deletes.batch == nil { // it fences the life before
			next.arrives(deletes)
			next.listen()
			deletes = next.plans()
		}
		if len(deletes.batch.drops) != 1 {
			t.Fatalf("it plans %s", described(deletes.txn))
		}
		if !c.two.arrives(grant) {
			t.Fatal("the grant has failed")
		}
		next.arrives(deletes)
		next.wedged, c.two.wedged = false, false
		c.resolve()
		c.wantNotices()
		c.d.got()
		c.sound()
	}
}

// What was granted on a lease that was lost meanwhile is given back, and the claim is granted again.
func TestAGrantOnALostLeaseIsGivenBack(t *testing.T) {
	for _, ended := range []bool{false, true} {
		c := newContested(t)
		c.grant()
		lease := c.one.core.entries["w"].lease
		if delete(c.one.leases, DefaultSpec().LeaseDuration); ended {
			_ = c.etcd.Revoke(lease)
		}
		c.one.leaseLost(lease, store.ErrLeaseNotFound, c.now)
		c.one.wedged = false
		c.resolve()
		c.wantUsed(1)
		if got := c.drain(c.w); got.Lease == lease {
			t.Error("it is granted on the lease that was lost")
		}
	}
}

// A waiter that names a lease which is gone is passed until it is written again.
func TestAWaiterWhoseLeaseIsGoneIsPassed(t *testing.T) {
	c := newContested(t)
	c.one.wedged = true
	lease := c.one.core.entries["w"].lease
	_ = c.etcd.Revoke(lease)
	c.three.giveBack("holder")
	c.wantWaiters("w")
	c.wantNotices()
	delete(c.one.leases, DefaultSpec().LeaseDuration)
	c.one.leaseLost(lease, store.ErrLeaseNotFound, c.now)
	c.one.wedged = false
	c.resolve()
	c.drain(c.w)
}

// A notice that can't be read is named, and closes nothing.
func TestANoticeThatCanNotBeRead(t *testing.T) {
	for _, claim := range []string{"other", "w"} {
		t.Run(claim, func(t *testing.T) {
			c := newContested(t)
			key := c.keys.Notice("db", "one", "i", claim)
			c.txn(store.Put(key, []byte("pear"), c.one.waiterLeaseID))
			c.resolve()
			wantCorrupt(t, key, c.two.view.corrupt[key])
			if got := newReader(c.snapshot(), c.keys).Verify(); len(got) != 1 || got[0].Key != key {
				t.Errorf("verify finds %q", got)
			}
			c.three.giveBack("holder")
			c.pass(2 * time.Second)
			if claim == "w" { // a grant could not be notified
				c.d.got()
				c.wantWaiters("w")
				c.two.giveBack("d")
				c.w.waits()
			}
			c.txn(store.Delete(key))
			c.resolve()
			c.w.got()
			if claim == "other" {
				c.ends(c.one)
			}
		})
	}
}

// An id is granted once, though an earlier request of it may have been granted just now.
func TestARequestOfAnIDThatMayStillBeGrantedToAnEarlierOne(t *testing.T) {
	for name, grant := range map[string]bool{"it was": true, "it was not": false} {
		t.Run(name, func(t *testing.T) {
			c := newContested(t)
			call := c.granting()
			c.one.core.cancel("w", c.w.reply, errStopped, c.now)
			again := c.one.ask("w", 1, rank(2)) // another request: it has no place yet
			if e := c.one.core.entries["w"]; e == nil || !e.succeeds {
				t.Fatal("the earlier one can't be granted any more")
			}
			if grant && !c.two.arrives(call) {
				t.Fatal("the grant has failed")
			}
			c.one.arrives(c.one.plans())
			c.wantWaiters("d")
			again.waits()
			if !grant && c.two.arrives(call) {
				t.Error("a claim was granted that did not wait")
			}
			c.one.wedged, c.two.wedged = false, false
			c.resolve()
			if got := c.drain(again); got.Priority != 2 {
				t.Errorf("granted is %+v", got)
			}
		})
	}
}

// The same request that comes again is granted once, though what it was granted before is given
// back, and may go to the next.
func TestTheSameRequestComesAgainAtTheMomentOfTheGrant(t *testing.T) {
	c := newContested(t)
	c.grant()
	c.one.core.cancel("w", c.w.reply, errStopped, c.now)
	again := c.one.ask("w", 1, rank(1))
	c.one.wedged = false
	c.resolve()
	c.wantUsed(1)
	c.drain(again)
}

// What an instance has left behind goes with it.
func TestTheDispatcherKeepsNothingOfAnInstanceThatIsGone(t *testing.T) {
	c := newContested(t)
	c.grant()
	_ = c.etcd.Revoke(c.one.waiterLeaseID)
	_ = c.etcd.Revoke(c.one.core.entries["w"].lease)
	c.resolve()
	c.d.got()
	c.wantNotices()
	for _, h := range []*rigHost{c.two, c.three} {
		if o := h.view.instances[c.one.core.name()]; o != nil {
			t.Errorf("%s keeps %+v", h.name, o)
		}
	}
}

// A dispatcher takes a grant back, and the owner learns that its notice is gone before it reads that
// its slots are.
func TestAClaimIsNotRefusedForAGrantThatWasTakenBack(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two", "three")
	one, two, three := hosts[0], hosts[1], hosts[2]
	r.pool("db", 1)
	three.ask("held", 1).got()
	first := two.ask("first", 1) // its host dispatches
	a := one.ask("a", 1)
	one.wedged = true
	r.pass(2 * aliveWithin) // its grants are to be confirmed
	three.giveBack("held")
	first.got()
	two.giveBack("first")
	if r.used() != 1 {
		t.Fatal("nothing was granted")
	}
	s := store.Snapshot{Revision: r.etcd.Revision()}
	for kv := range r.etcd.All(r.keys.Pool("db")) {
		s.KVs = append(s.KVs, kv)
	}
	r.pass(2 * ackWithin)
	if r.used() != 0 {
		t.Fatal("the grant was not taken back")
	}
	p := one.view.pool("db")
	one.core.load(p, s, r.now)
	none := store.Snapshot{Revision: r.etcd.Revision()}
	one.core.message("db", notices, store.FeedMessage{Snapshot: &none, Revision: none.Revision}, r.now)
	again := one.ask("a", 1)
	one.act()
	a.waits()
	again.waits()
	one.wedged = false
	r.pass(store.StaleAfter)
	a.got()
}

// An instance is stopped while etcd is restored from a snapshot. It goes on with a notice of before the
// restore, which was in its connection, and the restored etcd has another one of the same claim.
func TestANoticeOfBeforeARestoreDeletesNoOther(t *testing.T) {
	r, one, two, b := dispatching(t)
	r.pass(2 * aliveWithin)
	two.wedged = true
	saved := r.etcd.Save()
	one.giveBack("holder")
	notice := r.keys.Notice("db", "two", "i", "b")
	before := *r.key(notice)
	r.etcd.Restore(saved, 1000)
	one.resync(store.ErrCompacted)
	r.pass(time.Second)
	if now := r.key(notice); now.ModRevision == before.ModRevision {
		t.Fatal("the restored etcd has the same notice")
	}
	two.core.nested = calmBatches // there was a conflict lately
	two.core.message("db", notices, store.FeedMessage{
		Revision: before.ModRevision, History: two.feeds.history,
		Events: []*mvccpb.Event{{Type: mvccpb.Event_PUT, Kv: &before}},
	}, r.now)
	for two.act() {
	}
	r.now = r.now.Add(ackDelay)
	for two.act() {
	}
	if !r.has(notice) {
		t.Error("the notice of the restored etcd was deleted")
	}
	two.wedged = false
	two.resync(store.ErrCompacted)
	r.pass(time.Second)
	b.got()
	two.giveBack("b")
	r.pass(time.Second)
	one.giveBack("a")
	r.pass(2 * reconcileEvery)
	r.clean()
}

// The notices are read again while one is being deleted: which operation deletes it stays known.
func TestNoticesAreReadWhileOneIsDeleted(t *testing.T) {
	r, one, two, b := dispatching(t)
	other := two.ask("c", 1)
	r.wantWaiters("b", "a", "c")
	two.wedged = true
	one.giveBack("holder")
	two.listen()
	other.cancel()
	call := two.plans()
	if len(call.batch.acks) != 1 || len(call.batch.drops) != 1 {
		t.Fatalf("it deletes %d notices and %d waiters", len(call.batch.acks), len(call.batch.drops))
	}
	watch := two.feeds.pools["db"][1]
	two.feeds.again(watch, store.ErrCompacted)
	two.feeds.deliver(watch, 1, r.now)
	two.arrives(call)
	r.wantNotices()
	two.wedged = false
	b.got()
	two.giveBack("b")
	r.pass(time.Second)
	one.giveBack("a")
	r.clean()
}
