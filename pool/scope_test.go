package pool

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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
	one.polled([]*poolView{p}, resp, r.now)
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
