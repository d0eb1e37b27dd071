package owner

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// standIn dispatches for a test: it sees etcd as it is, offers what a walk grants, and changes its mind at random.
type standIn struct {
	*world
	names map[string]int // of offers keys, by host
}

func newStandIn(w *world) *standIn { return &standIn{w, map[string]int{}} }

// waiter is a demand as etcd has it.
type waiter struct {
	wire.Demand
	key   wire.DemandKey
	ref   wire.DemandRef
	stamp wire.Stamp
}

// waiters returns the demands in etcd that count and have not ended, in their order.
func (w *world) waiters() (all []waiter) {
	over := map[string]bool{}
	for _, p := range poolNames {
		for kv := range w.all(w.keys.Slots(p)) {
			_, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
			if err == nil && s.Demand.Created > 0 {
				r, err := s.Decode(string(kv.Key))
				w.check(err == nil, "%v", err)
				over[asked(&pool.Request{ID: s.Claim, Holder: r.Holder})] = true
			}
		}
	}
	created := map[wire.DemandKey]int64{}
	for _, p := range poolNames {
		for kv := range w.all(w.keys.DemandsAll(p)) {
			k, err := w.keys.DemandKey(string(kv.Key))
			w.check(err == nil, "%v", err)
			created[k] = kv.CreateRevision
		}
	}
	for _, p := range poolNames {
		for kv := range w.all(w.keys.DemandsAll(p)) {
			k, list, err := w.keys.DecodeDemands(string(kv.Key), kv.Value)
			w.check(err == nil, "%v", err)
			for _, d := range list.List {
				counts := !over[asked(&pool.Request{ID: d.Claim, Holder: d.Holder})]
				for name := range d.Pools {
					other := k
					other.Pool = name
					counts = counts && created[other] == kv.CreateRevision
				}
				if counts {
					all = append(all, waiter{d, k, wire.DemandRef{Pool: p, Name: k.Name, Created: kv.CreateRevision, Index: d.Index}, d.Stamped(kv.CreateRevision)})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b waiter) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.stamp.Compare(b.stamp), strings.Compare(a.Claim, b.Claim))
	})
	return all
}

// state is a pool as etcd has it.
type state struct {
	spec   pool.Spec
	slots  slots.Spec
	used   int
	number map[int]bool // held or offered
	names  map[[2]int]bool
	held   []int // numbers
}

func (w *world) state(name string) *state {
	s := &state{number: map[int]bool{}, names: map[[2]int]bool{}}
	for kv := range w.all(w.keys.Spec(name)) {
		s.spec, s.slots, _ = wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
	}
	for kv := range w.all(w.keys.Slots(name)) {
		ref, slot, _ := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
		if !ref.IsBlock() {
			s.used++
			s.number[ref.Number] = true
			s.held = append(s.held, ref.Number)
			continue
		}
		s.names[[2]int{ref.Area, ref.Number}] = true
		s.used += slot.Block.Count
		for _, r := range slot.Block.Runs {
			for n := r.From; n < r.To; n++ {
				s.number[n] = true
				s.held = append(s.held, n)
			}
		}
	}
	return s
}

// admitted returns the waiters that a walk grants.
func (w *world) admitted(all []waiter) []waiter {
	var capacities []admit.Capacity
	for _, p := range poolNames {
		s := w.state(p)
		capacities = append(capacities, admit.Capacity{Limit: s.spec.Limit, Used: s.used, Open: !s.spec.Paused && s.spec.Limit != pool.Closed})
	}
	var granted []waiter
	k := admit.NewWalk(capacities)
	for _, x := range all {
		a := &admit.Waiter{Reserve: x.Reserve}
		for i, p := range poolNames {
			if n := x.Pools[p]; n > 0 {
				a.Needs = append(a.Needs, admit.Need{Pool: i, N: n})
			}
		}
		if k.Next(a) == admit.Fit {
			granted = append(granted, x)
		}
	}
	return granted
}

// act offers slots, and ends that pools are pending.
func (d *standIn) act() {
	if d.nobody {
		return
	}
	all := d.waiters()
	open := map[wire.DemandRef]bool{}
	lent := map[string]*state{}
	for _, p := range poolNames {
		lent[p] = d.state(p)
	}
	for kv := range d.etcd.All(d.keys.OffersAll()) {
		list, err := wire.DecodeOffers(string(kv.Key), kv.Value)
		for _, of := range list {
			if open[of.Demand] = true; err == nil {
				for p, take := range of.Take {
					h, _ := take.Held()
					lent[p].lend(h)
				}
			}
		}
	}
	byHost := map[string][]wire.Offer{}
	for _, x := range d.admitted(all) {
		if open[x.ref] {
			continue
		}
		if of, ok := d.offer(x, lent); ok {
			byHost[x.key.Host] = append(byHost[x.key.Host], of)
			open[x.ref] = true
		}
	}
	t := &pb.TxnRequest{}
	for _, h := range slices.Sorted(maps.Keys(byHost)) {
		for list := range slices.Chunk(byHost[h], 1+d.IntN(3)) {
			d.names[h]++
			key := d.keys.Offer(wire.OfferKey{Host: h, Instance: "i", Name: d.names[h]})
			t.Success = append(t.Success, store.Put(key, wire.EncodeOffers(list), 0))
			d.offered += len(list)
		}
	}
	for _, p := range poolNames {
		if !slices.ContainsFunc(all, func(x waiter) bool { return !open[x.ref] && slices.Contains(x.Pending, p) }) && d.IntN(2) == 0 {
			t.Success = append(t.Success, store.Delete(d.keys.Pending(p)))
		}
	}
	d.must(t)
}

