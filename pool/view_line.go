package pool

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// waiter is a claim in line, as its keys show it.
type waiter struct {
	order   Order
	value   waiterValue
	work    work
	in      []*poolView // whose lines it was seen in
	rev     int64       // when one of its keys was last put
	lease   store.LeaseID
	waiting *Waiting
	by      *otherInstance // whose it is; this one included
}

// work is what sole claims are for: see [Request.Sole].
type work struct{ run, step, bind string }

func workOf(h *Holder) work { return work{h.Run, h.Step, h.Bind} }

// known reports whether it says what a claim is for.
func (w work) known() bool { return w.run != "" && w.step != "" }

func (v *view) putWaiter(p *poolView, text string, kv *mvccpb.KeyValue) error {
	o, err := ParseOrder(text)
	if err != nil {
		return &store.CorruptError{Key: string(kv.Key), Reason: err}
	}
	val, err := decodeWaiter(string(kv.Key), kv.Value, o)
	if err != nil {
		return err
	}
	if v.left[o] >= kv.ModRevision {
		return nil // a commit of ours is ahead of the watch
	}
	i, found := v.findWaiter(o)
	if !found {
		v.line = slices.Insert(v.line, i, &waiter{order: o})
	}
	w := v.line[i]
	if !slices.Contains(w.in, p) {
		w.in = append(w.in, p)
		p.waiting++
	}
	v.setWork(w, workOf(&val.Holder))
	v.noteWrite(w, val)
	w.value, w.rev, w.lease = val, kv.ModRevision, store.LeaseID(kv.Lease)
	w.waiting = &Waiting{Needs: v.roomNeeds(val.Pools), By: w.by.number, Reserve: val.Reserve, Exclusive: val.Exclusive}
	return nil
}

func (v *view) removeWaiter(p *poolView, text string) {
	o, err := ParseOrder(text)
	if err != nil {
		return
	}
	i, found := v.findWaiter(o)
	if !found {
		return
	}
	w := v.line[i]
	if at := slices.Index(w.in, p); at >= 0 {
		w.in = slices.Delete(w.in, at, at+1)
		p.waiting--
	}
	if len(w.in) == 0 {
		v.endWaiter(i)
	}
}

// endWaiter forgets a waiter.
func (v *view) endWaiter(i int) {
	w := v.line[i]
	v.line = slices.Delete(v.line, i, i+1)
	v.setWork(w, work{})
	v.noteGone(w)
}

// setWork notes what a waiter is for.
func (v *view) setWork(w *waiter, now work) {
	if w.work == now {
		return
	}
	if w.work.known() {
		rest := slices.DeleteFunc(v.byWork[w.work], func(o *waiter) bool { return o == w })
		if v.byWork[w.work] = rest; len(rest) == 0 {
			delete(v.byWork, w.work)
		}
	}
	if w.work = now; now.known() {
		v.byWork[now] = append(v.byWork[now], w)
	}
}

// committedLeave takes a waiter that a commit of ours deleted at rev.
func (v *view) committedLeave(o Order, rev int64) {
	if rev <= v.rev {
		return
	}
	v.left[o] = rev
	if i, found := v.findWaiter(o); found {
		for _, p := range v.line[i].in {
			p.waiting--
		}
		v.endWaiter(i)
	}
}

func (v *view) findWaiter(o Order) (int, bool) {
	return slices.BinarySearchFunc(v.line, o, func(w *waiter, o Order) int { return w.order.Compare(o) })
}

// roomNeeds translates what a claim needs into numbers of rooms.
func (v *view) roomNeeds(slots map[string]int) []RoomNeed {
	needs := make([]RoomNeed, 0, len(slots))
	for name, n := range slots {
		needs = append(needs, RoomNeed{Room: v.pool(name).number, N: n})
	}
	return needs
}
