package dispatch

import (
	"container/heap"
	"slices"
	"time"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/slots"
)

const (
	// maxKeys is the most offers keys of a transaction, and maxBytes the most that they take: etcd accepts 1.5 MB. With
	// all else, a transaction has at most [MaxOps] operations.
	maxKeys  = 80
	maxBytes = 512 << 10
	// claimBytes, numberBytes and runBytes are about what an offer, a number and a run of a block take.
	claimBytes, numberBytes, runBytes = 200, 8, 20
)

// stop is what is not offered in a pool for the rest of a plan.
type stop int

const (
	nothing    stop = iota
	blocks          // since a claim of a higher rank waits for an area
	everything      // since a claim waits for the whole pool, or has it
)

// plan decides about all demands over one state of the view.
type plan struct {
	d     *Dispatcher
	now   time.Duration
	walk  *admit.Walk
	again time.Duration // when the next one is due although nothing changes
	more  bool          // it ended before it had decided about all

	kept    []*demand        // that fit and have no offer yet
	fits    map[*demand]bool // those for which slots are kept
	left    []*demand        // that have no offer because they do not fit, or are passed; one for each lane
	stopped map[*followed]stop
	// held is how many demands have slots kept for them, by owner and pool.
	held  map[ownerPool]int
	made  map[*owner]*open // the last key for each
	keys  []*open
	bytes int
}

type ownerPool struct {
	*owner
	pool *followed
}

// plan decides about all demands. It has the offers keys to be put; what is offered to the dispatcher's own instance is offered by it.
func (d *Dispatcher) plan(now time.Duration) *plan {
	p := &plan{d: d, now: now, walk: admit.NewWalk(d.view.capacities()), again: never, stopped: map[*followed]stop{}, made: map[*owner]*open{}, held: map[ownerPool]int{}, fits: map[*demand]bool{}}
	d.pending.begin()
	for x := range d.failing {
		p.ask(x, failed)
	}
	heads := d.order.heads()
	for heads.Len() > 0 {
		if p.more = len(p.keys) >= maxKeys || p.bytes >= maxBytes; p.more {
			d.pending.partly()
			break
		}
		l := (*heads)[0]
		d.counts.add(Examined)
		if p.turn(l) && l.heap.Len() > 0 {
			heap.Fix(heads, 0)
		} else {
			heap.Pop(heads)
		}
	}
	free := p.walk.Free()
	for _, x := range p.left {
		for _, n := range x.needs {
			if n.n > free[n.pool.index] {
				d.pending.ask(n.pool, short)
			}
		}
	}
	for _, x := range p.kept {
		d.order.add(x)
	}
	if !p.more {
		p.planAdvances()
	}
	return p
}

// ask records what a demand asks for in all its pools.
func (p *plan) ask(x *demand, w wait) {
	for _, n := range x.needs {
		p.d.pending.ask(n.pool, w)
	}
}

// turn decides about the first demand of a lane, and reports whether those behind it are to be decided about.
func (p *plan) turn(l *lane) bool {
	x := l.heap.all[0]
	if x.refused() {
		if x.again > p.now {
			return p.later(x)
		}
		p.d.order.remove(x)
		p.offer(&loan{demand: x, refused: true})
		return true
	}
	if p.passes(x) {
		p.left = append(p.left, x)
		return false
	}
	switch p.walk.Next(x.waiter()) {
	case admit.Impossible:
		for _, n := range x.needs {
			if !n.pool.capacity().Open {
				p.d.pending.ask(n.pool, short)
			}
		}
		return false
	case admit.Short:
		p.left = append(p.left, x)
		return false
	case admit.Reserves:
		p.ask(x, reserves)
		return false
	}
	return p.serve(x)
}

// refused reports whether a pool that a demand needs does not exist, as far as is known.
func (x *demand) refused() bool {
	return slices.ContainsFunc(x.needs, func(n need) bool {
		return n.pool.spec == nil && n.pool.read && len(n.pool.unreadable) == 0
	})
}

