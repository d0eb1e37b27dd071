package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// orderHolds is for how long claims may be served before the first one that waits. Then offers that were made before can be
	// committed for orderLag: the event of the demand, two transactions of the dispatcher, that of the offer, and two of its owner are
	// under way for 2.7 ms each, and one answer.
	orderHolds = 20 * ms
	orderLag   = 25 * ms
)

// ordering checks the order in which claims are served.
type ordering struct {
	first map[string]firstOf // by pool
}

// firstOf is the demand that is first in a pool.
type firstOf struct {
	demandAt
	since time.Duration
}

// check checks that a revision gives no slots to a claim that ranks behind the one that has been first for too long, and could
// have had them. All demands are those after the revision.
func (o *ordering) check(w *world, events []*mvccpb.Event) {
	all := w.waiting()
	for _, ev := range events {
		ref, err := w.keys.Ref(string(ev.Kv.Key))
		if err != nil || ev.Type != mvccpb.PUT {
			continue
		}
		f, ok := o.first[ref.Pool]
		_, s, err := w.keys.DecodeSlot(string(ev.Kv.Key), ev.Kv.Value, ev.Kv.CreateRevision)
		if err != nil || s.Record == nil || s.Demand.Created == 0 || !ok || f.Claim == s.Claim {
			continue
		}
		r, err := s.Decode(string(ev.Kv.Key))
		w.check(err == nil, "%v", err)
		waits := slices.ContainsFunc(all, func(x demandAt) bool { return x.Claim == f.Claim })
		most := orderHolds + orderLag
		if f.Priority > r.Priority {
			most = orderLag
		}
		w.check(!waits || r.Pools[ref.Pool] < f.Pools[ref.Pool] || w.now-f.since <= most,
			"claim %s takes slots of %s, and %s has been first for %v", s.Claim, ref.Pool, f.Claim, w.now-f.since)
	}
	for _, name := range w.pools {
		i := slices.IndexFunc(all, func(x demandAt) bool { return x.Pools[name] > 0 })
		switch {
		case i < 0:
			delete(o.first, name)
		case o.first[name].Claim != all[i].Claim:
			o.first[name] = firstOf{all[i], w.now}
		}
	}
}

// crowd is instances that have as many claims as they may of a pool that is full.
func crowd(seed uint64, f fault) *world {
	w := newScheduleWorld(seed, f)
	w.calm, w.serves, w.denied, w.pools = true, false, false, []string{"db"}
	w.putSpec("db", pool.Spec{Limit: 8 + w.IntN(5), ReserveAfter: pool.NeverReserve})
	for _, n := range slices.Clone(w.nodes) {
		n.life = dead
	}
	w.nodes = nil
	for i := range 2 + w.IntN(3) {
		w.start(fmt.Sprint("worker-", i), []wire.Kind{wire.Service, wire.Coordinator}[w.IntN(2)], nil)
	}
	w.run(time.Second)
	clients, hold := 4+w.IntN(8), time.Duration(1+w.IntN(10))*ms
	step := func() {
		for _, n := range w.nodes {
			for _, a := range n.sorted() {
				if a.granted && !a.gone && w.now-a.at >= hold+time.Duration(w.IntN(3_000))*time.Microsecond {
					n.giveUp(a)
				}
			}
			for i := 0; i < 3 && len(n.of) < clients; i++ {
				n.ask(map[string]int{"db": 1 + w.IntN(20)/19})
			}
			n.step()
		}
	}
	for ; w.now < 3000*ms && len(w.errs) == 0; w.run(500 * time.Microsecond) {
		step()
		if w.order == nil && w.now > 2500*ms { // before, nobody has dispatched, or one that was replaced
			w.order = &ordering{map[string]firstOf{}}
		}
	}
	return w
}

// The order holds but for 20 ms, with advance offers, on several instances.
func TestTheOrderHoldsOnSeveralInstances(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has no second goroutine")
	}
	t.Parallel()
	seen := map[string]int{}
	for seed := range uint64(crowds) {
		w := crowd(seed, fault{})
		if len(w.errs) > 0 {
			t.Fatalf("schedule %d: %s", seed, strings.Join(w.errs[:min(3, len(w.errs))], "\n"))
		}
		for what, n := range w.seen {
			seen[what] += n
		}
	}
	if t.Log(seen); seen["by an advance offer"] < 10*crowds {
		t.Errorf("%v", seen)
	}
}

// crowds is how many schedules of crowds there are.
const crowds = 6
