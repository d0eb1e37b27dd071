package pool

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestDuties(t *testing.T) {
	const patience = silentAfter + silentSpread/2
	for name, tc := range map[string]struct {
		s    dispatchState
		want duty
	}{
		"nothing is there":                                        {dispatchState{patience: patience}, noDuty},
		"others wait, nobody dispatches":                          {dispatchState{queue: true, queued: true, silent: time.Hour, patience: patience}, noDuty},
		"it waits, nobody dispatches":                             {dispatchState{waits: true, queue: true, patience: patience}, takeRole},
		"it waits, nobody has dispatched for long":                {dispatchState{waits: true, queue: true, queued: true, silent: time.Hour, patience: patience}, takeRole},
		"it waits, and has lost the role":                         {dispatchState{exists: true, former: true, waits: true, queue: true, patience: patience}, takeRole},
		"others wait, and it has lost the role":                   {dispatchState{exists: true, former: true, queue: true, patience: patience}, noDuty},
		"it waits, another dispatches":                            {dispatchState{exists: true, waits: true, queue: true, fits: true, patience: patience}, noDuty},
		"another is silent, not for long enough":                  {dispatchState{exists: true, waits: true, queue: true, fits: true, silent: patience - 1, patience: patience}, noDuty},
		"another is silent":                                       {dispatchState{exists: true, waits: true, queue: true, fits: true, silent: patience, patience: patience}, replace},
		"another is silent, and nothing fits":                     {dispatchState{exists: true, waits: true, queue: true, silent: time.Hour, patience: patience}, noDuty},
		"another is silent, and only others wait":                 {dispatchState{exists: true, queue: true, fits: true, silent: time.Hour, patience: patience}, noDuty},
		"it dispatches, and has put its key":                      {dispatchState{exists: true, mine: true, queue: true, silent: beatEvery - 1, patience: patience}, noDuty},
		"it dispatches, and has not put its key":                  {dispatchState{exists: true, mine: true, queue: true, silent: beatEvery, patience: patience}, beat},
		"it dispatches, and waits itself":                         {dispatchState{exists: true, mine: true, waits: true, queue: true, silent: time.Hour, patience: patience}, beat},
		"it dispatches, and has granted nothing for a bit":        {dispatchState{exists: true, mine: true, queue: true, silent: beatEvery, idle: idleGrants - 1, patience: patience}, beat},
		"it dispatches, and grants nothing":                       {dispatchState{exists: true, mine: true, queue: true, silent: time.Hour, idle: idleGrants, patience: patience}, noDuty},
		"it dispatches, and no claim waits":                       {dispatchState{exists: true, mine: true, queued: true, patience: patience}, stepDown},
		"it dispatches, grants nothing, and no claim waits":       {dispatchState{exists: true, mine: true, silent: time.Hour, idle: time.Hour, patience: patience}, stepDown},
		"another dispatches, and no claim waits":                  {dispatchState{exists: true, queued: true, silent: patience - 1, patience: patience}, noDuty},
		"another is silent, and no claim waits":                   {dispatchState{exists: true, queued: true, silent: patience, patience: patience}, tidy},
		"it has lost the role, and no claim waits":                {dispatchState{exists: true, former: true, queued: true, silent: patience, patience: patience}, tidy},
		"nobody dispatches, no claim waits, and it is queued":     {dispatchState{queued: true, silent: patience, patience: patience}, tidy},
		"nobody dispatches or waits since a moment, it is queued": {dispatchState{queued: true, silent: patience - 1, patience: patience}, noDuty},
		"nobody dispatches, others wait, and it is queued":        {dispatchState{queued: true, queue: true, silent: time.Hour, patience: patience}, noDuty},
		// It keeps slots of this pool for claims of several, and waits in it with none.
		"it dispatches another pool of claims that wait": {dispatchState{queued: true, waits: true, patience: patience}, takeRole},
	} {
		if got := tc.s.duty(); got != tc.want {
			t.Errorf("%s: %+v: duty %d, want %d", name, tc.s, got, tc.want)
		}
	}
}

