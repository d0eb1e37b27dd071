package pool

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// A spec can be known before what was claimed under the one before. The compares of a grant
// would not show that: a lowered limit has other groups.
func TestASpecThatIsNewerThanTheSlotsGrantsNothing(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("db", 9)
	one.ask("a", 1).got()
	one.giveBack("a")
	one.wedged = true // it knows the pool as it is now
	two.ask("b", 2).got()
	r.pool("db", 1)
	p := one.view.pool("db")
	resp, err := r.etcd.Txn(&pb.TxnRequest{Success: one.markGets(p)})
	if err != nil {
		t.Fatal(err)
	}
	one.polled([]*poolView{p}, resp, r.now, r.now)
	if p.spec.Limit != 1 || !p.whole {
		t.Fatalf("limit %d, whole %v", p.spec.Limit, p.whole)
	}
	c := one.ask("c", 1)
	one.act() // before anything more is known
	r.wantUsed(2)
	one.wedged = false
	r.resolve()
	c.waits()
	r.sound()
}

// A spec that can't be read closes its pool until it is deleted, however the instance learns of
// that.
func TestASpecThatCouldNotBeReadIsGone(t *testing.T) {
	for name, learn := range map[string]func(h *rigHost, p *poolView){
		"by a read": func(h *rigHost, p *poolView) {
			h.wasRead(p.name, *h.feeds.read(h.r.keys.Pool(p.name)), nil, h.r.now)
		},
		"by a poll": func(h *rigHost, p *poolView) {
			resp, err := h.r.etcd.Txn(&pb.TxnRequest{Success: h.markGets(p)})
			if err != nil {
				h.r.t.Fatal(err)
			}
			h.polled([]*poolView{p}, resp, h.r.now, h.r.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, hosts := narrowRig(t, "one")
			one := hosts[0]
			r.txn(store.Put(r.keys.Spec("db"), []byte(`{"v":9}`), 0))
			one.ask("a", 1).refused(problem.CorruptValue)
			r.txn(store.Delete(r.keys.Spec("db")))
			learn(one, one.view.pool("db"))
			one.ask("b", 1).refused(problem.PoolNotFound)
			r.pool("db", 1)
			r.pass(2 * store.StaleAfter)
			one.ask("c", 1).got()
		})
	}
}

// What is known of a spec may be newer than the events that a watch delivers.
func TestAnOldDeletionOfASpecDoesNotHideThatItCanNotBeRead(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("db", 1)
	one.ask("a", 1).got()
	one.ask("b", 1).waits()
	one.wantScope("db", everything)
	one.wedged = true
	r.txn(store.Delete(r.keys.Spec("db")))
	r.txn(store.Put(r.keys.Spec("db"), []byte(`{"v":9}`), 0))
	p := one.view.pool("db")
	resp, err := r.etcd.Txn(&pb.TxnRequest{Success: one.markGets(p)})
	if err != nil {
		t.Fatal(err)
	}
	one.polled([]*poolView{p}, resp, r.now, r.now)
	one.listen()
	if p.corrupt != 1 || p.grants() {
		t.Errorf("%d keys of the pool can't be read, it grants: %v", p.corrupt, p.grants())
	}
}

// An instance whose claims wait in more pools than one transaction can read polls all of them.
func TestAllPoolsInWhichClaimsWaitArePolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		e := New(Config{Backend: b, Keys: store.NewKeys("/b/"), Host: "one", Instance: "i"})
		for i := range 2*maxPolled + 1 {
			e.core.following(e.core.view.pool(fmt.Sprint("p", i))).scope = notices
		}
		for range 3 {
			time.Sleep(pollEvery)
			e.watches.poll(t.Context())
			for e.watches.polling {
				e.watches.tasks.Wait()
				e.urgent.run(e.core)
			}
			for _, p := range e.core.view.order {
				if age := time.Since(p.markedAt); age > 0 {
					t.Errorf("the marks of pool %s were read %v ago", p.name, age)
				}
			}
		}
	})
}

// Etcd is asked again at the next time, and not at once, when it has not answered.
func TestAPollThatFailsIsNotRepeatedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		e := New(Config{Backend: b, Keys: store.NewKeys("/b/"), Host: "one", Instance: "i"})
		e.core.following(e.core.view.pool("db")).scope = notices
		b.Down()
		e.watches.poll(t.Context())
		e.watches.tasks.Wait()
		e.urgent.run(e.core)
		if e.watches.polling {
			t.Error("it was repeated")
		}
		b.Up()
		e.watches.poll(t.Context())
		e.watches.tasks.Wait()
		e.urgent.run(e.core)
		if e.core.view.pool("db").markedAt.IsZero() {
			t.Error("it is not polled any more")
		}
	})
}

