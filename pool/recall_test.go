package pool

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// An instance without slots gets an equal share from those that have more, which keep the rest for
// their own claims.
func TestRetainedSlotsBecomeEqualShares(t *testing.T) {
	r := newRetaining(t, 4, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	for i := range 4 {
		one.ask(fmt.Sprint("a", i), 1).got()
	}
	turn := func(n int) { // each claim of the host is released, and another one waits for its slot
		for _, id := range sortedKeys(one.core.entries) {
			if e := one.core.entries[id]; e != nil && e.state == held {
				one.ask(fmt.Sprint(n, "-", id), 1)
				one.giveBack(id)
			}
		}
	}
	turn(0)
	var others []asked
	for i := range 6 {
		others = append(others, two.ask(fmt.Sprint("other", i), 1))
	}
	turn(1)
	for _, o := range others {
		o.waits()
	}
	r.pass(1100 * time.Millisecond)
	turn(2)
	others[0].got()
	others[1].got()
	r.pass(500 * time.Millisecond)
	turn(3) // two are enough
	others[2].waits()
	// Its own waiters in etcd get the slots of the instance before those that wait on it alone.
	r.pass(time.Second)
	two.giveBack("other0")
	others[2].got()
	local := two.ask("local", 1)
	two.giveBack("other1")
	others[3].got()
	for i := range 2 {
		two.giveBack(others[2+i].id)
		others[4+i].got()
	}
	local.waits()
	two.giveBack("other4")
	local.got()
	r.wantUsed(4)
	r.sound()
}

// Slots that are not released do not keep a waiter from those that are.
func TestAfterTheTimeToRetainAllGiveBack(t *testing.T) {
	r := newRetaining(t, 3, "one", "two", "three")
	one, two, three := r.hosts[0], r.hosts[1], r.hosts[2]
	one.ask("long0", 1).got()
	one.ask("long1", 1).got()
	two.ask("first", 1).got()
	two.giveBack("first")
	two.ask("a0", 1).got()
	other := three.ask("other", 1)
	for i := 0; len(other.reply) == 0; i++ {
		if i == 60 {
			t.Fatal("it has waited for 6 s")
		}
		two.ask(fmt.Sprint("a", i+1), 1)
		two.giveBack(fmt.Sprint("a", i))
		r.pass(100 * time.Millisecond)
	}
	other.got()
	r.sound()
}

// While claims wait on their instance alone, a few of the next ones find out whether slots are free.
func TestAFewClaimsFindOutWhetherSlotsAreFree(t *testing.T) {
	r := narrowRetaining(t, 1, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	one.ask("a", 1).got()
	one.giveBack("a")
	one.ask("b", 1).got()
	other := two.ask("other", 1)
	r.pass(tickEvery)
	r.news()
	first := one.ask("first", 1) // the pool is known to be full
	two.core.cancel("other", other.reply, errStopped, r.now)
	r.resolve()
	r.pass(tickEvery)
	r.news()
	one.wedged = true
	one.view.pool("db").stale = true // as when it is not followed as a whole
	var next []asked
	for i := range 8 {
		next = append(next, one.ask(fmt.Sprint("next", i), 1))
	}
	local := one.retentions[kindOf(needsOf(map[string]int{"db": 1}))].local
	if len(local) != 7 || len(one.core.queue) != 2 {
		t.Errorf("%d claims wait on their instance alone, %d are granted in the ordinary way", len(local), len(one.core.queue))
	}
	one.wedged = false
	r.pass(tickEvery)
	one.giveBack("b")
	first.got()
	for _, a := range next {
		a.waits()
	}
	r.sound()
}

// A waiter does not wait for the next poll to find out that the dispatcher is gone.
func TestAWaiterOfAPoolThatIsNotWatchedTakesTheRoleAtOnce(t *testing.T) {
	r := narrowRetaining(t, 1, "one", "two", "three")
	one, two, three := r.hosts[0], r.hosts[1], r.hosts[2]
	one.ask("a", 1).got()
	other := two.ask("other", 1)
	r.pass(tickEvery)
	r.news()
	if !two.dispatches(two.view.pool("db")) || three.view.pool("db").dispatcher.rev == 0 {
		t.Fatal("the second host is not the dispatcher, or the third does not know")
	}
	two.core.cancel("other", other.reply, errStopped, r.now)
	r.resolve()
	if r.has(r.keys.Dispatcher("db")) {
		t.Fatal("it is the dispatcher though none waits")
	}
	three.ask("b", 1)
	r.pass(2 * waiterDelay)
	if !three.dispatches(three.view.pool("db")) {
		t.Error("the pool has no dispatcher")
	}
}

// lists has a recall list the lease of the only claims of a host, which keeps so many slots.
func (h *rigHost) lists(keep int) *recall {
	p := h.view.pool("db")
	for _, e := range h.core.entries {
		p.recall.rev, p.recall.value = 1, recallValue{Urgent: true, Keep: map[string]int{strconv.FormatInt(int64(e.lease), 16): keep}}
	}
	h.core.countSurplus(p)
	return &p.recall
}

// Steps that end in one transaction give back as many slots as are recalled, and the others keep theirs.
func TestStepsGiveBackWhatIsRecalled(t *testing.T) {
	const steps, keep = 6, 4
	r := newRetaining(t, steps, "one")
	one := r.hosts[0]
	var all []asked
	for i := range steps {
		all = append(all, one.ask(fmt.Sprint("a", i), 1, asStep))
	}
	one.calls, one.wedged = nil, true
	recall := one.lists(keep)
	for i, a := range all {
		a.got()
		one.ends(a.id)
		all = append(all, one.ask(fmt.Sprint("b", i), 1, asStep))
	}
	one.wedged = false
	r.resolve()
	for _, a := range all[steps:] {
		a.got()
	}
	if n := one.slotWrites(); n != steps-keep {
		t.Errorf("%d slots were given back, want %d", n, steps-keep)
	}
	for id, n := range recall.surplus {
		if n != steps-keep {
			t.Errorf("lease %x has a surplus of %d, want %d: they were granted again", id, n, steps-keep)
		}
	}
	r.sound()
}

// A step whose end fails has its slot still.
func TestAnEndThatFailsGivesNothingBack(t *testing.T) {
	_, one := newSteps(t)
	recall := one.lists(0)
	for range 3 {
		ended := one.ends("a", func(x *store.Extra) { x.If = append(x.If, store.Present("/b/missing")) })
		one.r.resolve()
		if o := <-ended; o.err == nil {
			t.Fatal("it did not fail")
		}
	}
	if n := recall.surplus[one.core.entries["a"].lease]; n != 1 {
		t.Errorf("the surplus is %d, want 1", n)
	}
}
