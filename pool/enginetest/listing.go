package enginetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/hashicorp/go-hclog"
)

// listing has what lists, reasons and followers show.
var listing = []behavior{
	{"lists show what their instance has just done", ownAtOnce, everywhere},
	{"lists show what others did a second ago", othersSoon, standIn},
	{"lists within a second share a read", sharedReads, standIn},
	{"lists show a change that the instance knows of", changed, everywhere},
	{"why explains holders and waiters of all hosts", why, everywhere},
	{"a waiting claim that is not in etcd yet is listed by its instance", notYetThere, standIn},
	{"a pool is shown with its holders and its waiters in order", poolDetail, everywhere},
	{"refusals say in one sentence what is in the way", sentences, everywhere},
	{"held claims of an instance are listed and found by id", heldHere, everywhere},
	{"the space of pools is what claims and those that wait leave", space, everywhere},
	{"a follower sees claims and waiters of all hosts", followers, everywhere},
	{"a follower has no space while etcd is silent", staleFollower, standIn},
	{"a space says why a claim does not fit and from when on it reserves", spaceTexts, everywhere},
	{"a reader shows one revision", oneRevision, everywhere},
	{"verify finds a value that can't be read", verifyFinds, everywhere},
	{"keys on a lease that etcd does not have are found", stuck, standIn},
	{"metrics count what was granted, refused, lost and is held", counted, standIn},
}

// ids are the claims that are listed.
func ids(h *host) (held, waiting []string) {
	h.w.Helper()
	holders, waiters, err := h.Claims(h.w.ctx())
	h.w.must(err)
	for _, x := range holders {
		held = append(held, x.Claim)
	}
	for _, x := range waiters {
		waiting = append(waiting, x.Claim)
	}
	return held, waiting
}

func ownAtOnce(w world) {
	w.pool("db", 1)
	one := w.host("one")
	for i := range 3 {
		id, other := fmt.Sprint("a", i), fmt.Sprint("b", i) // what is left of the last ones is not theirs
		a := one.take(id, slots(1))
		held, _ := ids(one)
		w.same("held", held, []string{id})
		d, err := one.Pool(w.ctx(), "db")
		w.must(err)
		w.same("slots in use", d.Claimed, 1)
		b := one.queued(other, slots(1))
		_, waiting := ids(one)
		w.same("waiting", waiting, []string{other})
		b.hangUp()
		_, waiting = ids(one)
		w.same("waiting", waiting, []string(nil))
		one.release(a)
		held, _ = ids(one)
		w.same("held", held, []string(nil))
		all, err := one.Pools(w.ctx())
		w.must(err)
		w.same("slots in use", all[0].Claimed, 0)
	}
}

func othersSoon(w world) {
	w.pool("db", 2)
	one, two := w.host("one"), w.host("two")
	ids(two)
	one.take("a", slots(1))
	w.pass(1100 * time.Millisecond)
	ids(two)
	w.pass(1100 * time.Millisecond)
	held, _ := ids(two)
	w.same("held", held, []string{"a"})
	one.take("b", slots(1))
	fresh, cancel := context.WithCancel(pool.Fresh(w.ctx()))
	defer cancel()
	holders, _, err := two.Claims(fresh)
	w.must(err)
	w.same("holders that are read now", len(holders), 2)
}

func sharedReads(w world) {
	w.pool("db", 3)
	one := w.host("one")
	one.take("a", slots(1))
	w.pass(5 * time.Second)
	reads := one.counts(func(c storetest.Call) bool { return c.Op == storetest.OpRange || c.Op == storetest.OpTxn })
	for i := range 100 {
		var err error
		switch i % 4 {
		case 0:
			_, err = one.Pools(w.ctx())
		case 1:
			_, _, err = one.Claims(w.ctx())
		case 2:
			_, err = one.Why(w.ctx(), "a")
		case 3:
			_, err = one.Space(w.ctx())
		}
		w.must(err)
	}
	if n := reads(); n > 8 {
		w.Errorf("100 lists took %d reads", n)
	}
}

func changed(w world) {
	w.pool("db", 9)
	one, two := w.host("one"), w.host("two")
	for i := range 5 {
		a := one.take(fmt.Sprint("a", i), slots(1))
		two.Changed(a.Fence.Revision())
		held, _ := ids(two)
		if !slices.Contains(held, a.ID) {
			w.Errorf("%s is not listed: %q", a.ID, held)
		}
	}
}

