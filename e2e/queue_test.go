package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// queueTape writes the history of a wait queue by hand. Each claim has the lease of its
// instance, and priority 0 unless its name begins with "high".
type queueTape struct {
	*tape
	clock time.Time
	since map[string]int // of each waiter
}

// dispatched is a history of the pools a and b with a limit of 2, which h/d dispatches, and in
// which b is full.
func dispatched() *queueTape {
	t := &queueTape{tape: newTape(), clock: time.Unix(1000, 0), since: map[string]int{}}
	t.queue.now = func() time.Time { return t.clock }
	for _, id := range instanceLease {
		t.at(put(keys.Lease("h", store.LeaseID(id)), id, `{"v":1}`))
	}
	t.at(limit("a", 2), limit("b", 2))
	t.at(claimed("a", 0, "first", 2))
	t.at(claimed("b", 0, "full", 2))
	t.dispatcher("a", "d")
	t.dispatcher("b", "d")
	return t
}

// instanceLease is the lease of each instance.
var instanceLease = map[string]int64{"d": 1, "i": 2, "j": 3, "k": 4}

func (t *queueTape) dispatcher(pool, instance string) {
	t.at(put(keys.Pools()+pool+"/dispatcher", instanceLease[instance], `{"v":1,"host":"h","instance":%q}`, instance),
		put(keys.Pools()+pool+"/queued", 0, `{"v":1}`))
}

func (t *queueTape) order(id string) string {
	inverted := 1000
	if len(id) > 4 && id[:4] == "high" {
		inverted = 999
	}
	return fmt.Sprintf("%04d-%016x-%s+0000000a", inverted, t.since[id], id)
}

// need is what a waiter needs of which pools, as JSON.
type need map[string]int

func (n need) json() string {
	text := ""
	for _, pool := range []string{"a", "b"} {
		if n[pool] > 0 {
			text += fmt.Sprintf(",%q:%d", pool, n[pool])
		}
	}
	return "{" + text[1:] + "}"
}

// wait has an instance put a waiter. More is the rest of its value.
func (t *queueTape) wait(id, instance string, n need, more string) {
	if t.since[id] == 0 {
		t.since[id] = int(t.rev)
	}
	var all []*mvccpb.Event
	for pool := range n {
		all = append(all, put(oldWaiterOf(keys, pool, t.order(id)), 9, `{"v":1,"pools":%s,"holder":{"host":"h","instance":%q},"lease":%d%s}`,
			n.json(), instance, instanceLease[instance], more))
	}
	t.at(all...)
}

// grant is the revision by which a waiter is granted a slot key of a pool; by is the dispatcher
// if it is not the owner.
func (t *queueTape) grant(id, instance string, n need, index int, noticed bool) []*mvccpb.Event {
	var all []*mvccpb.Event
	var list []string
	for _, pool := range []string{"a", "b"} {
		if n[pool] > 0 {
			list = append(list, fmt.Sprintf("%s/0/%d", pool, index))
		}
	}
	for i, name := range list {
		pool := name[:1]
		record := fmt.Sprintf(`"main":%q`, list[0])
		if i == 0 {
			record = fmt.Sprintf(`"record":{"pools":%s,"holder":{"host":"h","instance":%q}`, n.json(), instance)
			if len(list) > 1 {
				record += fmt.Sprintf(`,"keys":[%q,%q]`, list[0], list[1])
			}
			record += "}"
		}
		all = append(all, put(oldSlotOf(keys, pool, 0, index), instanceLease[instance], `{"v":1,"n":%d,"claim":%q,%s}`, n[pool], id, record),
			del(oldWaiterOf(keys, pool, t.order(id))))
	}
	if noticed {
		all = append(all, put(t.notice(id, instance), instanceLease[instance], `{"v":1}`))
	}
	return all
}

func (t *queueTape) notice(id, instance string) string {
	return keys.Pools() + "a/grants/h/" + instance + "/" + id
}

func (t *queueTape) pass(d time.Duration) { t.clock = t.clock.Add(d) }

// firstGone frees both slots of pool a.
func (t *queueTape) firstGone() { t.at(del(oldSlotOf(keys, "a", 0, 0))) }