// What a read returns may be older than what the instance has done since, or than what a watch
// has delivered.
func TestAReadThatIsLateChangesNothing(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("db", 1)
	old := *one.feeds.read(r.keys.Pool("db"))
	a := one.ask("a", 1).got()
	one.wasRead("db", old, nil, r.now)
	r.pass(tickEvery)
	if err := a.Context().Err(); err != nil {
		t.Errorf("the claim was lost: %v", err)
	}
	one.ask("b", 1).waits()
	r.wantUsed(1)
	one.wantScope("db", everything)
	at := one.view.pool("db").rev
	one.wasRead("db", old, nil, r.now)
	if p := one.view.pool("db"); p.rev != at || !p.whole {
		t.Errorf("the pool is known up to %d, was %d", p.rev, at)
	}
	r.sound()
}

// A first snapshot of a watch is older than what the host has committed since, and arrives while
// the next batch is in flight: the answer to that must not say that the groups are known up to it.
func TestASnapshotDuringABatchIsNotKnownUpToIt(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("db", 150)            // 50 groups of 3 slots
	two.ask("big", 147).got()    // 49 of them
	r.pass(2 * store.StaleAfter) // nobody follows anything
	one.wedged = true            // from here on only what is said here happens
	a := one.ask("a", 1)
	one.begin() // the read
	b := one.ask("b", 1)
	one.begin() // the watch, with a snapshot
	one.wantScope("db", everything)
	watch := one.feeds.pools["db"][1]
	one.feeds.finishRead(0, r.now) // the read is there first
	if !one.act() {                // "a" and "b" are granted
		t.Fatal("no batch")
	}
	a.got()
	b.got()
	c := one.ask("c", 1)
	call := one.next(r.now) // the next batch is in flight: "c"
	if call == nil || call.batch == nil {
		t.Fatal("no batch")
	}
	one.feeds.deliver(watch, 1, r.now) // the snapshot arrives: of before "a" and "b"
	resp, err := r.etcd.Txn(call.txn)
	one.answer(call, resp, err, r.now)
	c.got()
	r.wantUsed(150)
	d := one.ask("d", 2)
	one.act()
	r.wantUsed(150) // the pool is full
	r.sound()
	one.wedged = false
	r.resolve()
	d.waits()
}

// The same with what another host was granted between the snapshot of the watch and the read,
// which were under way at the same time.
func TestASnapshotThatIsOlderThanAReadChangesNothing(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("db", 100)        // 50 groups of 2 slots
	two.ask("big", 98).got() // 49 of them
	r.pass(2 * store.StaleAfter)
	one.wedged = true
	old := one.feeds.read(r.keys.Pool("db")) // what the watch reads first
	two.ask("x", 1).got()
	a := one.ask("a", 1)
	one.ask("b", 1).cancel() // it made the host watch the pool
	one.core.follow(r.now)
	one.wantScope("db", everything)
	one.wasRead("db", *one.feeds.read(r.keys.Pool("db")), nil, r.now)
	call := one.next(r.now)
	if call == nil || call.batch == nil {
		t.Fatal("no batch")
	}
	one.message("db", everything, store.FeedMessage{Snapshot: old, Revision: old.Revision, History: old.History}, r.now)
	resp, err := r.etcd.Txn(call.txn)
	one.answer(call, resp, err, r.now)
	a.got()
	r.wantUsed(100)
	d := one.ask("d", 1)
	one.act()
	r.wantUsed(100)
	if n := r.usedBy("two"); n != 99 {
		t.Errorf("two holds %d slots of its 99: the key of one was overwritten", n)
	}
	r.sound()
	d.waits()
}

// usedBy is how many slots of pool "db" the main keys of a host's claims have.
func (r *rig) usedBy(host string) (n int) {
	v := newReader(r.snapshot(), r.keys)
	for _, cv := range v.view.allClaims() {
		if h := v.view.holder(cv, own{}); h.Host == host {
			n += h.Pools["db"]
		}
	}
	return n
}

