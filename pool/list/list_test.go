package list

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

type kv = mvccpb.KeyValue

func TestPoolsAreListedWithWhatTheyHold(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 3)
	w.spec("free", 1, paused)
	w.spec("lost", 2)
	w.hold("a", "one", map[string]int{"db": 2, "lost": 1})
	w.waits("w", "one", map[string]int{"db": 2, "free": 1})
	w.waits("v", "two", db(1))
	w.role("two")
	delete(w.kvs, w.keys.Spec("lost"))
	w.spoil(w.keys.Spec("broken"))
	w.spoil(w.keys.Slots("far") + "x")
	s := w.state()
	got := s.Pools()
	spec := func(limit int, paused bool) pool.Spec {
		s := pool.DefaultSpec()
		s.Limit, s.Paused = limit, paused
		return s
	}
	want := []pool.Status{
		{Name: "broken", SpecRevision: w.rev - 1, Problem: `value of key "/b/pools/broken/spec" can't be read: invalid character 'p' looking for beginning of value`},
		{Name: "db", Spec: spec(3, false), Claimed: 2, Waiting: 2, SpecRevision: 2, LimitSince: 2, Dispatcher: "two/i"},
		{Name: "free", Spec: spec(1, true), Waiting: 1, SpecRevision: 3, LimitSince: 3, Dispatcher: "two/i"},
		{Name: "lost", Claimed: 1, Deleted: true},
	}
	for i := range want {
		want[i].Revision = w.rev
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := s.Pool("nowhere"); problem.CodeOf(err) != problem.PoolNotFound || err.Error() != `there is no pool "nowhere"` {
		t.Errorf("an unknown pool: %v", err)
	}
	if d, err := s.Pool("broken"); err != nil || d.Problem != want[0].Problem {
		t.Errorf("an unreadable pool: %+v, %v", d, err)
	}
}

func TestAPoolIsShownWithHoldersAndWaiters(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 5)
	w.spec("gpu", 1)
	w.hold("b", "one", map[string]int{"db": 2, "gpu": 1}, w.ofRun)
	w.hold("a", "two", db(3))
	w.waits("late", "one", db(1))
	w.waits("early", "two", map[string]int{"db": 4, "gpu": 1}, func(d *wire.Demand) { d.Stamp = &wire.Stamp{Revision: 1} }, reserves)
	w.waits("urgent", "two", db(9), priority(3))
	w.waits("last", "two", db(1))
	d, err := w.state().Pool("db")
	if err != nil {
		t.Fatal(err)
	}
	wantHolders := []pool.HolderStatus{
		{Claim: "b", Holder: pool.Holder{Host: "one", Instance: "i", Run: "run-b", Step: "step"}, Slots: 2, Pools: map[string]int{"db": 2, "gpu": 1}, Since: epoch.Add(time.Second), Fence: store.FenceAt(4), Granted: 4, Lease: 1},
		{Claim: "a", Holder: pool.Holder{Host: "two", Instance: "i"}, Slots: 3, Pools: db(3), Since: epoch.Add(2 * time.Second), Fence: store.FenceAt(5), Granted: 5, Lease: 2},
	}
	if diff := cmp.Diff(wantHolders, d.Holders); diff != "" {
		t.Error(diff)
	}
	const both = "pools full: 'db' (5/5 slots), 'gpu' (1/1 slots)"
	wantWaiters := []pool.WaiterStatus{
		{Claim: "urgent", Holder: pool.Holder{Host: "two", Instance: "i"}, Slots: 9, Pools: db(9), Priority: 3, Position: 1, Since: epoch.Add(5 * time.Second), Reason: "pool 'db' has a limit of 5, this claim needs 9", Lease: 105},
		{Claim: "early", Holder: pool.Holder{Host: "two", Instance: "i"}, Slots: 4, Pools: map[string]int{"db": 4, "gpu": 1}, Position: 2, Since: epoch.Add(4 * time.Second), Reserve: true, Reason: both, Lease: 104},
		{Claim: "late", Holder: pool.Holder{Host: "one", Instance: "i"}, Slots: 1, Pools: db(1), Position: 3, Since: epoch.Add(3 * time.Second), Reason: "pool 'db' full (5/5 slots)", Lease: 103},
		{Claim: "last", Holder: pool.Holder{Host: "two", Instance: "i"}, Slots: 1, Pools: db(1), Position: 4, Since: epoch.Add(6 * time.Second), Reason: "pool 'db' full (5/5 slots)", Lease: 106},
	}
	if diff := cmp.Diff(wantWaiters, d.Waiters); diff != "" {
		t.Error(diff)
	}
	if d.Waiting != 4 || d.Claimed != 5 {
		t.Errorf("%d wait, %d slots are claimed", d.Waiting, d.Claimed)
	}
}

