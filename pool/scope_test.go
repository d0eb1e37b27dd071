package pool

import (
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

func TestDemands(t *testing.T) {
	for name, tc := range map[string]struct {
		d    demand
		now  scope
		want scope
		read bool
	}{
		"nothing is done":                               {want: nothing},
		"nothing is done any more":                      {now: everything, want: nothing},
		"a claim is judged":                             {d: demand{judges: true}, want: nothing, read: true},
		"it is the dispatcher":                          {d: demand{acts: true, queued: true}, want: everything},
		"it is the dispatcher, and a claim is judged":   {d: demand{acts: true, judges: true}, want: everything},
		"claims are asked for often":                    {d: demand{asks: true}, want: everything},
		"and others grant them":                         {d: demand{asks: true, queued: true}, want: nothing},
		"and others grant them, since a moment":         {d: demand{asks: true, queued: true, open: true}, now: everything, want: everything},
		"it was not watched a moment ago":               {d: demand{asks: true, queued: true, open: true}, now: notices, want: nothing},
		"claims wait":                                   {d: demand{waits: true, queued: true}, want: notices},
		"claims wait, since a moment":                   {d: demand{waits: true, queued: true, open: true}, now: everything, want: everything},
		"claims have waited, and none does now":         {d: demand{waits: true}, want: notices},
		"claims have waited, and are asked for often":   {d: demand{waits: true, asks: true}, now: notices, want: everything},
		"claims wait for long":                          {d: demand{waits: true, queued: true}, now: everything, want: notices},
		"claims wait, and one is judged":                {d: demand{waits: true, queued: true, judges: true}, now: notices, want: notices, read: true},
		"claims wait, and the dispatcher may be silent": {d: demand{acts: true, waits: true, queued: true}, now: notices, want: everything},
	} {
		if got, read := tc.d.scope(tc.now); got != tc.want || read != tc.read {
			t.Errorf("%s: %+v after %d: %d, read %v; want %d, %v", name, tc.d, tc.now, got, read, tc.want, tc.read)
		}
	}
}

// narrowRig has hosts that follow of a pool only what they act on.
func narrowRig(t *testing.T, hosts ...string) (*rig, []*rigHost) {
	t.Helper()
	r := newRig(t)
	r.narrow = true
	var all []*rigHost
	for _, name := range hosts {
		all = append(all, r.host(name))
	}
	return r, all
}

// begin begins the watches and reads that the host wants.
func (h *rigHost) begin() {
	h.core.follow(h.r.now)
	h.feeds.follow(h.r.now)
}

func (h *rigHost) wantScope(pool string, want scope) {
	h.r.t.Helper()
	got := nothing
	if f := h.followed[pool]; f != nil {
		got = f.scope
	}
	if got != want {
		h.r.t.Errorf("%s follows %d of pool %s, want %d", h.name, got, pool, want)
	}
}

func TestAPoolIsWatchedWhileItIsClaimedOften(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("db", 9)
	one.ask("a", 1).got()
	one.wantScope("db", nothing)
	r.pass(oftenWithin)
	one.ask("b", 1).got()
	one.wantScope("db", nothing)
	one.ask("c", 1).got()
	one.wantScope("db", everything)
	r.pass(oftenFor)
	one.wantScope("db", nothing)
	for _, id := range []string{"a", "b", "c"} {
		one.giveBack(id) // it needs to know nothing of the pool
	}
	one.wantScope("db", nothing)
	r.pass(forgetPool)
	if len(one.followed) > 0 {
		t.Errorf("%d pools are followed that are not in use", len(one.followed))
	}
	r.clean()
}

func TestOnlyTheDispatcherWatchesAFullPool(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two", "three")
	one, two, three := hosts[0], hosts[1], hosts[2]
	r.pool("db", 1)
	one.ask("a", 1).got()
	first, second := two.ask("b", 1), three.ask("c", 1)
	r.pass(tickEvery)
	r.wantWaiters("b", "c")
	one.wantScope("db", nothing)
	two.wantScope("db", everything)
	three.wantScope("db", notices)
	one.giveBack("a")
	first.got()
	two.giveBack("b")
	second.got()
	three.giveBack("c")
	r.pass(waitedFor + tickEvery)
	two.wantScope("db", nothing)
	three.wantScope("db", nothing)
	r.clean()
}

func TestASilentDispatcherIsReplacedByOneThatFollowsNoticesOnly(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two", "three")
	one, two, three := hosts[0], hosts[1], hosts[2]
	r.pool("db", 1)
	one.ask("a", 1).got()
	two.ask("b", 1)
	c := three.ask("c", 1)
	r.pass(tickEvery)
	two.wedged = true
	one.giveBack("a")
	r.pass(silentAfter + silentSpread + ackWithin + pollEvery + 4*tickEvery)
	c.got() // that of the host that hangs was passed
	r.sound()
}

// What a dispatcher has granted to a claim of two pools can be seen in one of them first.
func TestAPartOfAClaimIsNotGivenBack(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("aa", 1)
	r.pool("db", 1)
	both := func(req *Request) { req.Slots = map[string]int{"aa": 1, "db": 1} }
	one.ask("a", 1, both).got()
	one.ask("b", 1, both)
	c := two.ask("c", 1, both)
	r.pass(tickEvery)
	one.giveBack("a")
	two.wedged = true
	one.giveBack("b")
	two.wasRead("db", *two.feeds.read(r.keys.Pool("db")), nil, r.now)
	if !two.view.pool("db").whole || two.view.pool("aa").noticesRev >= r.etcd.Revision() {
		t.Fatal("more is known than the slots in one pool")
	}
	two.act()
	if n := len(two.releases); n > 0 {
		t.Errorf("%d parts of claims are given back", n)
	}
	two.wedged = false
	r.resolve()
	c.got()
	two.giveBack("c")
	r.pass(waitedFor + openFor)
	r.clean()
}

// Notices are followed for as long as a grant before the deletion of a waiter may be unknown.
func TestAGrantIsFoundAfterItsWaiterWasDeleted(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("db", 1)
	one.ask("a", 1).got()
	one.ask("d", 1)
	c := two.ask("c", 1)
	r.pass(tickEvery)
	r.wantWaiters("d", "c")
	one.giveBack("a")
	two.wedged = true
	one.giveBack("d") // and "c" is granted
	c.cancel()
	r.wantWaiters()
	two.wedged = false
	r.pass(keepPlace + time.Second)
	r.pass(waitedFor)
	r.wantUsed(0)
	r.clean()
}

// readCounter counts the reads of a pool that a host has carried out: each sets [poolView.at].
type readCounter struct {
	p  *poolView
	at time.Time
	n  int
}

// count is to be called more often than the pool is read.
func (c *readCounter) count() {
	if c.p.whole && !c.p.at.Equal(c.at) {
		c.at, c.n = c.p.at, c.n+1
	}
}

// A dispatcher that lives is not silent for a host that can't read its key for a while: else a
// hiccup of etcd has all hosts that wait read and watch the whole pool at once.
func TestADispatcherIsNotSilentWhileItsKeyCannotBeRead(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two", "three")
	one, two, three := hosts[0], hosts[1], hosts[2]
	r.pool("db", 1)
	one.ask("a", 1).got()
	two.ask("b", 1)
	three.ask("c", 1)
	r.pass(4 * time.Second)
	two.wantScope("db", everything)
	three.wantScope("db", notices)
	three.off = true // its polls fail; the dispatcher goes on putting its key
	r.pass(silentAfter + silentSpread + tickEvery)
	three.wantScope("db", notices)
}

// A claim that waits asks the watches for progress only for as long as it helps.
func TestAWaitingClaimAsksForNoProgress(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two", "three", "four")
	one, two, three, four := hosts[0], hosts[1], hosts[2], hosts[3]
	r.pool("db", 2)
	one.ask("a1", 1).got()
	one.ask("a2", 1).got()
	b := two.ask("b", 1)
	c := three.ask("c", 1)
	d := four.ask("d", 1)
	r.pass(4 * time.Second)
	two.wantScope("db", everything)
	two.wedged = true // the dispatcher hangs
	one.giveBack("a1")
	r.pass(8 * time.Second) // it is replaced, and "c" is granted
	c.got()
	d.waits()
	watch := two.feeds.pools["db"][1]
	for range 100 { // it goes on, and sees a free slot before it sees that it was replaced
		two.feeds.deliver(watch, 1, r.now)
		if n := len(two.view.claims); n < 2 {
			break
		}
	}
	two.checkDispatchers(r.now)
	if !two.act() { // its grant fails
		t.Fatal("no batch")
	}
	for range 100 { // then it learns of the other dispatcher
		if two.view.pool("db").dispatcher.by != two.core.name() {
			break
		}
		two.feeds.deliver(watch, 1, r.now)
	}
	two.core.tick(r.now)
	two.wedged = false
	r.pass(20 * time.Second)
	b.waits()
	two.wantScope("db", notices)
	if two.behind() {
		e := two.entries["b"]
		t.Errorf("%q waits for revision %d of a pool that is known up to %d and not followed: progress is requested every %v for as long as it waits",
			"b", e.retryAt, two.shown(e), catchUpEvery)
	}
}

// A claim that waits for a place of its holder does not need to know the pool.
func TestAClaimWithoutAPlaceDoesNotReadThePool(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("db", 9)
	places := NewPlaces(1)
	if !places.New().Take() {
		t.Fatal("no place")
	}
	one.ask("a", 1, func(req *Request) { req.Place = places.New() }).waits()
	reads := readCounter{p: one.view.pool("db")}
	for range 80 {
		r.pass(tickEvery)
		reads.count()
	}
	if reads.n > 2 {
		t.Errorf("the whole pool is read %d times in 20 s for a claim that can't be granted", reads.n)
	}
}

// Claims that do not wait, of a pool in which others wait, must not cost a read of the whole
// pool each.
func TestFrequentClaimsOfAQueuedPoolWatchIt(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("db", 1)
	two.ask("a", 1).got()
	two.ask("b", 1).waits()
	r.pass(3 * time.Second)
	for i := range 20 {
		one.ask(fmt.Sprint("w", i), 1, noWait)
		r.pass(100 * time.Millisecond)
	}
	reads := readCounter{p: one.view.pool("db"), at: one.view.pool("db").at}
	for i := range 50 {
		one.ask(fmt.Sprint("x", i), 1, noWait)
		if one.followed["db"].scope != everything {
			reads.count()
		}
		r.pass(100 * time.Millisecond)
	}
	if reads.n > 5 {
		t.Errorf("50 claims in 5 s have read the whole pool %d times", reads.n)
	}
}

// What a fence or a revision of before a restore asks for is never shown. That must not keep the
// pool from being read for ever.
func TestAFenceOfBeforeARestoreIsRefused(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("db", 9)
	saved := r.etcd.Save()
	for i := range 50 {
		r.txn(store.Put("/elsewhere", []byte(fmt.Sprint(i)), 0))
	}
	fence := r.etcd.Revision()
	r.etcd.Restore(saved, saved.Revision()-fence) // without --bump-revision
	one.feeds.resync(store.ErrRestored, r.now)
	one.wedged = true // the rig would find no rest
	reply := make(chan outcome, 1)
	taking := newEntry(&Request{ID: "t", Slots: map[string]int{"db": 1}}, one.host, one.instance)
	taking.takes = fence
	one.take(taking, reply, r.now)
	reads := 0
	let := func(d time.Duration) {
		for end := r.now.Add(d); r.now.Before(end); r.now = r.now.Add(tickEvery) {
			for range 20 {
				one.core.reached(r.etcd.Revision(), r.now)
				one.act()
				one.begin()
				reads += len(one.feeds.reads)
				for one.feeds.finishRead(0, r.now) {
				}
			}
			one.core.tick(r.now)
		}
	}
	let(patience + time.Second)
	if o := <-reply; problem.CodeOf(o.err) != problem.Precondition || reads > 100 { // the loop allows 20 reads for each tick
		t.Errorf("the claim is answered with %v after %d reads of the pool", o.err, reads)
	}
	r.now = r.now.Add(10 * time.Second)
	a := one.ask("a", 1)
	let(patience + time.Second)
	if len(a.reply) == 0 {
		t.Errorf("a later claim of the pool waits for ever: f.mustShow %d, etcd is at %d", one.followed["db"].mustShow, r.etcd.Revision())
	}
}

// A holder of nothing else learns of the end of its claim from its lease. The id is free again
// when the slots are.
func TestALostClaimIsForgottenWithoutAWatch(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("db", 1)
	a := one.ask("a", 1).got()
	one.wantScope("db", nothing)
	delete(one.leases, DefaultLeaseDuration) // nobody renews it
	one.leaseLost(a.Lease, errStopped, r.now)
	r.pass(DefaultLeaseDuration + 2*lostEvery)
	r.wantUsed(0)
	if n := len(one.entries); n > 0 {
		t.Errorf("%d claims are kept", n)
	}
	one.ask("a", 1).got()
	one.giveBack("a")
	r.clean()
}

// The slots of a claim that are seen in one pool do not show whose it is. A request that comes
// again is not refused because of what it was granted before.
func TestAnIDIsNotRefusedForAPartOfItsOwnClaim(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("aa", 1)
	r.pool("db", 1)
	both := func(req *Request) { req.Slots = map[string]int{"aa": 1, "db": 1} }
	one.ask("a", 1, both).got()
	one.ask("b", 1, both)
	first := two.ask("c", 1, both)
	r.pass(tickEvery)
	one.giveBack("a")
	two.wedged = true
	two.wasRead("aa", *two.feeds.read(r.keys.Pool("aa")), nil, r.now)
	one.giveBack("b") // and "c" is granted
	two.wasRead("db", *two.feeds.read(r.keys.Pool("db")), nil, r.now)
	first.cancel()
	again := two.ask("c", 1, both)
	again.waits()
	two.wedged = false
	r.resolve()
	again.got()
	two.giveBack("c")
	r.pass(waitedFor + openFor)
	r.clean()
}

// A claim that has lost a race reads the pool again at once.
func TestAClaimThatLostARaceReadsThePoolAtOnce(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("db", 1)
	r.pass(time.Second)
	one.wedged = true
	a := one.ask("a", 1)
	one.begin()
	one.feeds.finishRead(0, r.now)
	two.ask("b", 1).got() // in between
	two.giveBack("b")
	two.ask("c", 1).got()
	two.wedged = true
	if !one.act() {
		t.Fatal("no batch")
	}
	if len(a.reply) > 0 {
		t.Fatal("answered")
	}
	for range 5 { // the loop, without a tick
		one.core.reached(r.etcd.Revision(), r.now)
		one.act()
		one.feeds.follow(r.now)
	}
	if len(one.feeds.reads) == 0 {
		t.Errorf("the pool is not read before the next tick, up to %v later (refollow %v)", tickEvery, one.refollow)
	}
}

// A claim that gets a place reads the pool at once.
func TestAClaimThatGetsAPlaceReadsThePoolAtOnce(t *testing.T) {
	r, hosts := narrowRig(t, "one")
	one := hosts[0]
	r.pool("db", 9)
	places := NewPlaces(1)
	taken := places.New()
	taken.Take()
	one.ask("a", 1, func(req *Request) { req.Place = places.New() }).waits()
	r.pass(10 * time.Second)
	one.wedged = true
	taken.Give()
	one.core.dirty, one.core.refollow = true, true // as [Engine.Reconsider] does
	for range 5 {
		one.core.reached(r.etcd.Revision(), r.now)
		one.act()
		one.feeds.follow(r.now)
	}
	if len(one.feeds.reads) == 0 {
		t.Errorf("the pool is not read before the next tick")
	}
}