// A claim is not held up by what the instance itself goes on writing.
func TestReleasesDoNotDelayAClaim(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("db", 100)
	for i := range 40 {
		one.ask(fmt.Sprint("a", i), 1).got()
	}
	r.pass(2 * oftenFor)
	one.wantScope("db", nothing)
	one.wedged = true
	x := one.ask("x", 1, noWait)
	reads := 0
	for i := range 40 {
		one.begin() // a read
		reads += len(one.feeds.reads)
		one.core.release(one.entries[fmt.Sprint("a", i)].claim, make(chan error, 1), r.now)
		one.act() // a claim is released while it is under way
		one.feeds.finishRead(0, r.now)
		one.act()
		if len(x.reply) > 0 {
			break
		}
	}
	if len(x.reply) == 0 {
		t.Errorf("%d reads of the pool have returned, and the claim has no answer", reads)
	}
}

// A restore with --bump-revision brings back claims that have ended, in pools that their host
// does not follow any more. Its watch of revocations can't go on then.
func TestWhatARestoreBringsBackIsFoundWithoutAWatch(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("aa", 9)
	r.pool("db", 9)
	both := func(req *Request) { req.Slots = map[string]int{"aa": 1, "db": 1} }
	kept := one.ask("kept", 1, both).got()
	one.ask("gone", 1, both).got()
	saved := r.etcd.Save()
	one.giveBack("gone")
	late := one.ask("late", 1, both).got()
	r.pass(forgetPool + 2*time.Second)
	one.wantScope("db", nothing)
	r.etcd.Restore(saved, 1000)
	one.feeds.resync(store.ErrCompacted, r.now)
	r.resolve()
	r.pass(time.Second)
	r.wantUsed(1)
	if kept.Context().Err() != nil || late.Context().Err() == nil {
		t.Errorf("the claim that is there: %v; that which is not: %v", kept.Err(), late.Err())
	}
	one.giveBack("kept")
	r.clean()
}

// slotKeys counts the keys of slots in a pool.
func (r *rig) slotKeys(pool string) (n int) {
	for range r.etcd.All(r.keys.Slots(pool)) {
		n++
	}
	return n
}

// A restore with --bump-revision brings back a claim of two pools that has ended. The watches of the
// pools find out one after the other, and the claim is not freed in part.
func TestWhatARestoreBringsBackInTwoPoolsIsFreedTogether(t *testing.T) {
	for _, first := range []string{"aa", "db"} {
		t.Run(first, func(t *testing.T) {
			r := newRig(t, "one")
			one := r.hosts[0]
			r.pool("aa", 9)
			r.pool("db", 9)
			both := func(req *Request) { req.Slots = map[string]int{"aa": 1, "db": 1} }
			one.ask("gone", 1, both).got()
			saved := r.etcd.Save()
			one.giveBack("gone")
			r.etcd.Restore(saved, 1000)
			for _, pool := range []string{first, "aa", "db"} {
				f := one.feeds.pools[pool][1]
				one.feeds.again(f, store.ErrCompacted)
				one.feeds.deliver(f, 1, r.now)
				one.tick(r.now)
				for one.act() {
				}
				if n := r.slotKeys("aa") + r.slotKeys("db"); n == 1 {
					t.Errorf("it has one of its two keys when pool %q was read", pool)
				}
			}
			r.resolve()
			r.pass(time.Second)
			r.wantUsed(0)
			r.clean()
		})
	}
}

