package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

var keys = store.NewKeys(store.DefaultPrefix)

// tape writes a history by hand.
type tape struct {
	*History
	rev int64
}

func newTape() *tape { return &tape{History: NewHistory(keys), rev: 1} }

// at is one revision.
func (t *tape) at(events ...*mvccpb.Event) *tape {
	t.rev++
	for _, ev := range events {
		ev.Kv.ModRevision = t.rev
	}
	t.Apply(events...)
	return t
}

func put(key string, lease int64, format string, args ...any) *mvccpb.Event {
	return &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: &mvccpb.KeyValue{
		Key: []byte(key), Lease: lease, Value: fmt.Appendf(nil, format, args...),
	}}
}

func del(key string) *mvccpb.Event {
	return &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key)}}
}

func limit(pool string, n int) *mvccpb.Event {
	return put(keys.Spec(pool), 0, `{"v":1,"limit":%d}`, n)
}

// claimed is a claim of n slots in one key.
func claimed(pool string, index int, id string, n int) *mvccpb.Event {
	return put(oldSlotOf(keys, pool, 0, index), 7,
		`{"v":1,"n":%d,"claim":%q,"record":{"pools":{%q:%d},"holder":{"host":"h","instance":"i"}}}`, n, id, pool, n)
}

// both is a claim of a slot in each of the pools a and b.
func both(id string) []*mvccpb.Event {
	return []*mvccpb.Event{
		put(oldSlotOf(keys, "a", 0, 0), 7, `{"v":1,"n":1,"claim":%q,"record":{"pools":{"a":1,"b":1},"keys":["a/0/0","b/0/0"],"holder":{"host":"h"}}}`, id),
		put(oldSlotOf(keys, "b", 0, 0), 7, `{"v":1,"n":1,"claim":%q,"main":"a/0/0"}`, id),
	}
}

func waits(id string, reserve bool, pools ...string) []*mvccpb.Event {
	var all []*mvccpb.Event
	for _, p := range pools {
		all = append(all, put(oldWaiterOf(keys, p, "1000-0000000000000002-"+id+"+0000000a"), 8,
			`{"v":1,"pools":{"a":1,"b":1},"holder":{"host":"h"},"reserve":%t}`, reserve))
	}
	return all
}

func TestALawfulHistoryIsFoundLawful(t *testing.T) {
	h := newTape()
	h.at(limit("a", 2)).at(limit("b", 1))
	h.at(both("one")...)                                                            // 4
	h.at(claimed("a", 1, "two", 1))                                                 // 5
	h.at(waits("three", false, "a", "b")...)                                        // 6
	h.at(waits("three", true, "a", "b")...)                                         // 7
	h.at(limit("a", 1))                                                             // 8: above its limit now, and nothing added
	h.at(del(oldSlotOf(keys, "a", 0, 1)))                                           // 9
	h.at(append(both("three"), gone("three")...)...)                                // 10: in place
	h.at(del(oldSlotOf(keys, "a", 0, 0)), del(oldSlotOf(keys, "b", 0, 0)), del("")) // 11
	h.at(del(keys.Spec("a")))
	if v := h.Violations(); len(v) > 0 {
		t.Errorf("violations: %v", v)
	}
	h.Granted("one", store.FenceAt(4), map[string]int{"a": 1, "b": 1})
	if v := h.Violations(); len(v) > 0 {
		t.Errorf("violations: %v", v)
	}
	want := []Hold{
		{Claim: "one", Host: "h", Pools: map[string]int{"a": 1, "b": 1}, Lease: 7, From: 4, To: 10},
		{Claim: "two", Host: "h", Instance: "i", Pools: map[string]int{"a": 1}, Lease: 7, From: 5, To: 9},
		{Claim: "three", Host: "h", Pools: map[string]int{"a": 1, "b": 1}, Lease: 7, From: 10, To: 11},
	}
	if diff := cmp.Diff(want, h.Holds()); diff != "" {
		t.Errorf("holds (-want +got):\n%s", diff)
	}
	wait := []Wait{{Claim: "three", Host: "h", Order: "1000-0000000000000002-three+0000000a", From: 6, Reserved: 7, To: 10}}
	if diff := cmp.Diff(wait, h.Waits()); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	if h.Peak("a", 2) != 2 || h.Peak("a", 1) != 1 || h.Held() != 0 || h.MostKeys() != 3 {
		t.Errorf("peaks %d and %d, %d held, %d keys on a lease", h.Peak("a", 2), h.Peak("a", 1), h.Held(), h.MostKeys())
	}
}

