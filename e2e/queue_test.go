package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// queueTape writes the history of a wait queue by hand. A claim's demand has the priority 1 if its name begins with "high".
type queueTape struct {
	*tape
	clock time.Time
	refs  map[string]demandRef
	owner map[string]string
	needs map[string]need
}

// dispatched is a history of the pools a and b with a limit of 2, which are full and pending, and which h/d dispatches.
func dispatched() *queueTape {
	t := &queueTape{tape: newTape(), clock: time.Unix(1000, 0), refs: map[string]demandRef{}, owner: map[string]string{}, needs: map[string]need{}}
	t.queue.now = func() time.Time { return t.clock }
	t.at(limit("a", 2), limit("b", 2))
	t.at(claimed("a", 0, "first"))
	t.at(claimed("a", 1, "second"))
	t.at(blocked("b", 0, "full"))
	t.at(isPending("a"), isPending("b"))
	t.dispatcher("d")
	return t
}

func isPending(pool string) *mvccpb.Event { return put(keys.Pending(pool), 0, `{"v":2}`) }

func (t *queueTape) dispatcher(instance string) {
	delete(t.created, keys.Dispatcher()+"role")
	t.at(put(keys.Dispatcher()+"role", 5, `{"v":2,"host":"h","instance":%q}`, instance))
}

// need is what a claim needs of which pools, as JSON.
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

// demandOf is the key of a demand in the first of its pools.
func (t *queueTape) demandOf(id string) string {
	return demandsKeyOf(t.refs[id].Pool, t.owner[id], t.refs[id].Name)
}

// wait has an instance put a demand. More is the rest of its value.
func (t *queueTape) wait(id, instance string, n need, more string) {
	ref, again := t.refs[id]
	if !again {
		ref = demandRef{Pool: "a", Name: len(t.refs), Created: t.rev + 1}
		if n["a"] == 0 {
			ref.Pool = "b"
		}
	}
	t.refs[id], t.owner[id], t.needs[id] = ref, instance, n
	priority := 0
	if len(id) > 4 && id[:4] == "high" {
		priority = 1
	}
	all := []*mvccpb.Event{put(t.demandOf(id), 8, `{"v":2,"demands":[{"index":0,"claim":%q,"pools":%s,"priority":%d%s}]}`, id, n.json(), priority, more)}
	if len(n) > 1 && !again {
		all = append(all, put(demandsKeyOf("b", instance, ref.Name), 8, `{"v":2,"first":"a"}`))
	}
	t.at(all...)
}

func offersKeyOf(instance, name string) string { return keys.OffersTo("h") + instance + "/" + name }

// offer is an offer to the claims named, of numbers from 0 on. All must be of one instance.
func (t *queueTape) offer(name string, ids ...string) *mvccpb.Event {
	text := ""
	for _, id := range ids {
		r, take := t.refs[id], ""
		for pool := range t.needs[id] {
			take += fmt.Sprintf(`,%q:{"numbers":[0,1],"spec":1}`, pool)
		}
		text += fmt.Sprintf(`,{"demand":{"pool":%q,"name":%d,"created":%d,"index":0},"take":{%s}}`, r.Pool, r.Name, r.Created, take[1:])
	}
	return put(offersKeyOf(t.owner[ids[0]], name), 0, `{"v":2,"offers":[%s]}`, text[1:])
}

// grant is a claim that takes numbers from one on in each of its pools, and leaves the wait queue.
func (t *queueTape) grant(id, instance string, n need, from int) (all []*mvccpb.Event) {
	var list []string
	for _, pool := range []string{"a", "b"} {
		for i := range n[pool] {
			list = append(list, fmt.Sprintf("%s/%d", pool, from+i))
		}
	}
	for i, listed := range list {
		key, _ := keyOf(keys, listed)
		record := fmt.Sprintf(`"main":%q`, list[0])
		if i == 0 {
			record = fmt.Sprintf(`"record":{"pools":%s,"holder":{"host":"h","instance":%q},"keys":[`, n.json(), instance)
			for j, x := range list {
				record += fmt.Sprintf("%s%q", ","[:min(j, 1)], x)
			}
			record += "]}"
		}
		all = append(all, put(key, 7, `{"v":2,"claim":%q,%s}`, id, record))
	}
	if _, waits := t.refs[id]; waits {
		all = append(all, del(t.demandOf(id)))
		if len(n) > 1 {
			all = append(all, del(demandsKeyOf("b", instance, t.refs[id].Name)))
		}
	}
	return all
}

func (t *queueTape) pass(d time.Duration) { t.clock = t.clock.Add(d) }

func (t *queueTape) firstGone() { t.at(freed("a", 0)) }