// A read of all pools that skips a pool as not loadable must not count as having shown it.
func TestAdoptionWaitsForAPoolThatWasSkipped(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("db", 2)
	cl := one.ask("a", 1).got()
	one.wedged = true

	next := &rigHost{r: r, name: "one", leases: map[time.Duration]store.LeaseID{DefaultLeaseDuration: cl.Lease}}
	next.core = newCore(Config{Keys: r.keys, Host: "one", Instance: "i", Leases: rigLeases{next}, WaiterLeases: rigWaiters{next}, Logger: silent})
	next.adopt = map[store.LeaseID]bool{cl.Lease: true}
	next.waiterLeaseID, _, _ = r.etcd.Grant(time.Hour)
	next.feeds = newSimFeeds(next.core, r.etcd)
	next.core.reached(r.etcd.Revision(), r.now)
	for next.phase == fencing {
		next.act() // earlier writes are fenced
	}
	next.begin() // the read of all pools begins
	if len(next.feeds.reads) != 1 {
		t.Fatalf("%d reads", len(next.feeds.reads))
	}
	r.txn(store.Put("/elsewhere", nil, 0))
	// Two early requests have the pool watched, from later than that, and are canceled.
	for _, id := range []string{"x", "y"} {
		x := asked{next, id, make(chan outcome, 1)}
		next.request(newEntry(&Request{ID: id, Slots: map[string]int{"db": 1}, Wait: time.Hour}, "one", "i"), x.reply, r.now)
		next.core.cancel(id, x.reply, errStopped, r.now)
	}
	next.begin()
	next.wantScope("db", everything)
	next.feeds.deliver(next.feeds.pools["db"][1], 1, r.now)
	for end := r.now.Add(oftenFor); r.now.Before(end); { // the read of all pools takes longer
		r.now = r.now.Add(tickEvery)
		next.core.reached(r.etcd.Revision(), r.now)
		next.core.tick(r.now)
	}
	next.wantScope("db", nothing)
	next.feeds.finishRead(0, r.now)
	r.hosts = append(r.hosts, next)
	r.resolve()
	r.pass(time.Second)
	if len(next.adopted) != 1 {
		t.Errorf("%d claims are adopted, want 1", len(next.adopted))
	}
	r.wantUsed(1)
}

// What is followed of a pool is forgotten at the end of a watch, and made again before the
// watches learn of the end: the old watch goes on, and has no snapshot for the empty view.
func TestAWatchEndsWithWhatIsKnownOfItsPool(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("db", 2)
	two.ask("full", 2).got()
	w := one.ask("w", 1) // one is the dispatcher
	r.pass(tickEvery)
	one.wantScope("db", everything)
	v := two.ask("v", 1) // and grants for two as well
	w.cancel()           // it has no claims of its own for a while, and dispatches still
	r.pass(forgetPool)
	one.wantScope("db", everything)
	if n := one.followed["db"].begun; n != 1 {
		t.Fatalf("begun %d times", n)
	}
	v.cancel()
	one.wedged = true
	for range 100 {
		one.listen()
		if !one.act() && len(one.roles) == 0 {
			break
		}
	}
	two.giveBack("full")
	one.listen()
	// The iteration of the loop: a tick, then the operations that were collected, then the watches.
	one.core.tick(r.now)
	a := asked{one, "a", make(chan outcome, 1)}
	b := asked{one, "b", make(chan outcome, 1)}
	for _, x := range []asked{a, b} {
		req := &Request{ID: x.id, Slots: map[string]int{"db": 1}}
		one.request(newEntry(req, one.host, one.instance), x.reply, r.now)
	}
	one.next(r.now)
	one.wedged = false
	r.resolve()
	r.pass(4 * time.Second)
	for i := range 120 { // a client that tries twice a second
		x := asked{one, fmt.Sprint("x", i), make(chan outcome, 1)}
		req := &Request{ID: x.id, Slots: map[string]int{"db": 1}}
		one.request(newEntry(req, one.host, one.instance), x.reply, r.now)
		r.pass(500 * time.Millisecond)
	}
	a.got()
	b.got()
}

// The watch of one pool can be ahead of that of another. A claim of both is granted once it was seen
// in the pool whose dispatcher grants it: only then all that are before it there are known.
func TestAClaimThatWasSeenInItsSecondPoolHasNoTurnYet(t *testing.T) {
	r := newRig(t, "one", "two", "three")
	one, two, three := r.hosts[0], r.hosts[1], r.hosts[2]
	r.pool("aa", 2)
	r.pool("db", 1)
	aa := of(map[string]int{"aa": 1})
	two.ask("a", 1, aa).got()
	one.ask("b", 1, aa).got()
	one.ask("wide", 1, of(map[string]int{"aa": 2}))
	if by := r.dispatcher("aa"); by != "one" {
		t.Fatalf("%q dispatches", by)
	}
	one.wedged = true
	first := two.ask("first", 1, aa)
	three.ask("later", 1, of(map[string]int{"aa": 1, "db": 1}))
	for _, f := range one.feeds.feeds() {
		if f.pool == "db" {
			one.feeds.deliver(f, 100, r.now)
		}
	}
	one.release(one.entries["b"].claim, make(chan error, 1), r.now)
	for one.act() {
	}
	if r.has(r.keys.Notice("aa", "three", "i", "later")) {
		t.Error("a claim is granted before one that has waited longer")
	}
	one.wedged = false
	r.resolve()
	first.got()
	r.sound()
}