func TestADispatcherGrantsTheClaimsOfOtherInstances(t *testing.T) {
	c := newContested(t)
	c.grant()
	c.wantNotices("w")
	c.one.wedged = false
	c.resolve()
	c.wantNotices()
	got := c.w.got()
	for _, kv := range c.keysOf("w") {
		if store.FenceAt(kv.ModRevision) != got.Fence || kv.Lease != int64(got.Lease) || got.Lease != c.one.leases[DefaultSpec().LeaseDuration] {
			t.Errorf("%s is of revision %d on lease %x, and the claim is %+v", kv.Key, kv.ModRevision, kv.Lease, got)
		}
	}
	if got.Holder.Host != "one" || got.Priority != 1 || got.Err() != nil {
		t.Errorf("granted is %+v", got)
	}
	c.ends(c.one)
}

// A free slot is not for a claim that comes while others wait.
func TestWhileClaimsWaitOnlyTheDispatcherGrants(t *testing.T) {
	c := newContested(t)
	c.three.wedged = true
	late := c.three.ask("late", 1)
	c.three.wedged = false
	grant := c.granting() // the slot is free, and the other host sees it
	late.waits()
	if !c.two.arrives(grant) {
		t.Fatal("the grant has failed")
	}
	c.one.wedged, c.two.wedged = false, false
	c.resolve()
	c.w.got()
	late.waits()
	c.wantWaiters("d", "late")
	late.cancel()
	c.ends(c.one)
}

// A dispatcher that is silent is replaced after its time, and not before, and by no instance for
// whom there is nothing to grant.
func TestADispatcherThatIsSilentIsReplaced(t *testing.T) {
	for name, stop := range map[string]func(*contested){
		"it hangs":    func(c *contested) { c.two.wedged = true },
		"it is cut":   func(c *contested) { c.two.off = true },
		"it has died": func(c *contested) { c.two.wedged = true; _ = c.etcd.Revoke(c.two.waiterLeaseID) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newContested(t)
			stop(c)
			died := !c.has(c.keys.Dispatcher("db"))
			c.pass(4 * time.Second)
			if died {
				c.wantDispatcher("db", "one") // there was none
			} else {
				c.wantDispatcher("db", "two") // and nobody misses it
			}
			c.three.giveBack("holder")
			if !died {
				c.w.waits()
			}
			c.pass(tickEvery)
			c.w.got()
			if !died { // otherwise no claim waits any more
				c.wantDispatcher("db", "one")
			}
			c.one.giveBack("w")
			if c.two.wedged = false; died {
				c.two.leaseLost(c.two.waiterLeaseID, store.ErrLeaseNotFound, c.now)
				c.two.waiterLeaseID, _, _ = c.etcd.Grant(time.Hour)
			}
			c.two.off = false
			c.pass(tickEvery)
			c.d.got()
		})
	}

	t.Run("not while it may live", func(t *testing.T) {
		c := newContested(t)
		c.pass(time.Second) // the dispatcher has put its key a moment ago
		seen := c.one.view.pool("db").dispatcher.since
		c.two.wedged = true
		c.three.giveBack("holder")
		for c.now.Sub(seen) < silentAfter-tickEvery {
			c.pass(tickEvery)
			c.w.waits()
			c.wantDispatcher("db", "two")
		}
		c.pass(silentSpread + 2*tickEvery)
		c.w.got()
		c.wantDispatcher("db", "one")
	})
}

// A dispatcher for which a claim fits that it does not grant says no longer that it lives.
func TestADispatcherThatGrantsNothingIsReplaced(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 1)
	one, two := r.hosts[0], r.hosts[1]
	one.ask("holder", 1).got()
	d := two.ask("d", 1, rank(1))
	w := one.ask("w", 1)
	r.wantDispatcher("db", "two")
	two.noLeases, two.leases = store.ErrUnavailable, map[time.Duration]store.LeaseID{}
	two.leaseLost(two.core.entries["d"].lease, store.ErrLeaseNotFound, r.now)
	one.giveBack("holder")
	r.pass(idleGrants + silentAfter + silentSpread + ackWithin + time.Second) // it can confirm nothing, either
	w.got()
	d.waits()
	r.sound()
	one.giveBack("w")
	two.noLeases, two.core.dirty = nil, true
	r.pass(time.Second)
	d.got()
	two.giveBack("d")
	r.pass(silentAfter + silentSpread + time.Second)
	r.clean()
}