// Claims of the same rank that wait since the same revision, as steps do that were published together, are in the order of their
// ids.
func TestWaitersOfOneStampAreRankedByTheirIDs(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 1)
	w.hold("a", "one", db(1))
	for _, id := range []string{"c", "b", "d"} {
		w.waits(id, "one", db(1), func(d *wire.Demand) { d.Stamp = &wire.Stamp{Revision: 2} })
	}
	_, waiters := w.state().Claims()
	if waiters[0].Claim != "b" || waiters[1].Claim != "c" || waiters[2].Claim != "d" {
		t.Errorf("%+v", waiters)
	}
}

// A claim whose keys were put again keeps its fencing token.
func TestAClaimKeepsItsFence(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 1)
	w.hold("a", "one", db(1))
	w.putClaim(w.claims["a"], 3, store.FenceAt(3)+1)
	holders, _ := w.state().Claims()
	if h := holders[0]; h.Fence != store.FenceAt(3)+1 || h.Granted != 3 || h.Lease != 2 {
		t.Errorf("%+v", h)
	}
	if c, err := w.state().Claim("a"); err != nil || c.Fence() != store.FenceAt(3)+1 || c.Revision != 4 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Positions count the claims that wait for one of the same pools.
func TestClaimsAreListedInTheirOrder(t *testing.T) {
	w := newByHand(t)
	for _, name := range []string{"cpu", "db", "gpu"} {
		w.spec(name, 1)
		w.hold("held-"+name, "one", map[string]int{name: 1})
	}
	w.waits("1", "one", map[string]int{"gpu": 1, "db": 1})
	w.waits("2", "one", map[string]int{"cpu": 1})
	w.waits("3", "one", map[string]int{"db": 1})
	w.waits("4", "one", map[string]int{"cpu": 1, "gpu": 1})
	w.waits("5", "one", map[string]int{"cpu": 1, "db": 1, "gpu": 1})
	holders, waiters := w.state().Claims()
	var held []string
	for _, h := range holders {
		held = append(held, h.Claim)
	}
	positions := map[string]int{}
	for _, w := range waiters {
		positions[w.Claim] = w.Position
	}
	if want := map[string]int{"1": 1, "2": 1, "3": 2, "4": 3, "5": 5}; !cmp.Equal(positions, want) || !slices.Equal(held, []string{"held-cpu", "held-db", "held-gpu"}) {
		t.Errorf("%v are held, positions are %v, want %v", held, positions, want)
	}
}

