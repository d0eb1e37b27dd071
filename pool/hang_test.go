package pool

import (
	"maps"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/admit"
)

// calm ends all trouble and gives the pools a few slots.
func (w *world) calm() {
	w.space, w.denying = storetest.SpaceFree, false
	for _, p := range w.pools {
		w.setPool(p, 1+w.rnd.IntN(4), false)
	}
	for _, h := range w.hosts {
		h.cut = false
	}
}

// live lets the hosts that do not hang do all there is to do, with as much time as is
// given.
func (w *world) live(d time.Duration) {
	w.pass(d)
	for range 3 { // a lease that is not ready is asked for again
		for busy, rounds := true, 0; busy; rounds++ {
			if busy = false; rounds > 10_000 {
				w.failf("the hosts find no rest")
				return
			}
			for _, h := range w.hosts {
				if !h.hung {
					busy = h.deliver(100) || busy
					busy = h.send() || busy
				}
			}
			for len(w.network) > 0 {
				w.arrive(0)
			}
			for _, h := range w.hosts {
				if !h.hung {
					busy = h.answer(!h.answered) || busy // what the network has swallowed times out
				}
			}
			w.collect()
		}
	}
}

// hang has one host hang for some time, though its leases are renewed; it may be a dispatcher.
// Meanwhile the others claim and release. It may delay them for as long as it takes to replace
// a dispatcher, and to find that notices are not acknowledged. Afterwards it takes part again.
func (w *world) hang() {
	w.calm()
	h := w.hosts[w.rnd.IntN(len(w.hosts))]
	for range 10 {
		w.live(time.Second)
		w.ask(w.hosts[w.rnd.IntN(len(w.hosts))])
		w.ask(h)
	}
	const (
		step = 100 * time.Millisecond
		most = silentAfter + silentSpread + ackWithin + 6*tickEvery
		// A grant is taken back after a dispatcher has learned of it, which may be another one.
		mostUnconfirmed = most + ackWithin
	)
	h.hung = true
	w.logf("%s hangs", h.name)
	blocked, unconfirmed := time.Duration(0), map[string]time.Time{}
	for range 100 {
		if other := w.hosts[w.rnd.IntN(len(w.hosts))]; !other.hung {
			if w.rnd.IntN(3) == 0 {
				w.ask(other)
			}
			if w.rnd.IntN(2) == 0 {
				w.giveBack(other)
			}
		}
		w.live(step)
		if len(w.errs) > 0 {
			return
		}
		if claim := w.blockedBy(h); claim != "" {
			if blocked += step; blocked > most {
				w.failf("a hung host has blocked others for %s, and blocks %s still", blocked, claim)
				return
			}
		}
		for key, n := range w.notices {
			k, _ := w.keys.ParsePoolKey(key)
			main := n.slots[0].ref
			switch m := w.model[w.keys.Slot(main.pool, main.group, main.index)]; {
			case !n.conditional || k.Host != h.name || m == nil || m.rev != n.rev || unconfirmed[key].IsZero() || !w.wanted(k.Pool, h):
				unconfirmed[key] = w.now
			case w.now.Sub(unconfirmed[key]) > mostUnconfirmed:
				w.failf("a hung host keeps what it was granted as %s and has not confirmed for %s", key, mostUnconfirmed)
				return
			}
		}
		maps.DeleteFunc(unconfirmed, func(key string, _ time.Time) bool { return w.notices[key] == nil })
	}
	h.hung = false
	w.logf("%s goes on", h.name)
	for range 4 {
		w.live(tickEvery)
	}
	for _, other := range w.hosts {
		if o := other.core.view.instances[h.core.name()]; other != h && o != nil && o.yielded {
			w.failf("%s passes the waiters of %s, which acts again", other.name, h.name)
		}
	}
}

// wanted reports whether a claim of a live host waits for a pool.
func (w *world) wanted(pool string, hung *simHost) bool {
	return slices.ContainsFunc(w.hosts, func(h *simHost) bool {
		return h != hung && slices.ContainsFunc(h.core.queue, func(e *entry) bool { return e.written && e.req.Slots[pool] > 0 })
	})
}

// blockedBy returns a claim of a live host that is not granted although it has its turn, or
// would have it if no waiter of the hung host that has its turn were there.
func (w *world) blockedBy(hung *simHost) string {
	for _, h := range w.hosts {
		c := h.core
		unknown := func(p string) bool { return c.view.pool(p).stale }
		if h.hung || c.phase != normal || h.pending != nil || c.alone != nil || slices.ContainsFunc(w.pools, unknown) {
			continue
		}
		candidates := c.all()
		waiting := make([]*admit.Waiter, len(candidates))
		for i, cd := range candidates {
			w := *cd.waiting()
			w.Mine, w.Yielded = true, cd.w != nil && c.passed(cd.w)
			waiting[i] = &w
		}
		for _, i := range admit.Admit(c.view.capacities(), waiting).Grants {
			waiting[i].Yielded = candidates[i].w != nil && candidates[i].w.by.name == hung.core.name()
		}
		for _, i := range admit.Admit(c.view.capacities(), waiting).Grants {
			if e := candidates[i].e; e != nil && e.retryAt <= c.shown(e) && e.req.Place == nil {
				return e.req.ID
			}
		}
	}
	return ""
}