// A grant that an old dispatcher has sent does not happen after it was replaced, even if nothing
// else has changed.
func TestTheGrantsOfADispatcherThatWasReplacedFail(t *testing.T) {
	r := newRig(t, "one", "two", "three")
	r.pool("db", 1)
	one, two, three := r.hosts[0], r.hosts[1], r.hosts[2]
	three.ask("holder", 1).got()
	d := two.ask("d", 1)
	w := one.ask("w", 1, rank(1))
	r.wantDispatcher("db", "two")
	two.wedged = true
	three.giveBack("holder")
	two.listen()
	late := two.plans()
	if len(late.batch.grants) != 1 {
		t.Fatalf("the dispatcher plans %s", described(late.txn))
	}
	three.wedged = true
	for range 100 {
		if r.now = r.now.Add(tickEvery); one.view.pool("db").dispatcher.by.host == "one" {
			break
		}
		one.listen()
		one.core.tick(r.now)
		if c := one.next(r.now); c != nil {
			if len(c.batch.grants) > 0 {
				t.Fatal("it grants before it dispatches")
			}
			one.arrives(c)
		}
	}
	r.wantDispatcher("db", "one")
	r.wantWaiters("w", "d")
	if two.arrives(late) {
		t.Error("the old dispatcher has granted a claim")
	}
	r.wantUsed(0)
	two.wedged, three.wedged = false, false
	r.resolve()
	w.got()
	d.waits()
	one.giveBack("w")
	d.got()
	two.giveBack("d")
	r.pass(time.Second)
	r.wantDispatcher("db", "")
	r.clean()
}

// A dispatcher steps down only if no claim has come to wait, and one that comes a moment later
// dispatches.
func TestADispatcherStepsDownIfNobodyHasCome(t *testing.T) {
	for _, first := range []string{"the waiter", "the step"} {
		t.Run(first+" comes first", func(t *testing.T) {
			r := newRig(t, "one", "two")
			r.pool("db", 1)
			one, two := r.hosts[0], r.hosts[1]
			one.ask("holder", 1).got()
			d := two.ask("d", 1)
			r.wantDispatcher("db", "two")
			one.wedged, two.wedged = true, true
			w := one.ask("w", 1)
			comes := one.plans()
			two.core.cancel("d", d.reply, errStopped, r.now)
			two.arrives(two.plans()) // its waiter goes
			if len(two.view.waiters) == 0 && r.dispatcher("db") == "two" {
				steps := two.plans()
				if len(steps.batch.duties) != 1 || steps.batch.duties[0].duty != stepDown {
					t.Fatalf("the dispatcher plans %s", described(steps.txn))
				}
				if first == "the waiter" {
					if !one.arrives(comes) || two.arrives(steps) {
						t.Error("it stepped down although a claim waits")
					}
					r.wantDispatcher("db", "two")
				} else {
					if !two.arrives(steps) {
						t.Error("it did not step down")
					}
					one.arrives(comes)
				}
			} else if first == "the waiter" {
				t.Skip("it steps down along with its waiter")
			} else {
				one.arrives(comes)
			}
			one.wedged, two.wedged = false, false
			r.pass(tickEvery)
			r.wantWaiters("w")
			if r.dispatcher("db") == "" || !r.has(r.keys.Queued("db")) {
				t.Errorf("%q dispatches", r.dispatcher("db"))
			}
			one.giveBack("holder")
			w.got()
			one.giveBack("w")
			r.pass(silentAfter + silentSpread + time.Second)
			r.clean()
		})
	}
}

