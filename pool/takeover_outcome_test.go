package pool

import (
	"errors"
	"testing"

	"github.com/berthhq/berth/internal/store"
)

// A claim of which the answer was lost, and that was taken over before that could be
// resolved, has an unknown outcome: who counts its grants must not believe that it never was.
func TestTheOutcomeOfABridgeThatWasTakenOverFirstIsUnknown(t *testing.T) {
	w := newWorld(1, 2)
	w.setPool("a", 1, false)
	leader, host := w.hosts[0], w.hosts[1]
	for _, h := range w.hosts {
		if !w.until(func() bool { return h.core.phase == normal }) {
			t.Fatal("a host does not come up")
		}
	}
	id := leader.name + "-bridge"
	req := &Request{ID: id, Slots: map[string]int{"a": 1}, Bridge: true}
	asked := make(chan outcome, 1)
	w.bridges[id] = true
	leader.core.request(newEntry(req, leader.core.host, leader.core.instance), asked, w.now)
	for leader.pending == nil {
		leader.deliver(10)
		leader.send()
	}
	for len(w.network) > 0 {
		w.arrive(0)
	}
	leader.answer(true)
	fence := int64(0)
	for _, m := range w.model {
		fence = m.rev
	}
	if fence == 0 {
		t.Fatal("nothing was granted", w.errs)
	}

	taking := newEntry(&Request{ID: id, Slots: req.Slots}, host.core.host, host.core.instance)
	taking.takes = fence
	w.taken[id] = takeOverTo{host.name, fence}
	taken := make(chan outcome, 1)
	host.core.take(taking, taken, w.now)
	for len(taken) == 0 {
		for host.deliver(10) {
		}
		host.send()
		for len(w.network) > 0 {
			w.arrive(0)
		}
		host.answer(false)
	}
	if o := <-taken; o.err != nil {
		t.Fatal("it was not taken over:", o.err)
	}

	if !w.until(func() bool { return len(asked) > 0 }) {
		t.Fatal("no answer")
	}
	if o := <-asked; o.claim != nil || !store.OutcomeUnknown(o.err) || !errors.Is(o.err, store.ErrUnavailable) {
		t.Errorf("the answer is %+v", o)
	}
	for _, err := range w.errs {
		t.Error(err)
	}
}

// The watch may be ahead of the answer to a claim by more than the claim itself: it can
// show already that another instance has taken the claim over, under the same id.
func TestABridgeThatWasTakenOverBeforeItsAnswerArrivedIsOver(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1)
	keys := one.count()
	one.wedged = true
	one.ask("a", 1, bridged)
	call := one.next(r.now)
	resp, err := r.etcd.Txn(call.txn)
	if err != nil {
		t.Fatal(err)
	}
	two.listen()
	taken := two.takeOver("a", store.FenceAt(resp.Header.Revision)).got()

	one.listen()
	one.answer(call, resp, nil, r.now)
	one.wedged = false
	r.resolve()
	if e := one.entries["a"]; e != nil {
		t.Errorf("its first host still counts it in state %d", e.state)
	}
	if len(keys.keys) != 0 {
		t.Errorf("its first host still counts keys on its leases: %v", keys.keys)
	}
	two.giveBack("a")
	if taken.Err() != nil {
		t.Error(taken.Err())
	}
	r.clean()
}