func why(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	one.take("a", slots(1), func(r *pool.Request) { r.Holder.Labels = map[string]string{"team": "x"} })
	two.queued("b", slots(1), priority(5))
	w.caughtUp()
	for name, why := range map[string]func(string) (pool.Why, error){
		"one":    func(id string) (pool.Why, error) { return one.Why(w.ctx(), id) },
		"two":    func(id string) (pool.Why, error) { return two.Why(w.ctx(), id) },
		"reader": func(id string) (pool.Why, error) { return w.read().Why(id) },
	} {
		a, err := why("a")
		w.must(err)
		if a.Held == nil || a.Waiter != nil || a.Held.Host != "one" || a.Held.Labels["team"] != "x" {
			w.Errorf("%s: held %+v", name, a)
		}
		b, err := why("two/test/b")
		w.must(err)
		if b.Waiter == nil || b.Held != nil || b.Waiter.Host != "two" || b.Waiter.Priority != 5 {
			w.Fatalf("%s: waits %+v", name, b)
		}
		w.same("its reason", []any{b.Reason.Text, b.Reason.Position, b.Reason.Waiting}, []any{"pool 'db' full (1/1 slots)", 1, 1})
		_, err = why("c")
		w.problem(err, problem.ClaimNotFound)
	}
}

func notYetThere(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	two.take("held", slots(1))
	w.pass(time.Second)
	one.fails(storetest.Fault{Drop: true}, txnWrites)
	one.ask("waits", slots(1))
	w.pass(200 * time.Millisecond)
	_, waiting := ids(one)
	w.same("its instance lists", waiting, []string{"waits"})
	y, err := one.Why(w.ctx(), "waits")
	w.must(err)
	if y.Waiter == nil {
		w.Errorf("its instance says %+v", y)
	}
	_, waiting = ids(two)
	w.same("another lists", waiting, []string(nil))
	one.mend()
}

func poolDetail(w world) {
	w.pool("db", 3)
	w.pool("api", 1)
	one, two := w.host("one"), w.host("two")
	one.take("a", map[string]int{"db": 2, "api": 1}, func(r *pool.Request) { r.Holder.Run = "nightly" })
	two.take("b", slots(1))
	one.queued("low", slots(1))
	two.queued("high", slots(2), priority(9))
	w.caughtUp()
	for name, read := range map[string]func() (pool.Detail, error){
		"one":    func() (pool.Detail, error) { return one.Pool(w.ctx(), "db") },
		"reader": func() (pool.Detail, error) { return w.read().Pool("db") },
	} {
		d, err := read()
		w.must(err)
		w.same(name+": the pool", []any{d.Name, d.Limit, d.Claimed, d.Waiting, d.Deleted, d.Problem}, []any{"db", 3, 3, 2, false, ""})
		if d.SpecRevision == 0 || d.Revision < d.SpecRevision || d.LimitSince == 0 {
			w.Errorf("%s: revision %d, of the spec %d, of the limit %d", name, d.Revision, d.SpecRevision, d.LimitSince)
		}
		var all []string
		for _, x := range d.Holders {
			all = append(all, fmt.Sprintf("%s %d %v %s %s", x.Claim, x.Slots, x.Pools, x.Host, x.Run))
		}
		w.same(name+": its holders", all, []string{"a 2 map[api:1 db:2] one nightly", "b 1 map[db:1] two "})
		all = nil
		for _, x := range d.Waiters {
			all = append(all, fmt.Sprintf("%s %d %d %d %s", x.Claim, x.Slots, x.Position, x.Priority, x.Host))
		}
		w.same(name+": its waiters", all, []string{"high 2 1 9 two", "low 1 2 0 one"})
	}
	_, err := one.Pool(w.ctx(), "no")
	w.problem(err, problem.PoolNotFound)
}

func sentences(w world) {
	for name, limit := range map[string]int{"full": 2, "tight": 3, "closed": pool.Closed, "paused": 2, "free": 1} {
		w.pool(name, limit)
	}
	w.pause("paused", true)
	one := w.host("one")
	one.take("a", map[string]int{"full": 2, "tight": 2})
	for _, tc := range []struct {
		need  map[string]int
		text  string
		pools int
	}{
		{map[string]int{"full": 1}, "pool 'full' full (2/2 slots)", 1},
		{map[string]int{"tight": 2}, "pool 'tight' has too few free slots (2/3 slots, 2 wanted)", 1},
		{map[string]int{"full": 1, "tight": 3, "free": 1}, "pools full: 'full' (2/2 slots), 'tight' (2/3 slots)", 2},
		{map[string]int{"closed": 1}, "pool 'closed' is closed", 1},
		{map[string]int{"paused": 1}, "pool 'paused' is paused", 1},
	} {
		p := one.refuses(problem.NoCapacity, "b", tc.need)
		r, ok := p.Detail.(pool.Reason)
		if !ok || r.Text != tc.text || len(r.Pools) != tc.pools || !strings.Contains(p.Message, r.Text) {
			w.Errorf("%v: %q of %d pools, want %q", tc.need, r.Text, len(r.Pools), tc.text)
		}
	}
}