func TestReasonsSayWhatKeepsAClaimWaiting(t *testing.T) {
	type waiting struct {
		needs  map[string]int
		change func(*wire.Demand)
	}
	for name, c := range map[string]struct {
		make func(w byHand)
		waiting
		text     string // of why
		listed   string // in lists, if it is another
		position int
		of       int
	}{
		"full": {
			func(w byHand) { w.spec("db", 2); w.hold("a", "one", db(2)) },
			waiting{needs: db(1)}, "pool 'db' full (2/2 slots)", "", 1, 1,
		},
		"too few": {
			func(w byHand) { w.spec("db", 3); w.hold("a", "one", db(2)) },
			waiting{needs: db(2)}, "pool 'db' has too few free slots (2/3 slots, 2 wanted)", "", 1, 1,
		},
		"two pools": {
			func(w byHand) {
				w.spec("db", 3)
				w.spec("gpu", 1)
				w.spec("free", 1)
				w.hold("a", "one", map[string]int{"db": 2, "gpu": 1})
			},
			waiting{needs: map[string]int{"db": 2, "gpu": 1, "free": 1}}, "pools full: 'db' (2/3 slots), 'gpu' (1/1 slots)", "", 1, 1,
		},
		"paused":           {func(w byHand) { w.spec("db", 3, paused) }, waiting{needs: db(1)}, "pool 'db' is paused", "", 1, 1},
		"closed":           {func(w byHand) { w.spec("db", 0) }, waiting{needs: db(1)}, "pool 'db' is closed", "", 1, 1},
		"a lowered limit":  {func(w byHand) { w.spec("db", 1) }, waiting{needs: db(2)}, "pool 'db' has a limit of 1, this claim needs 2", "", 1, 1},
		"a deleted pool":   {func(byHand) {}, waiting{needs: db(2)}, "pool 'db' does not exist", "", 1, 1},
		"an unread value":  {func(w byHand) { w.spec("db", 3); w.spoil(w.keys.Block("db", 0, 2)) }, waiting{needs: db(1)}, "pool 'db' has a value that can't be read", "", 1, 1},
		"an unread demand": {func(w byHand) { w.spec("db", 3); w.spoil(w.keys.Demands("db", "x", "y") + "1") }, waiting{needs: db(1)}, "waiting its turn (position 1 of 1)", "waiting its turn", 1, 1},
		"its turn": {
			func(w byHand) {
				w.spec("db", 9)
				w.spec("gpu", 1)
				w.waits("b", "one", db(1))
				w.waits("c", "one", map[string]int{"gpu": 1})
				w.waits("d", "one", db(1), priority(-1))
			},
			waiting{needs: db(1)}, "waiting its turn (position 2 of 3)", "waiting its turn", 2, 3,
		},
		"priority": {
			func(w byHand) { w.spec("db", 9); w.waits("b", "one", db(1)) },
			waiting{db(1), priority(1)}, "waiting its turn (position 1 of 2)", "waiting its turn", 1, 2,
		},
		"an instance that is passed": {
			func(w byHand) { w.spec("db", 9); w.passed("two") },
			waiting{needs: db(1)}, "two/i does not answer, and others pass its claims", "", 1, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newByHand(t)
			c.make(w)
			w.role("three")
			change := []func(*wire.Demand){}
			if c.change != nil {
				change = append(change, c.change)
			}
			w.waits("w", "two", c.needs, change...)
			s := w.state()
			why, err := s.Why("w")
			if err != nil || why.Waiter == nil || why.Held != nil {
				t.Fatalf("%+v, %v", why, err)
			}
			r := why.Reason
			if r.Text != c.text || r.Position != c.position || r.Waiting != c.of || r.Dispatcher != "three/i" || !r.Since.Equal(why.Waiter.Since) {
				t.Errorf("%+v, want %q, position %d of %d", r, c.text, c.position, c.of)
			}
			if why.Waiter.Reason != c.text || why.Waiter.Position != c.position {
				t.Errorf("the waiter has %q, position %d", why.Waiter.Reason, why.Waiter.Position)
			}
			_, waiters := s.Claims()
			i := slices.IndexFunc(waiters, func(w pool.WaiterStatus) bool { return w.Claim == "w" })
			want := c.listed
			if want == "" {
				want = c.text
			}
			if waiters[i].Reason != want {
				t.Errorf("it is listed with %q, want %q", waiters[i].Reason, want)
			}
		})
	}
}

func TestAReasonNamesTheOldestHolders(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 30)
	w.spec("gpu", 1)
	w.hold("both", "one", map[string]int{"db": 2, "gpu": 1}, w.ofRun)
	for i := range 14 {
		w.hold(string(rune('a'+i)), "two", db(2))
	}
	w.waits("w", "two", map[string]int{"db": 1, "gpu": 1})
	why, err := w.state().Why("w")
	if err != nil {
		t.Fatal(err)
	}
	want := []pool.Shortage{
		{Pool: "db", Wanted: 1, Limit: 30, Claimed: 30, Short: 1, Holders: []pool.HolderRef{{Claim: "both", Host: "one", Run: "run-both", Step: "step", Slots: 2}}},
		{Pool: "gpu", Wanted: 1, Limit: 1, Claimed: 1, Short: 1, Holders: []pool.HolderRef{{Claim: "both", Host: "one", Run: "run-both", Step: "step", Slots: 1}}},
	}
	for i := range 9 {
		want[0].Holders = append(want[0].Holders, pool.HolderRef{Claim: string(rune('a' + i)), Host: "two", Slots: 2})
	}
	if diff := cmp.Diff(want, why.Reason.Pools); diff != "" {
		t.Error(diff)
	}
}