func TestTheOrderOfADispatchersGrantsIsJudged(t *testing.T) {
	one, two := need{"a": 1}, need{"a": 2}
	for name, c := range map[string]struct {
		passed bool
		run    func(*queueTape)
	}{
		"a later one of another instance first": {true, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"one of lower priority first": {true, func(t *queueTape) {
			t.wait("high", "i", two, "")
			t.since["high"] = 0
			t.wait("higher", "i", two, "")
			t.wait("low", "j", two, "")
			t.firstGone()
			t.at(t.grant("low", "j", two, 1, true)...)
		}},
		"one of its own instance first, after grants that show what it knows": {true, func(t *queueTape) {
			t.wait("early", "i", one, "")
			t.wait("own", "d", one, "")
			t.wait("high-1", "j", one, "")
			t.firstGone()
			t.at(t.grant("high-1", "j", one, 1, true)...)
			t.at(t.grant("own", "d", one, 2, false)...)
		}},
		"a slot that was given back shows what it knows": {true, func(t *queueTape) {
			t.wait("high-1", "j", two, "")
			t.wait("own", "d", two, "")
			t.firstGone()
			t.at(t.grant("high-1", "j", two, 1, true)...)
			t.at(del(t.notice("high-1", "j")))
			t.since["early"] = 1
			t.wait("early", "i", two, "")
			t.at(del(oldSlotOf(keys, "a", 0, 1)))
			t.at(t.grant("own", "d", two, 1, false)...)
		}},
		"a slot that another dispatcher has granted shows nothing": {false, func(t *queueTape) {
			both := need{"a": 2, "b": 2}
			t.at(del(oldSlotOf(keys, "b", 0, 0)))
			t.wait("high-1", "j", both, "")
			t.wait("late", "j", need{"b": 2}, "")
			t.dispatcher("b", "k")
			t.firstGone()
			t.at(t.grant("high-1", "j", both, 1, true)...)
			t.at(del(t.notice("high-1", "j")))
			t.since["early"] = 1
			t.wait("early", "i", need{"b": 2}, "")
			t.at(del(oldSlotOf(keys, "a", 0, 1)), del(oldSlotOf(keys, "b", 0, 1)))
			t.at(t.grant("late", "j", need{"b": 2}, 1, true)...)
		}},
		"another dispatcher has taken slots at that moment": {false, func(t *queueTape) {
			t.at(del(oldSlotOf(keys, "b", 0, 0)))
			t.dispatcher("b", "k")
			t.wait("early", "i", need{"b": 1}, "")
			t.wait("late", "j", need{"b": 1}, "")
			t.wait("other", "j", need{"a": 1, "b": 1}, "")
			t.firstGone()
			t.at(t.grant("other", "j", need{"a": 1, "b": 1}, 1, true)...)
			t.at(t.grant("late", "j", need{"b": 1}, 2, true)...)
		}},
		"what needs more of the same pools does not go first": {true, func(t *queueTape) {
			t.wait("early", "i", one, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"in their order": {false, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("early", "i", two, 1, true)...)
		}},
		"both in one revision": {false, func(t *queueTape) {
			t.wait("early", "i", one, "")
			t.wait("late", "j", one, "")
			t.firstGone()
			t.at(append(t.grant("late", "j", one, 1, true), t.grant("early", "i", one, 2, true)...)...)
		}},
		"there are slots for both": {false, func(t *queueTape) {
			t.wait("early", "i", one, "")
			t.wait("late", "j", one, "")
			t.firstGone()
			t.at(t.grant("late", "j", one, 1, true)...)
		}},
		"one that needs less passes one that does not fit": {false, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.wait("late", "j", one, "")
			t.at(limit("a", 3))
			t.at(t.grant("late", "j", one, 1, true)...)
		}},
		"one that needs another pool as well waits for that": {false, func(t *queueTape) {
			t.wait("early", "i", need{"a": 2, "b": 1}, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter that came after the one that is granted was written": {false, func(t *queueTape) {
			t.wait("late", "j", two, "")
			t.since["early"] = 1
			t.wait("early", "i", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter that was written again since": {false, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.wait("early", "i", two, `,"reserve":true`)
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter that has left": {false, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.at(del(oldWaiterOf(keys, "a", t.order("early"))))
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter that leaves at that moment": {false, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(append(t.grant("late", "j", two, 1, true), del(oldWaiterOf(keys, "a", t.order("early"))))...)
		}},
		"a waiter of the dispatcher itself": {false, func(t *queueTape) {
			t.wait("own", "d", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter whose lease has ended": {false, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.at(del(keys.Lease("h", 2)))
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter that its owner may have no place for": {false, func(t *queueTape) {
			t.wait("early", "i", two, `,"sole":true`)
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter of an instance that is not notified": {false, func(t *queueTape) {
			t.at(limit("a", 9))
			for i := range 4 {
				id := fmt.Sprintf("noticed-%d", i)
				t.wait(id, "i", one, "")
				t.at(t.grant(id, "i", one, 2+i, true)...)
			}
			t.at(limit("a", 6))
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter of an instance with an old notice": {false, func(t *queueTape) {
			t.at(limit("a", 3))
			t.wait("noticed", "i", one, "")
			t.at(t.grant("noticed", "i", one, 2, true)...)
			t.pass(2 * time.Second)
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter of an instance with a notice that came late": {false, func(t *queueTape) {
			t.at(limit("a", 3))
			t.wait("noticed", "i", one, "")
			t.at(append(t.grant("noticed", "i", one, 2, false),
				put(t.notice("noticed", "i"), 2, `{"v":1,"since":%q}`, t.clock.Add(-2*time.Second).Format(time.RFC3339)))...)
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter of an instance whose old notice of another pool was withdrawn a moment ago": {false, func(t *queueTape) {
			elsewhere := keys.Pools() + "b/grants/h/i/elsewhere"
			t.at(put(elsewhere, 2, `{"v":1}`))
			t.pass(2 * time.Second)
			t.wait("early", "i", two, "")
			t.at(del(elsewhere))
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter of an instance whose old notice of another pool was withdrawn long ago": {true, func(t *queueTape) {
			elsewhere := keys.Pools() + "b/grants/h/i/elsewhere"
			t.at(put(elsewhere, 2, `{"v":1}`))
			t.pass(2 * time.Second)
			t.at(del(elsewhere))
			t.pass(2 * time.Second)
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a waiter of an instance that has acknowledged": {true, func(t *queueTape) {
			t.at(limit("a", 3))
			t.wait("noticed", "i", one, "")
			t.at(t.grant("noticed", "i", one, 2, true)...)
			t.pass(2 * time.Second)
			t.at(del(t.notice("noticed", "i")))
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"one that has not waited, by another instance": {true, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.firstGone()
			t.at(claimed("a", 1, "direct", 1))
		}},
		"the last grant of a dispatcher": {false, func(t *queueTape) {
			t.wait("early", "i", need{"b": 1}, "")
			t.wait("own", "d", need{"a": 1, "b": 1}, "")
			t.at(limit("b", 3))
			t.firstGone()
			t.at(append(t.grant("own", "d", need{"a": 1, "b": 1}, 1, false),
				del(keys.Pools()+"a/dispatcher"), del(keys.Pools()+"a/queued"))...)
		}},
		"one of another pool that has not waited": {false, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.at(del(oldSlotOf(keys, "b", 0, 0)), del(keys.Pools()+"b/queued"))
			t.at(claimed("b", 1, "direct", 1))
		}},
		"one of the dispatcher that has no waiter in etcd yet": {false, func(t *queueTape) {
			t.wait("early", "i", one, "")
			t.wait("late", "j", one, "")
			t.firstGone()
			t.wait("high-1", "j", one, "")
			t.at(t.grant("high-1", "j", one, 1, true)...)
			t.at(t.grant("direct", "d", one, 2, false)...)
		}},
		"a grant without a notice by one that is not the dispatcher": {true, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, false)...)
		}},
		"what a new dispatcher may not have seen": {false, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.wait("late", "j", two, "")
			t.dispatcher("a", "k")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a pool of another dispatcher": {false, func(t *queueTape) {
			t.at(del(oldSlotOf(keys, "b", 0, 0)))
			t.dispatcher("b", "k")
			t.wait("early", "i", need{"a": 2, "b": 2}, "")
			t.wait("late", "j", need{"a": 2, "b": 2}, "")
			t.firstGone()
			t.at(t.grant("late", "j", need{"a": 2, "b": 2}, 1, true)...)
		}},
		"a paused pool": {false, func(t *queueTape) {
			t.at(del(oldSlotOf(keys, "b", 0, 0)), put(keys.Spec("b"), 0, `{"v":1,"limit":2,"paused":true}`))
			t.wait("early", "i", need{"a": 2, "b": 1}, "")
			t.wait("late", "j", two, "")
			t.firstGone()
			t.at(t.grant("late", "j", two, 1, true)...)
		}},
		"a claim that is put again": {false, func(t *queueTape) {
			t.wait("early", "i", two, "")
			t.at(t.grant("first", "j", two, 0, true)...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := dispatched()
			c.run(h)
			all := h.Violations()
			if c.passed != (len(all) > 0) {
				t.Errorf("found %v", all)
			}
			if i := slices.IndexFunc(all, func(v Violation) bool { return v.Rule != Order }); i >= 0 {
				t.Errorf("found %v", all)
			}
		})
	}
}

func TestGapsOfAQueueAreMeasured(t *testing.T) {
	one, two := need{"a": 1}, need{"a": 2}
	const second = time.Second
	for name, c := range map[string]struct {
		want []time.Duration
		run  func(*queueTape)
	}{
		"from the moment at which it fits to the grant": {[]time.Duration{2 * second}, func(t *queueTape) {
			t.wait("w", "i", two, "")
			t.pass(5 * second)
			t.firstGone()
			t.pass(2 * second)
			t.at(t.grant("w", "i", two, 1, true)...)
			t.pass(second)
		}},
		"each grant begins another one": {[]time.Duration{2 * second, second}, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.wait("x", "j", one, "")
			t.firstGone()
			t.pass(2 * second)
			t.at(t.grant("w", "i", one, 1, true)...)
			t.pass(second)
			t.at(t.grant("x", "j", one, 2, true)...)
		}},
		"one that has not ended": {[]time.Duration{7 * second}, func(t *queueTape) {
			t.wait("w", "i", two, "")
			t.firstGone()
			t.pass(7 * second)
		}},
		"to the moment at which it leaves": {[]time.Duration{4 * second}, func(t *queueTape) {
			t.wait("w", "i", two, "")
			t.firstGone()
			t.pass(4 * second)
			t.at(del(oldWaiterOf(keys, "a", t.order("w"))))
			t.pass(second)
		}},
		"not while the pool is full": {nil, func(t *queueTape) {
			t.wait("w", "i", two, "")
			t.pass(9 * second)
		}},
		"not while it is kept for one before it": {nil, func(t *queueTape) {
			t.wait("w", "i", two, `,"reserve":true`)
			t.wait("x", "j", one, "")
			t.at(limit("a", 3))
			t.pass(9 * second)
		}},
		"a claim that has not waited moves nothing": {[]time.Duration{3 * second}, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			t.pass(second)
			t.at(t.grant("direct", "d", one, 1, false)...)
			t.pass(2 * second)
			t.at(t.grant("w", "i", one, 2, true)...)
		}},
		"a silent instance is no longer waited for": {[]time.Duration{second, second}, func(t *queueTape) {
			t.at(limit("a", 3))
			t.wait("noticed", "i", one, "")
			t.at(t.grant("noticed", "i", one, 2, true)...)
			t.pass(4 * second)
			t.firstGone()
			t.wait("w", "i", two, "")
			t.pass(9 * second)
			t.wait("x", "j", two, "") // which passes it
			t.pass(second)
			t.at(t.grant("x", "j", two, 1, true)...)
			t.at(del(t.notice("noticed", "i")))
			t.at(del(oldSlotOf(keys, "a", 0, 1)))
			t.pass(second)
			t.at(t.grant("w", "i", two, 1, true)...)
		}},
		"a waiter whose lease has ended is no longer waited for": {nil, func(t *queueTape) {
			t.wait("w", "i", two, "")
			t.at(del(keys.Lease("h", 2)))
			t.pass(2 * second)
			t.firstGone()
			t.pass(9 * second)
		}},
		"what the history could not hear is not judged": {[]time.Duration{second}, func(t *queueTape) {
			t.wait("w", "i", two, "")
			t.firstGone()
			t.Received()
			t.pass(5 * second)
			t.Received()
			t.pass(second)
			t.at(t.grant("w", "i", two, 1, true)...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := dispatched()
			c.run(h)
			var got []time.Duration
			for _, g := range h.Gaps() {
				got = append(got, g.To.Sub(g.From))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("gaps (-want +got):\n%s", diff)
			}
		})
	}
}

// Where no pool has ever had a dispatcher, neither order nor time is judged.
func TestAQueueWithoutADispatcherIsNotJudged(t *testing.T) {
	h := &queueTape{tape: newTape(), since: map[string]int{}}
	h.queue.now = func() time.Time { return h.clock }
	h.at(limit("a", 2))
	h.wait("early", "i", need{"a": 2}, "")
	h.wait("late", "j", need{"a": 2}, "")
	h.pass(9 * time.Second)
	h.at(h.grant("late", "j", need{"a": 2}, 1, false)...)
	if v, g := h.Violations(), h.Gaps(); len(v) > 0 || len(g) > 0 {
		t.Errorf("violations %v, gaps %v", v, g)
	}
}