// A dispatcher whose lease ends is one no more. It does not announce that: others see it.
func TestADispatcherThatLosesItsLeaseIsReplacedAtOnce(t *testing.T) {
	for name, lose := range map[string]func(*contested){
		"etcd has ended it": func(c *contested) { _ = c.etcd.Revoke(c.two.waiterLeaseID) },
		"it is not renewed": func(c *contested) {},
	} {
		t.Run(name, func(t *testing.T) {
			c := newContested(t)
			lose(c)
			c.two.leaseLost(c.two.waiterLeaseID, store.ErrLeaseNotFound, c.now)
			c.two.waiterLeaseID, _, _ = c.etcd.Grant(time.Hour)
			c.resolve()
			c.wantWaiters("w", "d")
			if c.dispatcher("db") == "" {
				t.Error("nobody dispatches")
			}
			c.grant()
			c.one.wedged = false
			c.resolve()
			c.w.got()
			c.ends(c.one)
		})
	}
}

// What is left of a queue whose instances are all gone is deleted, as it keeps others from claiming
// directly.
func TestWhatIsLeftOfAQueueIsDeleted(t *testing.T) {
	c := newContested(t)
	c.pass(tickEvery)
	c.one.wedged, c.two.wedged = true, true
	_ = c.etcd.Revoke(c.one.waiterLeaseID)
	_ = c.etcd.Revoke(c.two.waiterLeaseID)
	c.resolve()
	if c.wantWaiters(); !c.has(c.keys.Queued("db")) || c.dispatcher("db") != "" {
		t.Fatal("nothing is left")
	}
	c.pass(silentAfter - tickEvery)
	if !c.has(c.keys.Queued("db")) {
		t.Error("it is gone at once")
	}
	c.pass(silentSpread + 2*tickEvery)
	c.wantDispatcher("db", "")
}

// Claims of several pools are granted by the dispatcher of the first, and others queue only in
// those pools where they are short.
func TestAClaimOfSeveralPoolsIsGrantedByTheDispatcherOfTheFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		full    string        // the pool that is full
		reserve time.Duration // when waiters reserve
		queued  []string
	}{
		"the first is full":   {"aa", NeverReserve, []string{"aa"}},
		"the second is full":  {"db", NeverReserve, []string{"db"}},
		"it reserves at once": {"aa", 0, []string{"aa", "db"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one", "two", "three")
			for _, p := range []string{"aa", "db"} {
				r.pool(p, 2, func(s *Spec) { s.ReserveAfter = tc.reserve })
			}
			one, two, three := r.hosts[0], r.hosts[1], r.hosts[2]
			three.ask("holder", 2, of(map[string]int{tc.full: 2})).got()
			d := two.ask("d", 1, of(map[string]int{tc.full: 1}))
			m := one.ask("m", 1, of(map[string]int{"aa": 1, "db": 1}), rank(1))
			for _, p := range []string{"aa", "db"} {
				if r.has(r.keys.Queued(p)) != slices.Contains(tc.queued, p) {
					t.Errorf("pool %s is queued: %t", p, r.has(r.keys.Queued(p)))
				}
			}
			if r.dispatcher("aa") == "" {
				t.Error("nobody dispatches the first pool")
			}
			if other := map[string]string{"aa": "db", "db": "aa"}[tc.full]; len(tc.queued) == 1 {
				three.ask("free", 1, of(map[string]int{other: 1}), noWait).got()
				three.giveBack("free")
			}
			one.wedged = r.dispatcher("aa") == "two"
			three.giveBack("holder")
			if one.wedged {
				if r.wantNotices("m"); !r.has(r.keys.Notice("aa", "one", "i", "m")) {
					t.Error("the notice is not in the first pool")
				}
				one.wedged = false
			}
			r.pass(time.Second)
			if got := m.got(); got.Keys != 2 {
				t.Errorf("it has %d keys", got.Keys)
			}
			d.got() // there is a second slot
			r.sound()
			one.giveBack("m")
			two.giveBack("d")
			r.pass(silentAfter + silentSpread + time.Second)
			r.clean()
		})
	}
}

