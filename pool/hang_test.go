package pool

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
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
		for busy := true; busy; {
			busy = false
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

// hang has one host hang for some time, though its leases are renewed. Meanwhile the others
// claim and release, and it may delay them by [yieldAfter] in all. Afterwards it does not
// yield for any longer.
func (w *world) hang() {
	w.calm()
	h := w.hosts[w.rnd.IntN(len(w.hosts))]
	for range 10 {
		w.live(time.Second)
		w.ask(w.hosts[w.rnd.IntN(len(w.hosts))])
		w.ask(h)
	}
	const step = 100 * time.Millisecond
	h.hung = true
	w.logf("%s hangs", h.name)
	blocked := time.Duration(0)
	for range 80 {
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
		if who := w.blockedBy(h); who != "" {
			// Each of several short times is noticed a tick late.
			if blocked += step; blocked > yieldAfter+6*tickEvery {
				w.failf("a hung host has blocked others for %s, and blocks %s still", blocked, who)
				return
			}
		}
	}
	h.hung = false
	w.logf("%s goes on", h.name)
	w.live(step)
	w.live(tickEvery)
	w.live(waiterDelay) // a batch of nothing but an answer is held back for that long
	if slices.ContainsFunc(h.core.queue, func(e *entry) bool { return e.due && e.req.Place != nil }) {
		return // it is due slots that it has no place to use: others are to have them
	}
	for _, other := range w.hosts {
		if o := other.core.view.instances[h.core.name()]; other != h && o != nil && o.yielded {
			w.failf("%s passes the waiters of %s, which acts again", other.name, h.name)
		}
	}
}

// blockedBy returns a waiter of a live host that lacks only what those of a hung one keep: it
// fits as soon as that is free, and is granted with them out of the way.
func (w *world) blockedBy(hung *simHost) string {
	for _, h := range w.hosts {
		c := h.core
		if h.hung || c.phase != normal || h.pending != nil || c.alone != nil {
			continue
		}
		waiters := c.candidates()
		now, without := make([]*Waiting, len(waiters)), make([]*Waiting, len(waiters))
		for i, cd := range waiters {
			if cd.e != nil {
				now[i], without[i] = cd.e.waiting, cd.e.waiting
				continue
			}
			out := *cd.w.waiting
			out.Yielded = out.Yielded || cd.w.by.name == hung.core.name()
			now[i], without[i] = cd.w.waiting, &out
		}
		for _, i := range Admit(c.view.capacities(), without).Grants {
			e := waiters[i].e
			if e.retryAt > c.view.rev || e.req.Place != nil {
				continue
			}
			// A live waiter may reserve only because the hung one's reservation stops another
			// from doing so. What it keeps is not kept by the hung one.
			if fits(freeWithout(c.view.capacities(), now, without, i), e.waiting) {
				return e.req.ID
			}
		}
	}
	return ""
}

// freeWithout returns what is left for the waiter with that index if all before it keep what
// they keep now, except for those that yield in without.
func freeWithout(capacities []Capacity, waiters, without []*Waiting, behind int) []int {
	all := make([]*Waiting, len(waiters))
	for i, w := range waiters {
		other := *w
		other.Mine = false // so that the decision names all that reserve
		all[i] = &other
	}
	free := freeSlots(capacities)
	// One pool with free slots has the decision go on to the end.
	d := Admit(append(capacities, Capacity{Limit: 1}), all)
	for _, i := range merge(d.Fits, d.Keeps) {
		if i >= behind || without[i].Yielded {
			continue
		}
		take(free, all[i])
		if all[i].Exclusive && slices.Contains(d.Fits, i) {
			closePools(free, all[i])
		}
	}
	return free
}

// TestEveryPartOfAYieldIsNeeded takes one part of the probes from every schedule, and
// expects the checks to notice.
func TestEveryPartOfAYieldIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("it can take some schedules to notice")
	}
	isProbe := func(op *pb.RequestOp) bool {
		n := op.GetRequestTxn()
		return n != nil && len(n.Success) > 0 && bytes.Contains(n.Success[0].GetRequestPut().GetValue(), []byte(`"probed":true`))
	}
	keys := store.NewKeys("/b/")
	for name, mutate := range map[string]func(*world, *pb.TxnRequest){
		"the probe": func(_ *world, txn *pb.TxnRequest) {
			txn.Success = slices.DeleteFunc(txn.Success, isProbe)
		},
		"the answer": func(w *world, txn *pb.TxnRequest) {
			txn.Success = slices.DeleteFunc(txn.Success, func(op *pb.RequestOp) bool {
				key := string(op.GetRequestPut().GetKey())
				return strings.HasPrefix(key, keys.Pools()) && strings.Contains(key, "/waiters/") && w.waiters[key] != nil &&
					bytes.Contains(w.waiters[key].Value, []byte(`"probed":true`))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range 5 * *schedules {
				w := newWorld(*firstSeed+uint64(i), 3)
				w.mutate = func(txn *pb.TxnRequest) { mutate(w, txn) }
				if w.run(); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", i+1, w.errs[0])
					return
				}
			}
			t.Errorf("nothing noticed that %s is missing", name)
		})
	}
}