// knows has the dispatcher show that it knows what waits by now: it offers slots to a claim of a high priority.
func (t *queueTape) knows(pools need) {
	t.wait("high-shown", "z", pools, "")
	t.at(t.offer("9", "high-shown"))
	t.at(del(offersKeyOf("z", "9")), del(t.demandOf("high-shown")))
}

// orderCase is a case of a test of the order.
type orderCase struct {
	passed bool
	run    func(*queueTape)
}

var one, two = need{"a": 1}, need{"a": 2}

// passing is two demands, and an offer to the second one.
func passing(early, late need, between func(*queueTape)) func(*queueTape) {
	return func(t *queueTape) {
		t.wait("early", "i", early, "")
		t.wait("late", "j", late, "")
		t.firstGone()
		between(t)
		t.at(t.offer("0", "late"))
	}
}

func nothing(*queueTape) {}

// manyOffers are as many as an instance has in a small pool. They end together.
func manyOffers(t *queueTape) {
	ids := []string{"high-1", "high-2", "high-3", "high-4"}
	for _, id := range ids {
		t.wait(id, "i", one, "")
	}
	t.at(t.offer("0", ids...))
	end := []*mvccpb.Event{del(offersKeyOf("i", "0"))}
	for _, id := range ids {
		end = append(end, del(t.demandOf(id)))
	}
	t.at(end...)
}