// A claim that has lost many races joins the wait queue, where it cannot lose another one.
func TestAClaimThatLosesManyRacesWaits(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 5)
	one, two := r.hosts[0], r.hosts[1]
	one.wedged = true
	w := one.ask("w", 1)
	for n := range queueAfter {
		c := one.plans()
		if len(c.batch.grants) != 1 {
			t.Fatalf("after %d races it plans %s", n, described(c.txn))
		}
		r.pool("db", 5) // a race for the spec, which it loses
		if one.arrives(c) {
			t.Fatal("it has not lost")
		}
		one.listen()
	}
	c := one.plans()
	if len(c.batch.grants) > 0 || len(c.batch.puts) != 1 {
		t.Fatalf("after %d races it plans %s", queueAfter, described(c.txn))
	}
	one.arrives(c)
	r.wantWaiters("w")
	r.wantDispatcher("db", "one")
	two.wedged = true
	late := two.ask("late", 1)
	two.listen()
	if c := two.plans(); len(c.batch.grants) > 0 {
		t.Errorf("another claims while it waits: %s", described(c.txn))
	} else {
		two.arrives(c)
	}
	one.wedged, two.wedged = false, false
	r.resolve()
	if w.got().Fence > late.got().Fence {
		t.Error("the other one was granted before")
	}
	one.giveBack("w")
	two.giveBack("late")
	r.pass(silentAfter + silentSpread + time.Second)
	r.wantDispatcher("db", "")
	r.clean()
}

// Grants to an instance that does not acknowledge them are bounded, and its waiters are passed
// after a while.
func TestAnInstanceThatHangsSwallowsFewSlots(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 6)
	one, two := r.hosts[0], r.hosts[1]
	two.ask("holder", 6).got()
	d := two.ask("d", 2)
	var ws []asked
	for n := range 6 {
		ws = append(ws, one.ask(fmt.Sprint("w", n), 1, rank(1)))
	}
	r.wantDispatcher("db", "two")
	one.wedged = true
	two.giveBack("holder")
	if n := len(r.notices()); n != maxUnacknowledged {
		t.Errorf("%d grants are not acknowledged, want %d", n, maxUnacknowledged)
	}
	r.wantUsed(maxUnacknowledged)
	d.waits()
	r.pass(ackWithin - tickEvery)
	d.waits()
	r.pass(2 * tickEvery)
	d.got()
	r.wantWaiters("w4", "w5")
	one.wedged = false
	r.resolve()
	r.wantNotices()
	r.wantUsed(6)
	for _, w := range ws[:maxUnacknowledged] {
		w.got()
	}
	two.giveBack("d")
	r.pass(tickEvery)
	for n, w := range ws {
		if n >= maxUnacknowledged {
			w.got()
		}
		one.giveBack(w.id)
	}
	r.pass(silentAfter + silentSpread + time.Second)
	r.clean()
}

// A key of a dispatcher that can't be read is named, closes nothing, and is replaced.
func TestADispatcherKeyThatCanNotBeRead(t *testing.T) {
	garble := func(r *rig) {
		r.t.Helper()
		key := r.keys.Dispatcher("db")
		r.txn(store.Put(key, []byte(`{"v":1,"host":""}`), r.hosts[2].waiterLeaseID))
		r.resolve()
		wantCorrupt(r.t, key, r.hosts[0].view.corrupt[key])
		if got := newReader(r.snapshot(), r.keys).Verify(); len(got) == 0 || got[0].Key != key {
			r.t.Errorf("verify finds %q", got)
		}
	}
	t.Run("nobody waits", func(t *testing.T) {
		r := newRig(t, "one", "two", "three")
		r.pool("db", 1)
		garble(r)
		r.hosts[0].ask("a", 1, noWait).got()
		r.hosts[0].giveBack("a")
		r.pass(silentAfter + silentSpread + time.Second)
		r.clean()
	})
	t.Run("claims wait", func(t *testing.T) {
		c := newContested(t)
		garble(c.rig)
		c.three.giveBack("holder")
		c.pass(silentAfter + silentSpread + time.Second)
		c.w.got()
		c.ends(c.one)
	})
}
