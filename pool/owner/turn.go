package owner

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// turn is what a survey has found out: which claims may take slots, as long as the specs, and the keys of pools that are pending,
// are as it has read them.
type turn struct {
	revision int64
	// pending and specs are the revisions of the keys of pools, as they were read; 0 without one.
	pending, specs map[string]int64
	// claims are those of this instance that wait and have their turn.
	claims []*Claim
	// empty are the pools that are pending, and for which no claim waits.
	empty []string
}

// passing is what lets a claim take slots although others wait.
type passing struct {
	turn    *turn
	surveys int // that it has asked for
	// alone: no other instance has a claim wait for the same, when that was read last.
	alone bool
}

// give records a turn; nil ends it.
func (p *passing) give(t *turn) { p.turn = t }

// see records whether no other instance has a claim wait for the same.
func (p *passing) see(alone bool) { p.alone = alone }

// count counts a survey.
func (p *passing) count() { p.surveys++ }

// of returns the revision of the key of a pool that is pending, 0 if it is not. A claim that has no turn needs pools
// that are not.
func (t *turn) of(pool string) int64 {
	if t == nil {
		return 0
	}
	return t.pending[pool]
}

// change returns what is done with the key of a pool that is pending when slots are taken: it is put again, or deleted if no claim
// waits for the pool.
func (t *turn) change(pool, key string) *pb.RequestOp {
	if slices.Contains(t.empty, pool) {
		return store.Delete(key)
	}
	return store.Put(key, wire.EncodeEmpty(), 0)
}

// without returns a pool of some that does not exist, if there is one.
func (t *turn) without(pools []string) string {
	for _, name := range pools {
		if t.specs[name] == 0 {
			return name
		}
	}
	return ""
}

// current reports whether nothing has been read of some pools since a turn was found out that ends it.
func (p *plan) current(t *turn, pools []string) bool {
	return t == nil || !slices.ContainsFunc(pools, func(name string) bool {
		k := p.memory.of(name, p.now)
		return k.pending != t.of(name) || k.Spec().Revision != t.specs[name]
	})
}

// ask has the pools of a claim that does not wait surveyed, since others wait for them. Full is a pool that has no free
// slots for it: then that is not needed. Done is false if something has to be read before.
func (p *plan) ask(c *Claim) (full string, done bool) {
	for _, name := range c.pools {
		if k := p.memory.of(name, p.now); !k.Ready() {
			p.memory.want(k)
			return "", false
		}
	}
	it := &item{kind: takes, claim: c}
	full, ok := p.takeNew(it)
	switch {
	case !ok:
		return full, false
	case c.passing.surveys >= maxRaces:
		p.refuse(c, othersWait(c.pools[0]))
	default:
		c.passing.count()
		p.surveys.ask(c)
	}
	p.memory.giveUp(it)
	return "", true
}

// withNotice returns the part that takes slots of a claim behind those that change the keys of pools that are pending:
// what other instances have found out of these pools ends with it, since it counts the slots as free.
func (p *plan) withNotice(it *item) (all []*item) {
	t := it.claim.passing.turn
	for _, name := range it.claim.pools {
		at := t.of(name)
		if at == 0 {
			continue
		}
		change := t.change(name, p.memory.keys.Pending(name))
		if it.note(change); !p.b.shared[p.memory.pendingAt(name, at).identity] {
			all = append(all, p.memory.mark(name, at, change))
		}
	}
	return append(all, it)
}

// serve commits the demands of this instance whose turn it is, and deletes the keys of pools for which no claim waits.
func (p *plan) serve() {
	t := p.takeTurn()
	if t == nil {
		return
	}
	if p.b.uses(t) { // parts that are sent again have another one
		p.commits.serve(t)
		return
	}
	var later []*Claim
	for _, c := range t.claims {
		if !p.serveOne(c, t) && p.b.full {
			later = append(later, c)
		}
	}
	for _, name := range t.empty {
		if !p.b.wrote[p.memory.keys.Pending(name)] {
			p.b.add(p.memory.mark(name, t.of(name), store.Delete(p.memory.keys.Pending(name))))
		}
	}
	if len(later) > 0 {
		t.leave(later)
		p.commits.serve(t)
	}
}

// serveOne adds a part that takes the slots of a demand whose turn it is. It is false if that is not possible now.
func (p *plan) serveOne(c *Claim, t *turn) bool {
	if p.b.full || c.state != waiting || c.withdrawn {
		return false
	}
	if c.listed() == nil || c.demand.ref().Created == 0 { // it is being put elsewhere
		return false
	}
	c.passing.give(t)
	if p.current(t, c.pools) && p.judge(c).is == mayTake {
		it := &item{kind: takes, claim: c}
		if _, ok := p.takeNew(it); ok {
			p.memory.underPending(it)
			p.memory.readOnFailure(it)
			if it.width() <= slots.MaxCompares && it.sit() && p.b.add(p.withNotice(it)...) {
				c.become(taking)
				return true
			}
			it.rise()
			p.memory.giveUp(it)
		}
	}
	c.passing.give(nil)
	return false
}
