package owner

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// item is a part of a transaction that succeeds or fails by itself.
type item struct {
	claim   *Claim
	from    *Claim // whose keys it takes over
	release bool
	held    map[string]slots.Held

	shared []shared
	own    []*pb.Compare
	then   []*pb.RequestOp
	reads  []reading // what is read if it fails, with their operations
	orElse []*pb.RequestOp
}

// shared is a compare that items of a transaction may have in common.
type shared struct {
	key string
	*pb.Compare
}

// takeOver has a claim take over the keys of another one, which is released.
func (m *memory) takeOver(it *item, at time.Time) {
	it.held = it.from.keys
	m.put(it, at)
	for _, p := range it.then {
		it.own = append(it.own, store.ModEquals(string(p.GetRequestPut().Key), it.from.fence))
	}
}

// takeNew has a claim take slots that are free as far as is known. It is nil if that has to be read first.
func (m *memory) takeNew(it *item, at time.Time) (*item, error) {
	c := it.claim
	it.held = map[string]slots.Held{}
	for _, name := range c.pools {
		k := m.pools[name]
		h, ok := k.Take(c.needs[name], c.blocks[name])
		if !ok {
			m.giveUp(it)
			if k.read > c.arrived {
				return nil, problem.New(problem.NoCapacity, "pool '%s' has no %d free slots", name, c.needs[name])
			}
			m.want(k)
			return nil, nil
		}
		it.held[name] = h
		k.use(1)
		for _, n := range h.Numbers {
			it.own = append(it.own, store.CreateEquals(m.keys.Number(name, n), 0))
		}
		for _, b := range h.Blocks {
			it.own = append(it.own, m.ofBlock(name, b)...)
		}
		for _, a := range h.Areas {
			it.shared = append(it.shared, shared{m.keys.Area(name, a.Area), store.NoneCreatedSince(m.keys.Area(name, a.Area), a.Revision)})
		}
	}
	m.put(it, at)
	if len(it.own)+len(it.shared) > slots.MaxCompares {
		m.giveUp(it)
		return nil, problem.New(problem.NoCapacity, "the free slots are in too many parts")
	}
	return it, nil
}

// ofBlock returns the compares of a block: its runs are free or, in a pool without a limit, its name is.
func (m *memory) ofBlock(pool string, b slots.Block) (all []*pb.Compare) {
	if len(b.Runs) == 0 {
		return []*pb.Compare{store.CreateEquals(m.keys.Block(pool, b.Area, b.Name), 0)}
	}
	for _, r := range b.Runs {
		from, to := m.keys.Numbers(pool, r)
		c := store.CreateEquals(from, 0)
		c.RangeEnd = []byte(to)
		all = append(all, c)
	}
	return all
}

// put adds the keys of a claim, and the compares of each of its pools.
func (m *memory) put(it *item, at time.Time) {
	for _, name := range it.claim.pools {
		k := m.pools[name]
		spec, pending := m.keys.Spec(name), m.keys.Pending(name)
		it.shared = append(it.shared, shared{spec, store.ModEquals(spec, k.Spec().Revision)}, shared{pending, store.CreateEquals(pending, 0)})
		r, ops := m.requests(k, firstOf(it.held[name]), retryNumbers)
		it.reads, it.orElse = append(it.reads, r), append(it.orElse, ops...)
	}
	for _, p := range it.claim.spelled.Puts(it.held, wire.Written{Since: at}) {
		it.then = append(it.then, store.Put(p.Key(m.keys), p.Value, it.claim.lease))
	}
}

// firstOf returns the lowest number of what is held, 0 without any.
func firstOf(h slots.Held) int {
	first := slots.MaxNumbersOfPool
	for _, n := range h.Numbers {
		first = min(first, n)
	}
	for _, b := range h.Blocks {
		for _, r := range b.Runs {
			first = min(first, r.From)
		}
	}
	return first % slots.MaxNumbersOfPool
}

// free is the part of a transaction that releases a claim.
func (m *memory) free(c *Claim) *item {
	it := &item{claim: c, release: true, own: []*pb.Compare{store.ModEquals(c.main.Key(m.keys), c.fence)}}
	for _, r := range wire.Refs(c.keys) {
		it.then = append(it.then, store.Delete(r.Key(m.keys)))
	}
	return it
}

// giveUp ends that slots are tried that were not sent.
func (m *memory) giveUp(it *item) {
	if it.from != nil {
		return
	}
	for name, h := range it.held {
		m.pools[name].Abandon(h)
		m.pools[name].use(-1)
	}
}
