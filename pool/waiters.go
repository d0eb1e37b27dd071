package pool

import (
	"cmp"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// waiter is a waiting claim, as its keys show it.
type waiter struct {
	order   Order
	value   waiterValue
	work    work
	in      []*poolView // in whose wait queues it was seen
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
	if v.goneWaiters[o] >= kv.ModRevision {
		return nil // a commit of ours is ahead of the watch
	}
	i, found := v.findWaiter(o)
	if !found {
		v.waiters = slices.Insert(v.waiters, i, &waiter{order: o})
	}
	w := v.waiters[i]
	if !slices.Contains(w.in, p) {
		w.in = append(w.in, p)
		p.waiting++
	}
	v.setWork(w, workOf(&val.Holder))
	v.noteWrite(w, val)
	w.value, w.rev, w.lease = val, kv.ModRevision, store.LeaseID(kv.Lease)
	w.waiting = &Waiting{Needs: v.poolNeeds(val.Pools), By: w.by.number, Reserve: val.Reserve, Exclusive: val.Exclusive}
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
	w := v.waiters[i]
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
	w := v.waiters[i]
	v.waiters = slices.Delete(v.waiters, i, i+1)
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

// committedWaiterDelete takes a waiter that a commit of ours deleted at rev.
func (v *view) committedWaiterDelete(o Order, rev int64) {
	if rev <= v.rev {
		return
	}
	v.goneWaiters[o] = rev
	if i, found := v.findWaiter(o); found {
		for _, p := range v.waiters[i].in {
			p.waiting--
		}
		v.endWaiter(i)
	}
}

func (v *view) findWaiter(o Order) (int, bool) {
	return slices.BinarySearchFunc(v.waiters, o, func(w *waiter, o Order) int { return w.order.Compare(o) })
}

// poolNeeds translates what a claim needs into numbers of pools.
func (v *view) poolNeeds(slots map[string]int) []PoolNeed {
	needs := make([]PoolNeed, 0, len(slots))
	for name, n := range slots {
		needs = append(needs, PoolNeed{Pool: v.pool(name).number, N: n})
	}
	return needs
}

// Order is a waiter's place in the wait queue. It is the same in every pool of its
// claim, which keeps claims of several pools free of deadlock, and it uses no clock.
type Order struct {
	// Priority of the claim; higher goes first.
	Priority int
	// Since is the revision at which the claim was found not to fit.
	Since int64
	// Claim is the claim's id.
	Claim string
	// By identifies the instance, by a hash of its name, so that claims of one id that
	// wait on two instances are two waiters.
	By uint32
}

// Compare ranks two orders by, in this order: higher priority, earlier
// revision, claim id, instance.
func (o Order) Compare(p Order) int {
	return cmp.Or(
		cmp.Compare(p.Priority, o.Priority),
		cmp.Compare(o.Since, p.Since),
		cmp.Compare(o.Claim, p.Claim),
		cmp.Compare(o.By, p.By),
	)
}

// The widths of the fields of an order's text.
const (
	priorityWidth = 4  // of MaxPriority - priority: 0000 to 2000
	sinceWidth    = 16 // of the revision in hexadecimal
	orderWidth    = priorityWidth + 1 + sinceWidth + 1
	byWidth       = 8 // of the instance in hexadecimal
)

// byMark ends the claim's id: it ranks before all that an id can go on with.
const byMark = '+'

// String is the last part of the waiter's key: sorted as text it ranks as
// Compare does.
func (o Order) String() string {
	return fmt.Sprintf("%0*d-%0*x-%s%c%0*x", priorityWidth, MaxPriority-o.Priority, sinceWidth, uint64(o.Since), o.Claim, byMark, byWidth, o.By)
}

// ParseOrder reads what String wrote, and nothing else.
func ParseOrder(s string) (Order, error) {
	if o, ok := parseOrder(s); ok {
		return o, nil
	}
	return Order{}, fmt.Errorf("%q is no place in a wait queue", problem.Clip(s))
}

func parseOrder(s string) (Order, bool) {
	end := len(s) - byWidth - 1 // of the claim's id
	if end <= orderWidth || s[priorityWidth] != '-' || s[orderWidth-1] != '-' || s[end] != byMark {
		return Order{}, false
	}
	inverted, okP := parseDigits(s[:priorityWidth], 10)
	since, okS := parseDigits(s[priorityWidth+1:orderWidth-1], 16)
	by, okB := parseDigits(s[end+1:], 16)
	o := Order{Priority: MaxPriority - int(inverted), Since: since, Claim: s[orderWidth:end], By: uint32(by)}
	return o, okP && okS && okB && since >= 0 && o.Priority >= MinPriority && isClaimID(o.Claim)
}

// parseDigits reads a number of digits and lower-case letters only.
func parseDigits(s string, base int64) (n int64, ok bool) {
	for i := range len(s) {
		d := int64(s[i] - '0')
		if 'a' <= s[i] && s[i] <= 'f' {
			d = int64(s[i]-'a') + 10
		}
		if s[i] < '0' || '9' < s[i] && s[i] < 'a' || d >= base {
			return 0, false
		}
		n = n*base + d
	}
	return n, true
}