func TestAClaimThatConfirmsItsGrantAddsNothing(t *testing.T) {
	h := newTape().at(limit("a", 2)).at(claimed("a", 0, "one", 2)).at(limit("a", 1))
	again := claimed("a", 0, "one", 2)
	again.Kv.Lease = 9
	if v := h.at(again).Violations(); len(v) > 0 {
		t.Errorf("violations: %v", v)
	}
}

func gone(id string) []*mvccpb.Event {
	return []*mvccpb.Event{
		del(oldWaiterOf(keys, "a", "1000-0000000000000002-"+id+"+0000000a")), del(oldWaiterOf(keys, "b", "1000-0000000000000002-"+id+"+0000000a")),
	}
}

// Each of these histories breaks one rule, and just that one.
func TestEachRuleIsFoundBroken(t *testing.T) {
	pools := func() *tape { return newTape().at(limit("a", 2)).at(limit("b", 1)) }
	noLease := func(ev *mvccpb.Event) *mvccpb.Event { ev.Kv.Lease = 0; return ev }
	otherLease := func(all []*mvccpb.Event) []*mvccpb.Event { all[1].Kv.Lease = 9; return all }
	for name, c := range map[string]struct {
		rule Rule
		run  func(h *tape)
	}{
		"more than the limit": {Capacity, func(h *tape) {
			h.at(claimed("a", 0, "one", 2)).at(claimed("a", 1, "two", 1))
		}},
		"more than a lowered limit": {Capacity, func(h *tape) {
			h.at(claimed("a", 0, "one", 1)).at(limit("a", 1)).at(claimed("a", 1, "two", 1))
		}},
		"more in one revision":   {Capacity, func(h *tape) { h.at(claimed("b", 0, "one", 1), claimed("b", 1, "two", 1)) }},
		"a pool that is not":     {Capacity, func(h *tape) { h.at(claimed("c", 0, "one", 1)) }},
		"a pool that is deleted": {Capacity, func(h *tape) { h.at(del(keys.Spec("a"))).at(claimed("a", 0, "one", 1)) }},
		"a pool that is paused": {Capacity, func(h *tape) {
			h.at(put(keys.Spec("a"), 0, `{"v":1,"limit":2,"paused":true}`)).at(claimed("a", 0, "one", 1))
		}},
		"one pool of two first":  {Whole, func(h *tape) { h.at(both("one")[0]) }},
		"one pool of two second": {Whole, func(h *tape) { h.at(both("one")[1]) }},
		"one pool of two let go": {Whole, func(h *tape) { h.at(both("one")...).at(del(oldSlotOf(keys, "b", 0, 0))) }},
		"one pool overwritten": {Whole, func(h *tape) {
			h.at(both("one")...).at(claimed("b", 0, "two", 1))
		}},
		"one key put again": {Whole, func(h *tape) { h.at(both("one")...).at(both("one")[1]) }},
		"two leases":        {Whole, func(h *tape) { h.at(otherLease(both("one"))...) }},
		"more than claimed": {Whole, func(h *tape) {
			h.at(put(oldSlotOf(keys, "a", 0, 0), 7, `{"v":1,"n":2,"claim":"one","record":{"pools":{"a":1}}}`))
		}},
		"a key not listed": {Whole, func(h *tape) {
			h.at(append(both("one"), put(oldSlotOf(keys, "a", 0, 1), 7, `{"v":1,"n":1,"claim":"one","main":"a/0/0"}`))...)
		}},
		"no lease":            {Leased, func(h *tape) { h.at(noLease(claimed("a", 0, "one", 1))) }},
		"a waiter's no lease": {Leased, func(h *tape) { w := waits("one", false, "a", "b"); noLease(w[0]); h.at(w...) }},
		"an older fence": {Fence, func(h *tape) {
			h.at(claimed("a", 0, "one", 1)).at(del(oldSlotOf(keys, "a", 0, 0)))
			h.fences[oldSlotOf(keys, "a", 0, 0)] = 99
			h.at(claimed("a", 0, "two", 1))
		}},
		"granted another fence": {Fence, func(h *tape) {
			h.at(claimed("a", 0, "one", 1)).Granted("one", store.FenceAt(5), map[string]int{"a": 1})
		}},
		"granted a claim that never was": {Fence, func(h *tape) { h.Granted("one", store.FenceAt(4), map[string]int{"a": 1}) }},
		"granted other slots": {Whole, func(h *tape) {
			h.at(claimed("a", 0, "one", 1)).Granted("one", store.FenceAt(4), map[string]int{"a": 2})
		}},
		"a waiter in one line":   {Queued, func(h *tape) { h.at(waits("one", false, "a")...) }},
		"a waiter left in one":   {Queued, func(h *tape) { h.at(waits("one", false, "a", "b")...).at(gone("one")[0]) }},
		"a waiter in three":      {Queued, func(h *tape) { h.at(waits("one", false, "a", "b", "c")...) }},
		"an unknown key":         {Readable, func(h *tape) { h.at(put(keys.Pools()+"a/slots/0/0", 7, "{}")) }},
		"a value without fields": {Readable, func(h *tape) { h.at(put(oldSlotOf(keys, "a", 0, 0), 7, "{}")) }},
		"a spec without fields":  {Readable, func(h *tape) { h.at(put(keys.Spec("a"), 0, `{"v":1}`)) }},
		"a newer version":        {Readable, func(h *tape) { h.at(put(keys.Spec("a"), 0, `{"v":2,"limit":2}`)) }},
		"an unknown order":       {Readable, func(h *tape) { h.at(put(oldWaiterOf(keys, "a", "x"), 8, `{"v":1}`)) }},
		"a revision that comes again": {Ordered, func(h *tape) {
			h.rev--
			h.at(claimed("b", 0, "one", 1))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := pools()
			c.run(h)
			all := h.Violations()
			if len(all) == 0 {
				t.Fatal("nothing was found")
			}
			if i := slices.IndexFunc(all, func(v Violation) bool { return v.Rule != c.rule }); i >= 0 {
				t.Errorf("found %v", all)
			}
		})
	}
}

