package pool

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
)

// spacePools are those that the properties below are about.
var spacePools = []string{"a", "b", "c"}

func drawSlots(t *rapid.T) map[string]int {
	return rapid.MapOfN(rapid.SampledFrom(spacePools), rapid.IntRange(1, 4), 1, 3).Draw(t, "slots")
}

// spaceWorld is a rig in a random state: pools of all kinds, with holders and lines,
// and a host that does not take what it could.
func spaceWorld(t *testing.T, rt *rapid.T) (r *rig, looks *rigHost) {
	r = newRig(t, "one", "two", "three")
	for _, name := range spacePools {
		reserve := rapid.SampledFrom([]time.Duration{0, time.Second, NeverReserve}).Draw(rt, "reserve "+name)
		r.pool(name, rapid.SampledFrom([]int{Unlimited, 1, 3, 5, 8}).Draw(rt, "limit "+name), func(s *Spec) { s.ReserveAfter = reserve })
	}
	one, two := r.hosts[0], r.hosts[1]
	for i := range rapid.IntRange(0, 12).Draw(rt, "claims") {
		h := rapid.SampledFrom([]*rigHost{one, two}).Draw(rt, "host")
		h.ask(fmt.Sprint("c", i), 1, func(req *Request) {
			req.Slots, req.Priority = drawSlots(rt), rapid.IntRange(-1, 1).Draw(rt, "priority")
		})
	}
	r.pass(2 * time.Second)
	two.wedged = rapid.Bool().Draw(rt, "wedged")
	for _, id := range slices.Sorted(maps.Keys(one.entries)) {
		if one.entries[id].state == held && rapid.Bool().Draw(rt, "end "+id) {
			one.giveBack(id)
		}
	}
	for _, name := range spacePools {
		change := rapid.SampledFrom([]string{"", "", "", "pause", "close", "lower"}).Draw(rt, "then "+name)
		p := one.view.pools[name].spec
		switch change {
		case "pause":
			r.pool(name, p.Limit, func(s *Spec) { s.Paused = true })
		case "close":
			r.pool(name, Closed)
		case "lower":
			r.pool(name, 1)
		}
	}
	return r, r.hosts[2]
}

// admits is what [admit.Admit] grants to new claims behind the waiters that a host
// sees.
func (h *rigHost) admits(newcomers ...*admit.Waiter) admit.Decision {
	var waiters []*admit.Waiter
	for _, cd := range h.all() {
		waiters = append(waiters, cd.w.waiting)
	}
	d := admit.Admit(h.view.capacities(), append(waiters, newcomers...))
	first := len(waiters)
	d.Grants = slices.DeleteFunc(d.Grants, func(i int) bool { return i < first })
	for i := range d.Grants {
		d.Grants[i] -= first
	}
	return d
}

// What fits into the space is what Admit grants to new claims behind the waiters, one
// after the other, with the slots that some of them reserve.
func TestSpaceIsWhatAdmitLeaves(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		_, h := spaceWorld(t, rt)
		space := h.space()
		var newcomers []*admit.Waiter
		var fits []int
		for i := range rapid.IntRange(1, 6).Draw(rt, "newcomers") {
			slots := drawSlots(rt)
			w := &admit.Waiter{Needs: h.view.poolNeeds(slots), Mine: true, Reserve: rapid.Bool().Draw(rt, "reserves")}
			newcomers = append(newcomers, w)
			before := space.Clone()
			switch {
			case space.Fits(slots):
				fits = append(fits, i)
				space.Take(slots)
				if why := before.Why(slots); why != "" || len(before.Notes(slots, false)) > 0 {
					rt.Fatalf("%v fits, and has a reason: %s, %q", slots, why, before.Notes(slots, false))
				}
			default:
				if why := space.Why(slots); why == "" || len(space.Notes(slots, false)) == 0 {
					rt.Fatalf("%v does not fit, and has no reason: %q, %q", slots, why, space.Notes(slots, false))
				}
				if w.Reserve {
					space.Reserve(slots)
				}
			}
		}
		if got := h.admits(newcomers...).Grants; !slices.Equal(got, fits) {
			rt.Fatalf("Admit grants %v, of the space are %v", got, fits)
		}
	})
}

// What fits is granted to a claim that comes, and what does not is refused.
func TestAClaimThatFitsIntoTheSpaceIsGranted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		_, h := spaceWorld(t, rt)
		slots := drawSlots(rt)
		fits := h.space().Fits(slots)
		a := h.ask("new", 1, noWait, func(r *Request) { r.Slots, r.Priority = slots, MinPriority })
		if len(a.reply) == 0 { // the dispatcher hangs: another takes its place
			h.r.pass(silentAfter + silentSpread + tickEvery)
		}
		if len(a.reply) != 1 {
			rt.Fatal("it is not answered")
		}
		if o := <-a.reply; (o.err == nil) != fits {
			rt.Fatalf("%v fits: %t, and it is answered %v", slots, fits, o.err)
		}
	})
}

