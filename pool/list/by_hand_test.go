package list

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// byHand is a world that a test makes.
type byHand struct {
	*world
	t *testing.T
}

func newByHand(t *testing.T) byHand {
	w := newWorld(1)
	w.kvs, w.rev = map[string]*kv{}, 1
	return byHand{w, t}
}

func (w byHand) spec(name string, limit int, change ...func(*pool.Spec)) {
	s := pool.DefaultSpec()
	s.Limit = limit
	for _, f := range change {
		f(&s)
	}
	w.specs[name] = s
	w.write(0, map[string][]byte{w.keys.Spec(name): wire.EncodeSpec(s, 0)})
}

// hold has an instance of a host hold slots.
func (w byHand) hold(id, host string, needs map[string]int, change ...func(*pool.Request)) {
	w.t.Helper()
	r := &pool.Request{ID: id, Slots: needs, Holder: pool.Holder{Host: host, Instance: "i"}}
	for _, f := range change {
		f(r)
	}
	w.n++
	m := &made{req: r, held: map[string]slots.Held{}}
	for name, n := range needs {
		p := slots.New(0)
		if p.Read(w.reading(name)); n > slots.MaxNumbers {
			w.t.Fatal("hold takes slot keys only")
		}
		h, ok := p.Take(n, false)
		if !ok {
			w.t.Fatalf("%s does not fit", id)
		}
		m.held[name] = h
	}
	w.putClaim(m, 0, 0)
	w.claims[id] = m
}

// waits has a claim of an instance of a host wait.
func (w byHand) waits(id, host string, needs map[string]int, change ...func(*wire.Demand)) wire.DemandRef {
	w.n++
	d := wire.Demand{Claim: id, Pools: needs, Since: epoch.Add(time.Duration(w.n) * time.Second), Holder: pool.Holder{Host: host, Instance: "i"}}
	for _, f := range change {
		f(&d)
	}
	p := &put{name: wire.DemandKey{Pool: sortedNames(needs)[0], Host: host, Instance: "i", Name: w.n}, pools: sortedNames(needs), list: []wire.Demand{d}, lease: int64(100 + w.n)}
	w.putDemands(p)
	w.demands[w.keys.Demand(p.name)] = p
	return w.ref(p, d)
}

func (w byHand) role(host string, change ...func(*wire.Role)) {
	r := wire.Role{Host: host, Instance: "i", Kind: wire.Server}
	for _, f := range change {
		f(&r)
	}
	w.write(1, map[string][]byte{w.keys.Role(): wire.EncodeRole(r)})
}

func (w byHand) passed(host string) {
	w.write(0, map[string][]byte{w.keys.Offer(wire.OfferKey{Host: host, Instance: "i", Name: -1}): wire.EncodeEmpty()})
}

func (w byHand) offers(host string, name int, to ...wire.DemandRef) {
	var list []wire.Offer
	for _, ref := range to {
		list = append(list, wire.Offer{Demand: ref, Take: map[string]wire.Take{ref.Pool: {Numbers: []int{1}, Spec: 1}}})
	}
	w.write(0, map[string][]byte{w.keys.Offer(wire.OfferKey{Host: host, Instance: "i", Name: name}): wire.EncodeOffers(list)})
}

func (w byHand) ofRun(r *pool.Request) { r.Holder.Run, r.Holder.Step = "run-"+r.ID, "step" }

func reserves(d *wire.Demand) { d.Reserve = true }

func priority(n int) func(*wire.Demand) { return func(d *wire.Demand) { d.Priority = n } }

func paused(s *pool.Spec) { s.Paused = true }

func db(n int) map[string]int { return map[string]int{"db": n} }

// gone has a set of leases.
func gone(ids ...store.LeaseID) map[store.LeaseID]bool {
	all := map[store.LeaseID]bool{}
	for _, id := range ids {
		all[id] = true
	}
	return all
}