func TestWhatIsIgnoredIsNotJudged(t *testing.T) {
	h := newTape()
	h.Ignore(oldSlotOf(keys, "a", 0, 0))
	h.at(put(oldSlotOf(keys, "a", 0, 0), 0, "junk"))
	if v := h.Violations(); len(v) > 0 {
		t.Errorf("violations: %v", v)
	}
}

// A claim that a restore under a new cluster id has brought back belongs to no process. Its id can be
// claimed again before its lease ends, but only once, and not if the cluster is the same.
func TestTheIDOfAClaimIsClaimedAgainAfterItsClusterWasReplaced(t *testing.T) {
	for _, replaced := range []bool{true, false} {
		had := []*mvccpb.KeyValue{limit("a", 3).Kv, limit("b", 3).Kv, claimed("a", 0, "c", 1).Kv}
		for _, kv := range had {
			kv.ModRevision = 3
		}
		n := &tape{History: newTape().Restored(1000, had), rev: 1000}
		if replaced {
			n.Replaced()
		}
		n.at(claimed("b", 0, "c", 1))
		if v := n.Violations(); len(v) > 0 == replaced {
			t.Errorf("replaced: %v; the same id again: %v", replaced, v)
		}
		if !replaced {
			continue
		}
		n.at(claimed("b", 1, "c", 1))
		if v := n.Violations(); len(v) == 0 {
			t.Error("a third claim of the same id is no violation")
		}
	}
}

func TestAHistoryGoesOnAfterARestore(t *testing.T) {
	h := newTape()
	h.at(limit("a", 2)).at(claimed("a", 0, "kept", 1)).at(limit("a", 1)) // the snapshot
	had := []*mvccpb.KeyValue{limit("a", 1).Kv, claimed("a", 0, "kept", 1).Kv}
	had[0].ModRevision, had[1].ModRevision = 4, 3
	h.at(claimed("b", 0, "lost", 1)) // in a pool that there is not, before the restore
	n := &tape{History: h.Restored(1000, had), rev: 1000}
	if n.Held() != 1 || n.Used("a") != 1 || len(n.Violations()) > 0 {
		t.Errorf("%d are held, %d slots used, %v", n.Held(), n.Used("a"), n.Violations())
	}
	n.Granted("kept", store.FenceAt(3), map[string]int{"a": 1})
	n.at(claimed("a", 1, "more", 1))
	n.rev = 4
	n.at(claimed("b", 0, "late", 1)) // with the fencing token of "lost"
	var rules []Rule
	for _, v := range n.Violations() {
		rules = append(rules, v.Rule)
	}
	if want := []Rule{Capacity, Ordered, Fence, Capacity}; !slices.Equal(rules, want) {
		t.Errorf("it has found %v, want %v", rules, want)
	}
	if ended := n.Forget(); ended != 0 {
		t.Errorf("%d of those that are held have ended", ended)
	}
	n.rev = 1002
	n.at(del(oldSlotOf(keys, "a", 0, 0)))
	if ended := n.Forget(); ended != 1 || n.Hold("kept") != nil {
		t.Errorf("%d have ended, and kept is %v", ended, n.Hold("kept"))
	}
}