func heldHere(w world) {
	w.pool("db", 9)
	one, two := w.host("one"), w.host("two")
	b, a := one.take("b", slots(1)), one.take("a", slots(1))
	two.take("c", slots(1))
	list := func() (all []string) {
		held, err := one.Held(w.ctx())
		w.must(err)
		for _, c := range held {
			all = append(all, c.ID)
		}
		return all
	}
	w.same("held here", list(), []string{"a", "b"})
	found, err := one.Lookup(w.ctx(), "a")
	w.must(err)
	w.same("its fence", found.Fence, a.Fence)
	found, err = one.Lookup(w.ctx(), "c")
	if found != nil || err != nil {
		w.Errorf("a claim of another instance: %v, %v", found, err)
	}
	one.LeaseLost(a.Lease, context.DeadlineExceeded)
	w.ended(a, problem.ClaimLost)
	w.same("held until they are released", list(), []string{"a", "b"})
	one.release(a, b)
	w.same("held here", list(), []string(nil))
}

// fits checks what fits into a space.
func fits(w world, s *pool.Space, need map[string]int, want bool) {
	w.Helper()
	if got := s.Fits(need); got != want {
		w.Errorf("%v fits: %t, want %t", need, got, want)
	}
}

func space(w world) {
	w.pool("db", 5)
	w.pool("api", 5)
	one, two := w.host("one"), w.host("two")
	one.take("a", slots(2))
	two.queued("wide", map[string]int{"db": 4, "api": 1})
	w.caughtUp()
	s, err := one.Space(w.ctx())
	w.must(err)
	for _, s := range []*pool.Space{s, w.read().Space()} {
		if !s.Has("db") || s.Has("no") {
			w.Error("it does not know which pools there are")
		}
		fits(w, s, slots(3), true)
		fits(w, s, slots(4), false)
		fits(w, s, map[string]int{"db": 3, "api": 5}, true) // the one that waits fits nowhere
		fits(w, s, map[string]int{"no": 1}, false)
		s.Take(slots(2))
		fits(w, s, slots(2), false)
		if !s.Reserve(slots(3)) {
			w.Error("it can't reserve")
		}
		fits(w, s, slots(1), false)
	}
}

func followers(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	f := w.follow()
	a := one.take("a", slots(2))
	var last int64
	w.eventually("it sees the claim", func() bool {
		s, held, rev, err := f.Space([]string{"a", "x"})
		if err != nil || held["a"] == nil {
			return false
		}
		last = rev
		w.same("its fence", held["a"][0].Fence, a.Fence)
		w.same("claims", len(held), 1)
		fits(w, s, slots(1), true)
		fits(w, s, slots(2), false)
		return true
	})
	if last < a.Fence.Revision() {
		w.Errorf("its revision is %d", last)
	}
	two.queued("b", slots(2))
	w.eventually("it signals a change and knows of the claim that waits", func() bool {
		select {
		case <-f.Changed():
		default:
		}
		s, _, _, err := f.Space(nil)
		return err == nil && s.Why(slots(3)) != ""
	})
}

func staleFollower(w world) {
	w.pool("db", 3)
	root := w.etcd.root
	peer := root.Peer()
	f := list.NewFollower(peer, w.keys, hclog.NewNullLogger())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	defer func() { cancel(); <-done; peer.Close() }()
	w.pass(time.Second)
	_, _, _, err := f.Space(nil)
	w.must(err)
	peer.Down()
	w.pass(5 * time.Second)
	_, _, _, err = f.Space(nil)
	w.problem(err, problem.EtcdUnavailable)
	peer.Up()
	w.pass(10 * time.Second)
	_, _, _, err = f.Space(nil)
	w.must(err)
}