func dbSlots(n int) map[string]int { return map[string]int{"db": n} }

func TestASpaceSaysWhyAClaimDoesNotFit(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 4)
	r.pool("full", 1)
	r.pool("closed", Closed)
	r.pool("paused", 5, func(s *Spec) { s.Paused = true })
	r.pool("many", Unlimited)
	one.ask("a", 1, func(r *Request) { r.Slots["full"] = 1 }).got()
	text := func(s *Space, slots map[string]int, want string) {
		t.Helper()
		if got := s.Why(slots); got != want || s.Fits(slots) != (want == "") {
			t.Errorf("%v: %q, it fits: %t; want %q", slots, got, s.Fits(slots), want)
		}
	}
	s := two.space()
	text(s, dbSlots(5), "pool 'db' has a limit of 4, this claim needs 5")
	for want, slots := range map[string]map[string]int{
		"":                             {"db": 3, "many": 1000},
		"pool 'full' full (1/1 slots)": {"full": 1, "db": 1},
		"pool 'db' has too few free slots (1/4 slots, 4 wanted)": {"db": 4},
		"pools full: 'db' (1/4 slots), 'full' (1/1 slots)":       {"db": 4, "full": 1},
		"pool 'closed' is closed":                                {"closed": 1, "full": 1},
		"pool 'paused' is paused":                                {"paused": 1},
		"pool 'nowhere' does not exist":                          {"db": 1, "nowhere": 1},
	} {
		text(s, slots, want)
	}

	// What one takes is counted; what one reserves is not, and still keeps others out.
	taken := s.Clone()
	taken.Take(map[string]int{"db": 2})
	text(taken, dbSlots(2), "pool 'db' has too few free slots (3/4 slots, 2 wanted)")
	text(s, dbSlots(3), "") // the other is one of its own
	if s.Reserve(map[string]int{"db": 5}) || s.Reserve(map[string]int{"closed": 1}) || s.Reserve(map[string]int{"nowhere": 1}) {
		t.Error("what can't be had is reserved")
	}
	if !s.Reserve(dbSlots(4)) || s.Reserve(dbSlots(1)) {
		t.Error("the first reserves, and no other")
	}
	text(s, dbSlots(1), "others wait for pool 'db' before it")

	// Nor does a claim fit behind a waiter that reserves.
	r.pool("db", 4, func(s *Spec) { s.ReserveAfter = 0 })
	one.ask("wide", 4).waits()
	text(two.space(), dbSlots(1), "others wait for pool 'db' before it")

	r.txn(store.Put(r.keys.Slot("many", 0, 0), []byte("{"), 0))
	r.resolve()
	text(two.space(), map[string]int{"many": 1}, "pool 'many' has a value that can't be read")
}

func TestTheAgeAtWhichAClaimReservesIsTheShortestOfItsPools(t *testing.T) {
	pool := func(name string, d time.Duration) Status {
		return Status{Name: name, Spec: Spec{Limit: 1, ReserveAfter: d}}
	}
	s := NewSpace(pool("never", NeverReserve), pool("soon", time.Second), pool("later", time.Minute), pool("at-once", 0))
	for want, names := range map[time.Duration][]string{
		NeverReserve: {"never"}, time.Second: {"never", "later", "soon"}, time.Minute: {"later"}, 0: {"at-once", "soon"},
	} {
		slots := map[string]int{}
		for _, name := range names {
			slots[name] = 1
		}
		if got := s.ReserveAfter(slots); got != want {
			t.Errorf("%v: %s, want %s", names, got, want)
		}
	}
}

// A space made of what is shown of pools is that of pools without a line.
func TestASpaceOfStatuses(t *testing.T) {
	s := NewSpace(
		Status{Name: "db", Spec: Spec{Limit: 3}, Claimed: 1}, Status{Name: "over", Spec: Spec{Limit: 1}, Claimed: 2},
		Status{Name: "many", Spec: Spec{Limit: Unlimited}, Claimed: 5}, Status{Name: "gone", Spec: Spec{Limit: 3}, Deleted: true},
		Status{Name: "bad", Spec: Spec{Limit: 3}, Problem: "broken"}, Status{Name: "paused", Spec: Spec{Limit: 3, Paused: true}},
	)
	for name, want := range map[string]string{
		"db": "", "many": "", "over": "pool 'over' full (2/1 slots)", "gone": "pool 'gone' does not exist",
		"bad": "pool 'bad' has a value that can't be read", "paused": "pool 'paused' is paused", "nowhere": "pool 'nowhere' does not exist",
	} {
		if slots := map[string]int{name: 1}; s.Why(slots) != want || s.Fits(slots) != (want == "") {
			t.Errorf("%s: %q, it fits: %t; want %q", name, s.Why(slots), s.Fits(slots), want)
		}
	}
	if !s.Has("over") || s.Has("gone") || s.Has("nowhere") {
		t.Error("a pool that was deleted is none, though it holds slots still")
	}
}