func TestWhyNamesAClaim(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 9)
	w.hold("twice", "one", db(1))
	w.hold("twice", "two", db(1))
	w.waits("twice", "three", db(1))
	w.waits("waits", "one", db(1))
	w.waits("waits", "two", db(1))
	s := w.state()
	for name, c := range map[string]struct {
		held, waits string // the host
		all         int
		code        problem.Code
	}{
		"twice":         {held: "one", all: 2},
		"two/i/twice":   {held: "two", all: 1},
		"three/i/twice": {waits: "three"},
		"waits":         {waits: "one"},
		"two/i/waits":   {waits: "two"},
		"one/j/waits":   {code: problem.ClaimNotFound},
		"nobody":        {code: problem.ClaimNotFound},
	} {
		why, err := s.Why(name)
		if c.code != "" {
			if problem.CodeOf(err) != c.code {
				t.Errorf("%s: %+v, %v", name, why, err)
			}
			continue
		}
		if err != nil || len(why.All) != c.all {
			t.Errorf("%s: %+v, %v", name, why, err)
			continue
		}
		if c.held != "" && (why.Held == nil || why.Held.Host != c.held) || c.waits != "" && (why.Waiter == nil || why.Waiter.Host != c.waits) {
			t.Errorf("%s: %+v", name, why)
		}
	}
	if why, err := s.By(Own{Host: "two", Instance: "i"}).Why("twice"); err != nil || why.Held.Host != "two" || len(why.All) != 2 {
		t.Errorf("the instance that holds one is shown %+v, %v", why, err)
	}
	if _, err := s.Why("nobody"); err.Error() != `no claim "nobody" is held or waits` {
		t.Error(err)
	}

	// For those who change its keys.
	if _, err := s.Claim("twice"); problem.CodeOf(err) != problem.Invalid || !strings.Contains(err.Error(), "name one of them, as in one/i/twice or two/i/twice") {
		t.Errorf("an id of two claims: %v", err)
	}
	one, err := s.Claim("one/i/twice")
	if err != nil || one.Main != w.keys.Number("db", 0) || !slices.Equal(one.Keys, []string{one.Main}) || one.Revision != 3 || one.Lease != 1 {
		t.Errorf("%+v, %v", one, err)
	}
	if again, err := s.Fenced("twice", one.Fence()); err != nil || again.Main != one.Main {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := s.Fenced("twice", 7); problem.CodeOf(err) != problem.ClaimNotFound {
		t.Error(err)
	}
	if _, err := s.Claim("waits"); problem.CodeOf(err) != problem.ClaimNotFound {
		t.Error(err)
	}
	if held := s.Held([]string{"twice", "waits"}); len(held) != 1 || len(held["twice"]) != 2 {
		t.Errorf("%v are held", held)
	}
}

func TestARoleThatEndsNamesWhoFollows(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 9)
	w.waits("w", "one", db(1))
	dispatcher := func(want string) {
		t.Helper()
		s := w.state()
		why, err := s.Why("w")
		if err != nil || why.Reason.Dispatcher != want || s.Pools()[0].Dispatcher != want {
			t.Errorf("%q dispatches, %v; want %q", why.Reason.Dispatcher, err, want)
		}
	}
	dispatcher("")
	w.role("one")
	dispatcher("one/i")
	w.role("one", func(r *wire.Role) { r.Ends = true })
	dispatcher("")
	w.role("one", func(r *wire.Role) { r.Ends, r.NextHost, r.NextInstance = true, "two", "j" })
	dispatcher("two/j")
}

// A demand whose claim is held has ended, although its key may list it still.
func TestADemandThatHasEndedDoesNotWait(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 9)
	w.hold("a", "one", db(1))
	ref := w.waits("w", "one", db(1))
	if _, waiters := w.state().Claims(); len(waiters) != 1 {
		t.Fatalf("%+v wait", waiters)
	}
	r := &pool.Request{ID: "w", Slots: db(1), Holder: pool.Holder{Host: "one", Instance: "i"}}
	if !w.claim(r, ref) {
		t.Fatal("it does not fit")
	}
	s := w.state()
	if holders, waiters := s.Claims(); len(holders) != 2 || len(waiters) != 0 {
		t.Errorf("%+v are held, %+v wait", holders, waiters)
	}
	if p := s.Pools()[0]; p.Waiting != 0 {
		t.Errorf("%d wait", p.Waiting)
	}
	// One of an earlier life of the instance has its id.
	w.waits("a", "one", db(1))
	if _, waiters := w.state().Claims(); len(waiters) != 1 || waiters[0].Reason != `claim id "a" is held already by one/i` {
		t.Errorf("%+v wait", waiters)
	}
}