func judgeOrder(t *testing.T, cases map[string]orderCase) {
	t.Helper()
	for name, c := range cases {
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

func TestTheOrderOfOffersIsJudged(t *testing.T) {
	judgeOrder(t, map[string]orderCase{
		"a later one first":                   {true, passing(one, one, nothing)},
		"what needs more does not go first":   {true, passing(one, two, nothing)},
		"one that needs less passes":          {false, passing(two, one, nothing)},
		"there are slots for both":            {false, passing(one, one, func(t *queueTape) { t.at(freed("a", 1)) })},
		"in their order":                      {false, passing(one, one, func(t *queueTape) { t.at(t.offer("0", "early")); t.pass(time.Minute) })},
		"one that needs another pool as well": {false, passing(need{"a": 1, "b": 1}, one, nothing)},
		"both pools":                          {true, passing(need{"a": 1, "b": 1}, need{"a": 1, "b": 1}, nothing)},
		"one that was put again since":        {false, passing(one, one, func(t *queueTape) { t.wait("early", "i", one, `,"reserve":true`) })},
		"one that was put again and is known": {true, passing(one, one, func(t *queueTape) { t.wait("early", "i", one, `,"reserve":true`); t.knows(one) })},
		"one that has left":                   {false, passing(one, one, func(t *queueTape) { t.at(del(t.demandOf("early"))) })},
		"one of the dispatcher":               {false, passing(one, one, func(t *queueTape) { t.dispatcher("i"); t.knows(one) })},
		"a new dispatcher that knows little": {false, func(t *queueTape) {
			t.wait("late", "j", one, "")
			t.wait("high-1", "i", one, "")
			t.dispatcher("k")
			t.firstGone()
			t.at(t.offer("0", "late"))
		}},
		"a new dispatcher that knows": {true, passing(one, one, func(t *queueTape) { t.dispatcher("k"); t.knows(one) })},
		"one that may have no place": {false, func(t *queueTape) {
			t.wait("early", "i", one, `,"sole":true`)
			t.wait("late", "j", one, "")
			t.firstGone()
			t.at(t.offer("0", "late"))
		}},
		"one whose offer came to nothing":                 {false, passing(one, one, func(t *queueTape) { t.at(t.offer("0", "early")); t.at(del(offersKeyOf("i", "0"))); t.pass(time.Second) })},
		"one whose offer came to nothing once":            {true, passing(one, one, func(t *queueTape) { t.at(t.offer("0", "early")); t.at(del(offersKeyOf("i", "0"))); t.pass(time.Minute) })},
		"one whose owner had many offers a moment ago":    {false, passing(one, one, manyOffers)},
		"one whose owner had many offers, which is known": {true, passing(one, one, func(t *queueTape) { manyOffers(t); t.knows(one) })},
		"one that had its slots, which were freed by force": {false, func(t *queueTape) {
			t.wait("early", "i", one, "")
			t.wait("late", "j", one, "")
			r := t.refs["early"]
			t.firstGone()
			t.at(put(numberKey(keys, "a", 0), 7, `{"v":2,"claim":"early","demand":{"pool":%q,"name":%d,"created":%d},"record":{"pools":{"a":1},"holder":{"host":"h","instance":"i"}}}`,
				r.Pool, r.Name, r.Created), isPending("a"))
			t.firstGone()
			t.at(t.offer("0", "late"))
		}},
		"one whose host has left an offer alone": {false, passing(one, one, func(t *queueTape) {
			t.wait("high-1", "k", one, "")
			t.at(t.offer("1", "high-1"))
			t.pass(time.Minute)
			t.at(t.offer("2", "late"), del(offersKeyOf("k", "1")))
			t.at(del(offersKeyOf("j", "2")))
			t.pass(3 * time.Second)
		})},
		"one that is passed": {false, passing(one, one, func(t *queueTape) { t.at(put(offersKeyOf("i", "passed"), 0, `{"v":2}`)) })},
		"one that was passed long ago": {true, passing(one, one, func(t *queueTape) {
			t.at(put(offersKeyOf("i", "passed"), 0, `{"v":2}`))
			t.pass(time.Minute)
			t.at(del(offersKeyOf("i", "passed")))
			t.pass(time.Minute)
		})},
		"a paused pool": {false, func(t *queueTape) {
			t.at(put(keys.Spec("b"), 0, `{"v":2,"limit":2,"paused":true}`))
			passing(need{"a": 1, "b": 1}, need{"a": 1, "b": 1}, nothing)(t)
		}},
		"lower priority first": {true, func(t *queueTape) {
			t.wait("low", "j", one, "")
			t.wait("high-1", "i", one, "")
			t.knows(one)
			t.firstGone()
			t.at(t.offer("0", "low"))
		}},
		"an older stamp": {true, func(t *queueTape) {
			t.wait("late", "j", one, "")
			t.wait("early", "i", one, `,"stamp":{"revision":3}`)
			t.knows(one)
			t.firstGone()
			t.at(t.offer("0", "late"))
		}},
		"a claim of blocks": {false, func(t *queueTape) {
			t.at(limit("a", 50))
			many := need{"a": 50}
			t.wait("early", "i", many, "")
			t.wait("late", "j", many, "")
			t.at(t.offer("0", "late"))
		}},
	})
}

func TestTheRightToSlotsOfAPendingPoolIsJudged(t *testing.T) {
	judgeOrder(t, map[string]orderCase{
		"an offer": {false, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			t.at(t.offer("0", "w"))
			t.at(append(t.grant("w", "i", one, 0), del(offersKeyOf("i", "0")))...)
		}},
		"an offer that was deleted": {true, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			t.at(t.offer("0", "w"))
			t.at(del(offersKeyOf("i", "0")))
			t.at(t.grant("w", "i", one, 0)...)
		}},
		"an offer of another number": {true, func(t *queueTape) {
			t.at(limit("a", 9))
			t.wait("w", "i", one, "")
			t.at(t.offer("0", "w"))
			t.at(t.grant("w", "i", one, 4)...)
		}},
		"an offer to another instance": {true, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			ev := t.offer("0", "w")
			ev.Kv.Key = []byte(offersKeyOf("j", "0"))
			t.at(ev)
			t.at(t.grant("w", "i", one, 0)...)
		}},
		"an offer to an earlier demand of that name": {true, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			t.at(t.offer("0", "w"))
			t.at(del(t.demandOf("w")))
			t.wait("w", "i", one, "")
			t.at(t.grant("w", "i", one, 0)...)
		}},
		"an offer to one of two demands": {false, func(t *queueTape) {
			t.at(put(demandsKeyOf("a", "i", 77), 8, `{"v":2,"demands":[{"index":0,"claim":"w","pools":{"a":1}}]}`))
			t.wait("w", "i", one, "")
			t.firstGone()
			t.at(t.offer("0", "w"))
			t.at(append(t.grant("w", "i", one, 0), del(offersKeyOf("i", "0")), del(demandsKeyOf("a", "i", 77)))...)
		}},
		"no offer": {true, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			t.at(t.grant("w", "i", one, 0)...)
		}},
		"a claim that has not waited": {true, func(t *queueTape) { t.firstGone(); t.at(claimed("a", 0, "direct")) }},
		"the dispatcher":              {false, func(t *queueTape) { t.wait("w", "d", one, ""); t.firstGone(); t.at(t.grant("w", "d", one, 0)...) }},
		"an earlier dispatcher": {true, func(t *queueTape) {
			t.wait("w", "d", one, "")
			t.firstGone()
			t.dispatcher("k")
			t.at(t.grant("w", "d", one, 0)...)
		}},
		"the pool is not pending":    {false, func(t *queueTape) { t.at(del(keys.Pending("a"))); t.firstGone(); t.at(claimed("a", 0, "direct")) }},
		"its turn, and nobody waits": {false, func(t *queueTape) { t.firstGone(); t.at(claimed("a", 0, "direct"), del(keys.Pending("a"))) }},
		"its turn, when the last one that waits leaves": {false, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			t.at(append(t.grant("w", "i", one, 0), del(keys.Pending("a")))...)
		}},
		"the pool stops being pending while others wait": {true, func(t *queueTape) {
			t.wait("w", "j", two, "")
			t.firstGone()
			t.at(claimed("a", 0, "direct"), del(keys.Pending("a")))
		}},
		"the pool becomes pending at that moment": {false, func(t *queueTape) {
			t.at(del(keys.Pending("a")))
			t.firstGone()
			t.at(claimed("a", 0, "direct"), isPending("a"))
		}},
		"a claim that is put again": {false, func(t *queueTape) { t.at(claimed("a", 0, "first")) }},
		"its turn":                  {false, func(t *queueTape) { t.firstGone(); t.at(claimed("a", 0, "direct"), isPending("a")) }},
		"its turn in one pool of two": {true, func(t *queueTape) {
			t.at(limit("b", 4))
			t.firstGone()
			t.at(claimed("b", 3, "x"), isPending("b"))
			t.at(freed("b", 3), del(keys.Slots("b")+"b/00/7"))
			t.at(append(t.grant("w", "i", need{"a": 1, "b": 1}, 0), isPending("a"))...)
		}},
		"its turn, though others wait": {true, func(t *queueTape) {
			t.wait("w", "j", one, "")
			t.at(isPending("a"))
			t.firstGone()
			t.at(claimed("a", 0, "direct"), isPending("a"))
		}},
		"its turn, when it has not read the others": {false, func(t *queueTape) {
			t.wait("w", "j", one, "")
			t.firstGone()
			t.at(claimed("a", 0, "direct"), isPending("a"))
		}},
		"its turn, when others need more": {false, func(t *queueTape) {
			t.wait("w", "j", two, "")
			t.at(isPending("a"))
			t.firstGone()
			t.at(claimed("a", 0, "direct"), isPending("a"))
		}},
		"an advance offer": {false, func(t *queueTape) {
			t.at(put(offersKeyOf("i", "advance~a"), 0, `{"v":2}`))
			t.wait("w", "i", one, "")
			t.at(t.grant("w", "i", one, 0)...)
		}},
		"an advance offer, and a slot that was free": {true, func(t *queueTape) {
			t.at(put(offersKeyOf("i", "advance~a"), 0, `{"v":2}`))
			t.wait("w", "i", one, "")
			t.firstGone()
			t.at(t.grant("w", "i", one, 0)...)
		}},
		"an advance offer of another pool": {true, func(t *queueTape) {
			t.at(put(offersKeyOf("i", "advance~b"), 0, `{"v":2}`))
			t.wait("w", "i", one, "")
			t.at(t.grant("w", "i", one, 0)...)
		}},
		"an advance offer to another instance": {true, func(t *queueTape) {
			t.at(put(offersKeyOf("j", "advance~a"), 0, `{"v":2}`))
			t.wait("w", "j", one, "")
			t.at(t.grant("w", "j", one, 0)...)
		}},
	})
}