func spaceTexts(w world) {
	w.pool("db", 2, reserveAfter(time.Hour))
	w.pool("api", 1, reserveAfter(time.Minute))
	one := w.host("one")
	one.take("a", slots(2))
	w.caughtUp()
	s := w.read().Space()
	w.same("why", s.Why(slots(1)), "pool 'db' full (2/2 slots)")
	if notes := s.Notes(slots(1), false); len(notes) == 0 || !strings.Contains(notes[0], "db") {
		w.Errorf("the notes are %q", notes)
	}
	w.same("from when on it reserves", s.ReserveAfter(map[string]int{"db": 1, "api": 1}), time.Minute)
	w.same("from when on it reserves", s.ReserveAfter(slots(1)), time.Hour)
}

func oneRevision(w world) {
	w.pool("db", 3)
	one := w.host("one")
	a := one.take("a", slots(2))
	r := w.read()
	one.release(a)
	if r.Revision() < a.Fence.Revision() {
		w.Errorf("it is of revision %d", r.Revision())
	}
	holders, _ := r.Claims()
	w.same("holders", len(holders), 1)
	w.same("slots in use", r.Pools()[0].Claimed, 2)
	w.same("the pool is of its revision", r.Pools()[0].Revision, r.Revision())
}

func verifyFinds(w world) {
	w.pool("db", 3)
	w.sound()
	key := w.damage("db", slotValue)
	if all := w.read().Verify(); len(all) != 1 || all[0].Key != key {
		w.Errorf("it finds %+v", all)
	}
	w.txn(store.Delete(key))
}

// leaseless is an etcd that has forgotten its leases, and not their keys.
type leaseless struct{ store.Backend }

// TimeToLive knows no lease.
func (leaseless) TimeToLive(context.Context, store.LeaseID) (time.Duration, error) {
	return 0, store.ErrLeaseNotFound
}

func stuck(w world) {
	w.pool("db", 3)
	one := w.host("one")
	on := []store.LeaseID{one.take("a", slots(2)).Lease}
	for _, tc := range []struct {
		b      store.Backend
		leases []store.LeaseID
		some   bool
	}{{w.etcd.any, nil, false}, {w.etcd.any, on, false}, {leaseless{w.etcd.any}, on, true}} {
		all, err := list.Stuck(w.ctx(), tc.b, w.keys, tc.leases)
		w.must(err)
		if (len(all) > 0) != tc.some {
			w.Errorf("of leases %v: %v", tc.leases, all)
		}
	}
}

func counted(w world) {
	w.pool("db", 2)
	one := w.host("one")
	w.must(one.reg.Register(one.Engine))
	a := one.take("a", slots(2))
	one.refuses(problem.NoCapacity, "b", slots(1))
	one.refuses(problem.ExceedsLimit, "b", slots(3))
	one.refuses(problem.PoolNotFound, "b", map[string]int{"no": 1})
	one.ask("b", slots(1), wait(100*time.Millisecond)).refused(problem.ClaimTimeout)
	c := one.queued("c", slots(1))
	for series, want := range map[string]float64{
		`berth_claims_held{pool="db"}`: 1, `berth_claims_waiting{pool="db"}`: 1, `berth_claims_granted_total`: 1,
		`berth_claims_refused_total{reason="no_capacity"}`: 1, `berth_claims_refused_total{reason="exceeds_limit"}`: 1,
		`berth_claims_refused_total{reason="pool_not_found"}`: 1, `berth_claims_refused_total{reason="claim_timeout"}`: 1,
		`berth_claim_conflicts_total`: 0, `berth_claim_batches_outcome_unknown_total`: 0,
	} {
		w.same(series, one.sample(series), want)
	}
	one.release(a)
	d := c.got()
	one.LeaseLost(d.Lease, context.DeadlineExceeded)
	w.ended(d, problem.ClaimLost)
	for series, want := range map[string]float64{
		`berth_claims_queued_total`: 2, `berth_claims_granted_total`: 2, `berth_claim_wait_seconds`: 2, `berth_claims_lost_total{reason="claim_lost"}`: 1,
		`berth_claims_held{pool="db"}`: 1,
	} {
		w.same(series, one.sample(series), want)
	}
	if n := one.sample("berth_claim_batch_size"); n < 3 {
		w.Errorf("the size of %v batches", n)
	}
	one.release(d)
}

// sample returns the value of a metric of a host, of a histogram the count. Without labels it is the sum.
func (h *host) sample(series string) (sum float64) {
	h.w.Helper()
	families, err := h.reg.Gather()
	h.w.must(err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if name := f.GetName(); series == name || series == name+"{"+strings.Join(labels, ",")+"}" {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