// lend marks what is offered.
func (s *state) lend(h slots.Held) {
	for _, n := range h.Numbers {
		s.number[n] = true
	}
	for _, b := range h.Blocks {
		s.names[[2]int{b.Area, b.Name}] = true
		for _, r := range b.Runs {
			for n := r.From; n < r.To; n++ {
				s.number[n] = true
			}
		}
	}
}

// offer chooses slots for a waiter, false if there are none that nobody has been offered.
func (d *standIn) offer(x waiter, lent map[string]*state) (of wire.Offer, ok bool) {
	of = wire.Offer{Demand: x.ref, Take: map[string]wire.Take{}}
	blocks := slots.ByBlocks(x.Pools)
	for _, p := range slices.Sorted(maps.Keys(x.Pools)) {
		s, n := lent[p], x.Pools[p]
		h := slots.Held{Spec: s.slots.Revision}
		var free []int
		for i, ceiling := 0, s.ceiling(); i < ceiling && len(free) < n; i++ {
			if !s.number[i] {
				free = append(free, i)
			}
		}
		switch {
		case s.spec.Limit == pool.Unlimited:
			h.Blocks = []slots.Block{{Name: s.freeName(0), Count: n}}
		case len(free) < n:
			return of, false
		case blocks[p]:
			h.Blocks = s.blocks(free)
		default:
			h.Numbers = free
		}
		for _, i := range free {
			if a := i / slots.MinArea; s.spec.Limit > 0 && !slices.ContainsFunc(h.Areas, func(of slots.Area) bool { return of.Area == a }) {
				h.Areas = append(h.Areas, slots.Area{Area: a, Revision: d.etcd.Revision()})
			}
		}
		if h.Compares() > slots.MaxCompares {
			return of, false
		}
		s.lend(h)
		of.Take[p] = wire.TakeOf(h)
	}
	return of, true
}

// freeName returns a name of a block that is not in use.
func (s *state) freeName(area int) (name int) {
	for s.names[[2]int{area, name}] {
		name++
	}
	return name
}

// blocks returns ascending numbers as a block for each area.
func (s *state) blocks(numbers []int) (all []slots.Block) {
	for _, i := range numbers {
		area := i / slots.MinArea
		if len(all) == 0 || all[len(all)-1].Area != area {
			all = append(all, slots.Block{Area: area, Name: s.freeName(area)})
		}
		b := &all[len(all)-1]
		b.Count++
		if k := len(b.Runs); k > 0 && b.Runs[k-1].To == i {
			b.Runs[k-1].To++
		} else {
			b.Runs = append(b.Runs, slots.Run{From: i, To: i + 1})
		}
	}
	return all
}

// ceiling is the number below which slots may be taken after a limit was lowered.
func (s *state) ceiling() int {
	for c := max(0, s.spec.Limit); c > 0; c-- {
		above := s.used - len(s.held) // counts without numbers
		for _, n := range s.held {
			if n >= c {
				above++
			}
		}
		if c+above <= s.spec.Limit {
			return c
		}
	}
	return 0
}

// disturb takes offers back, offers slots in advance, or passes an instance.
func (d *standIn) disturb() {
	if d.nobody {
		return
	}
	t := &pb.TxnRequest{}
	h := d.hosts[d.IntN(len(d.hosts))].name
	p := poolNames[d.IntN(len(poolNames))]
	advance := d.keys.Offer(wire.OfferKey{Host: h, Instance: "i", Name: -1, Advance: p})
	switch d.IntN(5) {
	case 0:
		for kv := range d.etcd.All(d.keys.Offers(h, "i")) {
			if d.IntN(2) == 0 {
				t.Success = append(t.Success, store.Delete(string(kv.Key)))
			}
		}
	case 1:
		t.Success = append(t.Success, store.Delete(advance))
	case 2:
		t.Success = append(t.Success, store.Put(d.keys.Offer(wire.OfferKey{Host: h, Instance: "i", Name: -1}), wire.EncodeEmpty(), 0))
	default:
		t.Success = append(t.Success, store.Put(advance, wire.EncodeEmpty(), 0))
	}
	d.must(t)
}

// checkOffered checks that a claim that has waited takes what it was offered.
func (w *world) checkOffered(s wire.Slot, put *mvccpb.Event, events []*mvccpb.Event) {
	var offers []*mvccpb.KeyValue // those that are open, or were
	for _, ev := range events {
		if ev.Type == mvccpb.DELETE && ev.PrevKv != nil {
			offers = append(offers, ev.PrevKv)
		}
	}
	for _, kv := range slices.AppendSeq(offers, w.etcd.All(w.keys.OffersAll())) {
		name, err := w.keys.OfferKey(string(kv.Key))
		if err != nil || name.Name < 0 {
			continue
		}
		list, _ := wire.DecodeOffers(string(kv.Key), kv.Value)
		if slices.ContainsFunc(list, func(of wire.Offer) bool { return of.Demand == s.Demand }) {
			return
		}
	}
	r, err := s.Decode(string(put.Kv.Key))
	w.check(err == nil && put.PrevKv != nil, "claim %s takes slots that were not offered to %v", s.Claim, s.Demand)
	for p := range r.Pools {
		_, ok := w.get(w.keys.Offer(wire.OfferKey{Host: r.Holder.Host, Instance: "i", Name: -1, Advance: p}))
		w.check(ok, "claim %s takes slots over without an advance offer of %s", s.Claim, p)
	}
	w.ahead++
}

// get returns a key.
func (w *world) get(key string) (kv *mvccpb.KeyValue, ok bool) {
	for kv := range w.etcd.All(key) {
		if string(kv.Key) == key {
			return kv, true
		}
	}
	return nil, false
}