func TestGapsOfAQueueAreMeasured(t *testing.T) {
	const second = time.Second
	for name, c := range map[string]struct {
		want []time.Duration
		run  func(*queueTape)
	}{
		"from the moment at which it fits to the grant": {[]time.Duration{2 * second}, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.pass(5 * second)
			t.firstGone()
			t.pass(2 * second)
			t.at(t.offer("0", "w"))
			t.at(t.grant("w", "i", one, 0)...)
			t.pass(second)
		}},
		"one that has not ended": {[]time.Duration{7 * second}, func(t *queueTape) { t.wait("w", "i", one, ""); t.firstGone(); t.pass(7 * second) }},
		"to the moment at which it leaves": {[]time.Duration{4 * second}, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			t.pass(4 * second)
			t.at(del(t.demandOf("w")))
			t.pass(second)
		}},
		"not while the pool is full": {nil, func(t *queueTape) { t.wait("w", "i", two, ""); t.pass(9 * second) }},
		"not while it is kept for one before it": {nil, func(t *queueTape) {
			t.wait("w", "i", two, `,"reserve":true`)
			t.wait("x", "j", one, "")
			t.firstGone()
			t.pass(9 * second)
		}},
		"a silent instance is no longer waited for": {[]time.Duration{second}, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			t.pass(second)
			t.at(put(offersKeyOf("i", "passed"), 0, `{"v":2}`))
			t.pass(9 * second)
		}},
		"what the history could not hear is not judged": {[]time.Duration{second}, func(t *queueTape) {
			t.wait("w", "i", one, "")
			t.firstGone()
			t.Received()
			t.pass(5 * second)
			t.Received()
			t.pass(second)
			t.at(t.offer("0", "w"))
			t.at(t.grant("w", "i", one, 0)...)
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