// passes reports whether a demand is left out because its owner was silent, or has enough offers in a pool in which others
// wait.
func (p *plan) passes(x *demand) bool {
	if x.owner.passing != served {
		return true
	}
	for _, n := range x.needs {
		others := len(n.pool.waiting)
		if n.pool.waiting[x.owner] > 0 {
			others--
		}
		if open := x.owner.open[n.pool] + p.held[ownerPool{x.owner, n.pool}]; others > 0 && open >= boundOf(n.pool.capacity().Limit, others) {
			return true
		}
	}
	return false
}

// serve offers a demand that fits its slots or, if they are lent or it is too early, keeps them for it. It reports whether
// the demands behind it may be served.
func (p *plan) serve(x *demand) bool {
	if x.again > p.now {
		return p.keep(x)
	}
	l, ok := p.choose(x)
	if !ok {
		p.d.counts.add(WaitedForLoan)
		return p.keep(x)
	}
	p.d.order.remove(x)
	p.offer(l)
	return true
}

// keep keeps the slots of a demand for it.
func (p *plan) keep(x *demand) bool {
	for _, name := range x.lists {
		p.d.pending.ask(p.d.view.pools[name], stays)
	}
	p.fits[x] = true
	for _, n := range x.needs {
		p.held[ownerPool{x.owner, n.pool}]++
	}
	return p.later(x)
}

// later leaves a demand to the next plan, and reports that those behind it may be served.
func (p *plan) later(x *demand) bool {
	if x.again > p.now {
		p.wakeAt(x.again)
	}
	p.d.order.remove(x)
	p.kept = append(p.kept, x)
	return true
}

// wakeAt has the next plan made at a time, if not before.
func (p *plan) wakeAt(at time.Duration) { p.again = min(p.again, at) }

// choose chooses the slots of a demand. It is false if they are lent to others.
func (p *plan) choose(x *demand) (*loan, bool) {
	l := &loan{demand: x}
	compares := 0
	for _, n := range x.needs {
		h, ok := n.pool.slots.Choose(n.n, n.blocks, x.owner.hash, max(p.d.view.revision, n.pool.at))
		if !ok {
			p.stop(n.pool, blocks)
			return nil, false
		}
		if s := p.stopped[n.pool]; s == everything || s == blocks && n.blocks || p.d.book.whole[n.pool] > 0 {
			return nil, false
		}
		l.held, compares = append(l.held, h), compares+h.Compares()
	}
	if l.whole = compares > slots.MaxCompares; !l.whole {
		return l, true
	}
	for i, n := range x.needs {
		if n.pool.spec.Limit == pool.Unlimited {
			continue
		}
		p.stop(n.pool, everything)
		if p.d.book.perPool[n.pool] > 0 || p.d.advanced(n.pool.name) {
			return nil, false
		}
		l.held[i].CompareWhole(max(p.d.view.revision, n.pool.at))
	}
	return l, true
}

// stop has no more offers made in a pool for the rest of the plan.
func (p *plan) stop(of *followed, s stop) { p.stopped[of] = max(p.stopped[of], s) }

// offer makes an offer.
func (p *plan) offer(l *loan) {
	x, o := l.demand, l.demand.owner
	keys, bytes := 0, claimBytes
	for i, h := range l.held {
		x.needs[i].pool.slots.Lend(h)
		keys += len(h.Numbers) + len(h.Blocks)
		bytes += len(h.Numbers) * numberBytes
		for _, b := range h.Blocks {
			bytes += len(b.Runs) * runBytes
		}
	}
	p.d.book.count(l, 1)
	if x.offered(); o.instance == p.d.self {
		if !l.refused {
			p.d.counts.add(OfferedOwn)
		}
		p.d.offerOwn(&open{owner: o, loans: []*loan{l}, since: p.now})
		return
	}
	if !l.refused {
		p.d.counts.add(Offered)
	}
	p.bytes += bytes
	last := p.made[o]
	if last == nil || alone(l) || !last.fits(keys) {
		last = &open{key: p.d.book.newKey(o), owner: o}
		p.keys = append(p.keys, last)
		if !alone(l) {
			p.made[o] = last
		}
		p.d.book.add(last)
	}
	last.add(l, keys)
}

// alone reports whether an offer has a key for itself: one of blocks.
func alone(l *loan) bool {
	return slices.ContainsFunc(l.held, func(h slots.Held) bool { return len(h.Blocks) > 0 })
}
