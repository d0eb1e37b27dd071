package pool

import (
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// instanceName names an instance.
type instanceName struct{ host, instance string }

// otherInstance is an instance with waiters in the wait queue, as this one sees it.
//
// Only its own host can grant a waiter, so an instance that hangs could keep slots from all
// others. One that does so for half of [yieldAfter] is probed: one of its waiters is marked
// in etcd. An instance that lives takes its slots, or writes that waiter again. If it does
// neither for the other half, it yields: all its waiters are passed, those that reserve
// included. It learns of that from the mark, and whatever it writes in the wait queue
// ends the yield.
//
// This is the only rule that depends on the local clock. It affects order, never safety.
type otherInstance struct {
	name    instanceName
	number  int // from 1 on: see [Waiting.By]
	waiters int
	probed  int // of them
	// blocks: it keeps slots from a waiter of another instance.
	blocks bool
	// blocked is for how long it has done so, and silent for how long it has not answered
	// a probe, since it last wrote in the wait queue.
	blocked, silent time.Duration
	yielded         bool
	probedAt        time.Time // by this instance
	// unprobable: etcd has refused this instance a probe, for lack of rights. The other one
	// yields without one then.
	unprobable bool
}

// acted notes that the instance has written in the wait queue.
func (o *otherInstance) acted() { o.blocks, o.blocked, o.silent, o.yielded = false, 0, 0, false }

// noteWrite notes that a waiter is about to get another value. A probe is no sign of life.
func (v *view) noteWrite(w *waiter, val waiterValue) {
	name := instanceName{val.Holder.Host, val.Holder.Instance}
	if w.by != nil && w.by.name != name {
		v.noteGone(w)
		w.by = nil
	}
	switch {
	case w.by == nil:
		if w.by = v.instances[name]; w.by == nil {
			v.numbered++
			w.by = &otherInstance{name: name, number: v.numbered}
			v.instances[name] = w.by
		}
		w.by.waiters++
	case w.value.Probed:
		w.by.probed--
	}
	if val.Probed {
		w.by.probed++
	} else {
		w.by.acted()
	}
}

// noteGone notes that a waiter is no longer in the wait queue.
func (v *view) noteGone(w *waiter) {
	w.by.acted()
	if w.value.Probed {
		w.by.probed--
	}
	if w.by.waiters--; w.by.waiters == 0 {
		delete(v.instances, w.by.name)
	}
}

// watch counts the time for which other instances have kept slots from others, or have not
// answered a probe, and decides which of them yield.
func (c *core) watch(now time.Time) {
	passed := now.Sub(c.watched)
	if passed > yieldAfter/2 {
		passed = 0 // nobody watched: what they did meanwhile may not be known yet
	}
	c.watched = now
	for _, o := range c.view.instances {
		if o.blocks {
			o.blocked += passed
		}
		if o.probed > 0 || o.unprobable && o.blocks && o.blocked >= yieldAfter/2 {
			o.silent += passed
		}
		if !o.yielded && o.silent >= yieldAfter/2 && o.name != c.name() {
			o.yielded = true
			c.log.Info("passing the waiters of an instance that does not answer",
				"host", o.name.host, "instance", o.name.instance, "waiters", o.waiters)
		}
	}
}

// name is that of this instance.
func (c *core) name() instanceName { return instanceName{c.host, c.instance} }

// noteBlockers takes the waiters that keep slots from others, last to first. The time counts
// whichever instance waits, so that an instance costs all others together no more than one
// alone; only those that wait for it probe it.
func (c *core) noteBlockers(waiters []candidate, blockers []blocker, now time.Time) {
	for _, o := range c.view.instances {
		o.blocks = false
	}
	c.probes = c.probes[:0]
	probed := map[*otherInstance]bool{}
	for _, b := range slices.Backward(blockers) {
		w := waiters[b.index].w
		o := w.by
		o.blocks = true
		if b.ours && !probed[o] && o.probed == 0 && !o.unprobable && o.blocked >= c.probeAfter() && now.Sub(o.probedAt) >= yieldAfter/2 {
			probed[o] = true
			c.probes = append(c.probes, w)
		}
	}
}

// probeAfter differs by host, so that not all of them probe the same instance at once.
func (c *core) probeAfter() time.Duration {
	const spread = 256 // milliseconds
	return yieldAfter/2 - time.Duration(c.start%spread)*time.Millisecond
}

// probe marks the waiters that are to be probed.
func (c *core) probe(b *builder, now time.Time) {
	for _, w := range c.probes {
		if b.probe(w) {
			w.by.probedAt = now
		}
	}
	c.probes = c.probes[:0]
}

// probe marks a waiter of another instance, unless that has written it meanwhile.
func (b *builder) probe(w *waiter) bool {
	val := w.value
	val.Probed = true
	data := store.Encode(val)
	var puts []*pb.RequestOp
	for _, pool := range poolNames(val.Pools) {
		puts = append(puts, store.Put(b.c.view.keys.Waiter(pool, w.order.String()), data, w.lease))
	}
	// The child may have as many operations as the root leaves to it.
	if !b.fits(len(puts), len(puts)+1, len(puts)*len(data)) {
		return false
	}
	unchanged := store.ModEquals(string(puts[0].GetRequestPut().Key), w.rev)
	b.ops = append(b.ops, store.Nest(&pb.TxnRequest{Compare: []*pb.Compare{unchanged}, Success: puts}))
	b.bytes += len(puts) * len(data)
	b.kept = max(b.kept, len(puts)) // by what comes after it, too
	b.b.probed = append(b.b.probed, w.by)
	return true
}

// answerProbes has the waiters of this instance written again that others have probed. An
// instance that can't take the slots it is due does not answer: others are to have them.
func (c *core) answerProbes(now time.Time) {
	own := c.view.instances[c.name()]
	if own == nil || own.probed == 0 || c.trouble(now) != nil {
		return
	}
	if slices.ContainsFunc(c.queue, func(e *entry) bool { return e.due && e.state == queued }) {
		return
	}
	for _, w := range c.view.waiters {
		if w.by != own || !w.value.Probed {
			continue
		}
		e := c.entries[w.order.Claim]
		switch {
		case e != nil && e.order == w.order && e.state <= claiming:
			e.written = e.written && e.writtenAt > w.rev
		default:
			c.dropOrphan(w)
		}
	}
}

// dropOrphans has the waiters of this instance deleted that belong to no request, as an
// earlier life leaves them, or a restore of etcd brings them back.
func (c *core) dropOrphans() {
	for _, w := range c.view.waiters {
		if e := c.entries[w.order.Claim]; c.ours(w) && (e == nil || e.order != w.order || e.state > claiming) {
			c.dropOrphan(w)
		}
	}
}

func (c *core) dropOrphan(w *waiter) {
	if !c.dropping(w.order) {
		c.log.Warn("deleting an orphaned waiter of this instance", "claim", w.order.Claim)
		c.drops = append(c.drops, drop{pools: poolNames(w.value.Pools), order: w.order})
		c.dirty = true
	}
}

// dropping reports whether a waiter is to be deleted already.
func (c *core) dropping(o Order) bool {
	is := func(d drop) bool { return d.order == o }
	return slices.ContainsFunc(c.drops, is) || slices.ContainsFunc(c.shelf.drops, is)
}