func TestOwnDemandsAreShownAsTheirInstanceKnowsThem(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 1)
	w.spec("free", 5)
	w.hold("held", "one", db(1))
	w.waits("other", "two", db(1))
	w.waits("known", "one", db(1))
	w.waits("ended", "one", db(1))
	s := w.state()
	demand := func(id string, needs map[string]int, created int64) OwnDemand {
		return OwnDemand{wire.Demand{Claim: id, Pools: needs, Since: epoch, Holder: pool.Holder{Host: "one", Instance: "i"}}, created}
	}
	own := Own{
		Host: "one", Instance: "i", Trouble: errors.New("etcd is away"),
		Waiting: []OwnDemand{demand("new", db(1), 0), demand("known", db(1), 6), demand("held", db(1), 0), demand("fits", map[string]int{"free": 2}, 0)},
	}
	_, waiters := s.By(own).Claims()
	var got []string
	for _, w := range waiters {
		got = append(got, w.Claim)
	}
	if want := []string{"other", "known", "new", "fits"}; !slices.Equal(got, want) {
		t.Errorf("%q wait, want %q", got, want)
	}
	if waiters[1].Lease != 103 || waiters[2].Lease != 0 {
		t.Errorf("leases %d and %d", waiters[1].Lease, waiters[2].Lease)
	}
	if p := s.By(own).Pools(); p[0].Waiting != 3 || p[1].Waiting != 1 {
		t.Errorf("%+v", p)
	}
	if why, err := s.By(own).Why("fits"); err != nil || why.Reason.Text != "no lease could be made: etcd is away" || why.Reason.Position != 1 {
		t.Errorf("%+v, %v", why.Reason, err)
	}
	if why, err := s.By(own).Why("new"); err != nil || why.Reason.Text != "pool 'db' full (1/1 slots)" || why.Reason.Position != 3 || why.Reason.Waiting != 3 {
		t.Errorf("%+v, %v", why.Reason, err)
	}
	for named, want := range map[string]string{"one/i/fits": "free", "one/i/none": "", "fits": "", "two/i/fits": ""} {
		if got := own.pool(named); got != want {
			t.Errorf("%s: pool %q, want %q", named, got, want)
		}
	}
}

// Demands count only with all their keys, created at one revision.
func TestDemandsThatAreNotCompleteDoNotCount(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 1)
	w.spec("gpu", 1)
	both := map[string]int{"db": 1, "gpu": 1}
	w.waits("whole", "one", both)
	w.waits("lacks", "one", both)
	w.waits("torn", "one", both)
	w.waits("other", "one", both)
	delete(w.kvs, w.keys.Demand(wire.DemandKey{Pool: "gpu", Host: "one", Instance: "i", Name: 2}))
	w.change(w.keys.Demand(wire.DemandKey{Pool: "gpu", Host: "one", Instance: "i", Name: 3}), func(kv *kv) { kv.CreateRevision++ })
	w.change(w.keys.Demand(wire.DemandKey{Pool: "gpu", Host: "one", Instance: "i", Name: 4}), func(kv *kv) { kv.Value = []byte(`{"v":2,"first":"cpu"}`) })
	if _, waiters := w.state().Claims(); len(waiters) != 1 || waiters[0].Claim != "whole" {
		t.Errorf("%+v wait", waiters)
	}
}

// Claims of several instances for the same step are one waiter, the first of them. They are for the same only if they say so.
func TestClaimsForTheSameStepAreOneWaiter(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 1)
	w.hold("x", "one", db(1))
	of := func(step string, sole bool) func(*wire.Demand) {
		return func(d *wire.Demand) {
			d.Sole, d.Stamp = sole, &wire.Stamp{Revision: 2}
			d.Holder.Run, d.Holder.Step, d.Holder.Bind = "r", step, "step"
		}
	}
	third := w.waits("s3", "three", db(1), of("a", true))
	w.waits("s2", "two", db(1), of("a", true))
	w.waits("s1", "one", db(1), of("a", true))
	w.waits("t", "one", db(1), of("b", true))
	w.waits("u", "one", db(1), of("a", false))
	s := w.state()
	d := s.demands[wire.DemandKey{Pool: "db", Host: "three", Instance: "i", Name: third.Name}].List[0]
	own := Own{Host: "three", Instance: "i", Waiting: []OwnDemand{{Demand: d, Created: third.Created}}}
	for name, o := range map[string]Own{"others": {}, "one of them": own} {
		_, waiters := s.By(o).Claims()
		var ids []string
		for _, x := range waiters {
			ids = append(ids, x.Claim)
		}
		if d, err := s.By(o).Pool("db"); !slices.Equal(ids, []string{"s1", "t", "u"}) || d.Waiting != 3 || err != nil {
			t.Errorf("%s: %v, %d wait, %v", name, ids, d.Waiting, err)
		}
	}
	if r, err := s.Reason(own.Waiting[0]); err != nil || r.Position != 1 || r.Waiting != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	if y, err := s.Why("u"); err != nil || y.Reason.Position != 3 || y.Reason.Waiting != 3 {
		t.Errorf("%+v, %v", y, err)
	}
}