// The notes of a space are true of it, and stay so while the same pools are short.
func TestNotesChangeWithNoSlot(t *testing.T) {
	space := func(used int) *Space {
		return NewSpace(
			Status{Name: "db", Spec: Spec{Limit: 4}, Claimed: used}, Status{Name: "gpu", Spec: Spec{Limit: 1}, Claimed: 1},
			Status{Name: "shut", Spec: Spec{Limit: 1, Paused: true}},
		)
	}
	const narrow = "pool 'db' has too few free slots (4 slots, 3 wanted)"
	both := map[string]int{"db": 3, "gpu": 1}
	notes := func(s *Space, slots map[string]int, first bool, want ...string) {
		t.Helper()
		if got := s.Notes(slots, first); !slices.Equal(got, want) {
			t.Errorf("%v: %q, want %q", slots, got, want)
		}
	}
	notes(space(1), dbSlots(3), false)
	notes(space(2), dbSlots(3), false, narrow)
	notes(space(3), dbSlots(3), false, narrow)
	notes(space(4), dbSlots(3), false, "pool 'db' full (4/4 slots)", narrow)
	notes(space(6), dbSlots(3), false, "pool 'db' full (4/4 slots)", narrow)
	notes(space(6), map[string]int{"db": 3, "shut": 1}, false, "pool 'shut' is paused")
	notes(space(6), dbSlots(5), false, "pool 'db' has a limit of 4, this claim needs 5")
	notes(space(4), both, false,
		"pools full: 'db' (4/4 slots), 'gpu' (1/1 slots)", "pools full: 'db' (4 slots, 3 wanted), 'gpu' (1/1 slots)")
	notes(space(2), both, false, "pools full: 'db' (4 slots, 3 wanted), 'gpu' (1/1 slots)")

	// What others have reserved is in the way, what one has reserved oneself is not.
	reserved := space(2)
	reserved.Reserve(dbSlots(3))
	const behind = "others wait for pool 'db' before it"
	notes(reserved, dbSlots(2), false, behind)
	notes(reserved, dbSlots(3), false, narrow, behind)
	notes(reserved, dbSlots(3), true, narrow)
	full := space(4)
	full.Reserve(dbSlots(3))
	notes(full, dbSlots(1), false, "pool 'db' full (4/4 slots)", behind)
}

// Waiters that a dispatcher passes keep no slots.
func TestWaitersThatArePassedTakeNoSpace(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 4)
	waiter := func(id string, since int64, lease store.LeaseID, change ...func(*Request)) *mvccpb.KeyValue {
		req := &Request{ID: id, Slots: dbSlots(2), Holder: Holder{Host: "other", Instance: id}}
		for _, f := range change {
			f(req)
		}
		return &mvccpb.KeyValue{
			Key:         []byte(r.keys.Waiter("db", Order{Since: since, Claim: id}.String())),
			Value:       encodeWaiter(&entry{req: req, spelled: spell(req, needsOf(req.Slots)), holding: holding{lease: lease}, arrived: r.now}),
			ModRevision: since,
		}
	}
	for name, c := range map[string]struct {
		free    int
		waiters []*mvccpb.KeyValue
	}{
		"one that is granted in its turn":            {2, []*mvccpb.KeyValue{waiter("a", 5, 7)}},
		"one that does not say where its slots go":   {4, []*mvccpb.KeyValue{waiter("a", 5, 0)}},
		"two of which only one can get what it asks": {2, []*mvccpb.KeyValue{waiter("a", 5, 7, sole(0)), waiter("b", 6, 8, sole(0))}},
	} {
		s := r.snapshot()
		s.KVs = append(s.KVs, c.waiters...)
		if space := newReader(s, r.keys).Space(); !space.Fits(dbSlots(c.free)) || space.Fits(dbSlots(c.free+1)) {
			t.Errorf("%s: there are not exactly %d free slots", name, c.free)
		}
	}

	h := r.hosts[0]
	places := NewPlaces(1)
	taken := places.New()
	taken.Take()
	h.ask("no-place", 2, func(r *Request) { r.Place = places.New() }).waits()
	if !h.space().Fits(dbSlots(4)) {
		t.Error("a claim without a place keeps slots")
	}
}

// A follower keeps what is there, and not what has happened.
func TestAFollowerDoesNotGrow(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 1)
	h := r.hosts[0]
	h.ask("a", 1).got()
	f := NewFollower(nil, r.keys, hclog.NewNullLogger())
	s := r.snapshot()
	f.take(store.FeedMessage{Snapshot: &s})
	h.ask("b", 1).waits()
	for kv := range r.etcd.All(r.keys.Waiters("db")) {
		for range 100 {
			f.take(store.FeedMessage{Events: []*mvccpb.Event{{Kv: kv}}, Revision: kv.ModRevision})
			kv.ModRevision++
		}
	}
	if n := len(f.reader.view.acted); f.reader.view.pools["db"].waiting != 1 || n > 0 {
		t.Errorf("%d waiters, and %d acts are kept", f.reader.view.pools["db"].waiting, n)
	}
}
