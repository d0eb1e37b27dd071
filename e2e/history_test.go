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
	rev     int64
	created map[string]int64
}

func newTape() *tape { return &tape{History: NewHistory(keys), rev: 1, created: map[string]int64{}} }

// at is one revision.
func (t *tape) at(events ...*mvccpb.Event) *tape {
	t.rev++
	for _, ev := range events {
		ev.Kv.ModRevision = t.rev
		key := string(ev.Kv.Key)
		if ev.Type == mvccpb.Event_DELETE {
			delete(t.created, key)
			continue
		}
		if t.created[key] == 0 {
			t.created[key] = t.rev
		}
		ev.Kv.CreateRevision = t.created[key]
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
	return put(keys.Spec(pool), 0, `{"v":2,"limit":%d}`, n)
}

// claimed is a claim of a number.
func claimed(pool string, number int, id string) *mvccpb.Event {
	return put(numberKey(keys, pool, number), 7,
		`{"v":2,"claim":%q,"record":{"pools":{%q:1},"holder":{"host":"h","instance":"i"}}}`, id, pool)
}

// blocked is a claim of two numbers in a block.
func blocked(pool string, from int, id string) *mvccpb.Event {
	return put(keys.Slots(pool)+"b/00/7", 7,
		`{"v":2,"claim":%q,"runs":[[%d,%d]],"record":{"pools":{%q:2},"holder":{"host":"h","instance":"i"}}}`, id, from, from+2, pool)
}

// both is a claim of a slot in each of the pools a and b.
func both(id string) []*mvccpb.Event {
	return []*mvccpb.Event{
		put(numberKey(keys, "a", 0), 7, `{"v":2,"claim":%q,"record":{"pools":{"a":1,"b":1},"keys":["a/0","b/0"],"holder":{"host":"h"}}}`, id),
		put(numberKey(keys, "b", 0), 7, `{"v":2,"claim":%q,"main":"a/0"}`, id),
	}
}

func demandsKeyOf(pool, instance string, name int) string {
	return fmt.Sprintf("%sh/%s/%d", keys.DemandsAll(pool), instance, name)
}

// waits is a demand of h/i in the pools a and b, as its keys in some of them show it.
func waits(id string, reserve bool, pools ...string) []*mvccpb.Event {
	var all []*mvccpb.Event
	for _, p := range pools {
		value := `{"v":2,"first":"a"}`
		if p == "a" {
			value = fmt.Sprintf(`{"v":2,"demands":[{"index":0,"claim":%q,"pools":{"a":1,"b":1},"holder":{"host":"h"},"reserve":%t}]}`, id, reserve)
		}
		all = append(all, put(demandsKeyOf(p, "i", 0), 8, "%s", value))
	}
	return all
}

func freed(pool string, number int) *mvccpb.Event { return del(numberKey(keys, pool, number)) }

func TestALawfulHistoryIsFoundLawful(t *testing.T) {
	h := newTape()
	h.at(limit("a", 2)).at(limit("b", 1))
	h.at(both("one")...)                            // 4
	h.at(claimed("a", 1, "two"))                    // 5
	h.at(waits("three", false, "a", "b")...)        // 6
	h.at(waits("three", true, "a")...)              // 7
	h.at(limit("a", 1))                             // 8: above its limit now, and nothing added
	h.at(freed("a", 1))                             // 9
	h.at(append(both("three"), gone()...)...)       // 10: in place
	h.at(freed("a", 0), freed("b", 0), del(""))     // 11
	h.at(limit("a", 2)).at(blocked("a", 0, "four")) // 13
	h.at(del(keys.Slots("a") + "b/00/7")).at(del(keys.Spec("a")))
	if v := h.Violations(); len(v) > 0 {
		t.Errorf("violations: %v", v)
	}
	h.Granted("one", store.FenceAt(4), map[string]int{"a": 1, "b": 1})
	if v := h.Violations(); len(v) > 0 {
		t.Errorf("violations: %v", v)
	}
	want := []Hold{
		{Claim: "one", Host: "h", Pools: map[string]int{"a": 1, "b": 1}, Lease: 7, Fence: store.FenceAt(4), From: 4, To: 10},
		{Claim: "two", Host: "h", Instance: "i", Pools: map[string]int{"a": 1}, Lease: 7, Fence: store.FenceAt(5), From: 5, To: 9},
		{Claim: "three", Host: "h", Pools: map[string]int{"a": 1, "b": 1}, Lease: 7, Fence: store.FenceAt(10), From: 10, To: 11},
		{Claim: "four", Host: "h", Instance: "i", Pools: map[string]int{"a": 2}, Lease: 7, Fence: store.FenceAt(13), From: 13, To: 14},
	}
	if diff := cmp.Diff(want, h.Holds()); diff != "" {
		t.Errorf("holds (-want +got):\n%s", diff)
	}
	wait := []Wait{{Claim: "three", Host: "h", From: 6, Reserved: 7, To: 10}}
	if diff := cmp.Diff(wait, h.Waits()); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	if h.Peak("a", 2) != 2 || h.Peak("a", 1) != 1 || h.Held() != 0 || h.MostKeys() != 3 {
		t.Errorf("peaks %d and %d, %d held, %d keys on a lease", h.Peak("a", 2), h.Peak("a", 1), h.Held(), h.MostKeys())
	}
}

func TestAClaimThatIsPutAgainAddsNothing(t *testing.T) {
	h := newTape().at(limit("a", 2)).at(blocked("a", 0, "one")).at(limit("a", 1))
	again := blocked("a", 0, "one")
	again.Kv.Lease = 9
	if v := h.at(again).Violations(); len(v) > 0 {
		t.Errorf("violations: %v", v)
	}
}

// gone deletes what waits has put.
func gone() []*mvccpb.Event {
	return []*mvccpb.Event{del(demandsKeyOf("a", "i", 0)), del(demandsKeyOf("b", "i", 0))}
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
		"more than the limit": {Capacity, func(h *tape) { h.at(claimed("b", 0, "one")).at(claimed("b", 1, "two")) }},
		"more than a lowered limit": {Capacity, func(h *tape) {
			h.at(claimed("a", 1, "one")).at(limit("a", 1)).at(claimed("a", 0, "two"))
		}},
		"a number at the limit":          {Capacity, func(h *tape) { h.at(claimed("a", 2, "one")) }},
		"a number above a lowered limit": {Capacity, func(h *tape) { h.at(limit("a", 1)).at(claimed("a", 1, "one")) }},
		"a number twice":                 {Capacity, func(h *tape) { h.at(limit("a", 9)).at(claimed("a", 1, "one")).at(blocked("a", 0, "two")) }},
		"a number twice in one revision": {Capacity, func(h *tape) { h.at(limit("a", 9)).at(blocked("a", 1, "two"), claimed("a", 1, "one")) }},
		"a count under a limit": {Capacity, func(h *tape) {
			h.at(put(keys.Slots("a")+"b/00/7", 7, `{"v":2,"claim":"one","count":1,"record":{"pools":{"a":1}}}`))
		}},
		"more in one revision":   {Capacity, func(h *tape) { h.at(claimed("b", 0, "one"), claimed("b", 1, "two")) }},
		"a pool that is not":     {Capacity, func(h *tape) { h.at(claimed("c", 0, "one")) }},
		"a pool that is deleted": {Capacity, func(h *tape) { h.at(del(keys.Spec("a"))).at(claimed("a", 0, "one")) }},
		"a pool that is paused": {Capacity, func(h *tape) {
			h.at(put(keys.Spec("a"), 0, `{"v":2,"limit":2,"paused":true}`)).at(claimed("a", 0, "one"))
		}},
		"one pool of two first":  {Whole, func(h *tape) { h.at(both("one")[0]) }},
		"one pool of two second": {Whole, func(h *tape) { h.at(both("one")[1]) }},
		"one pool of two let go": {Whole, func(h *tape) { h.at(both("one")...).at(freed("b", 0)) }},
		"one pool overwritten": {Whole, func(h *tape) {
			h.at(both("one")...).at(claimed("b", 0, "two"))
		}},
		"one key put again": {Whole, func(h *tape) { h.at(both("one")...).at(both("one")[1]) }},
		"two leases":        {Whole, func(h *tape) { h.at(otherLease(both("one"))...) }},
		"more than claimed": {Whole, func(h *tape) {
			h.at(put(keys.Slots("a")+"b/00/7", 7, `{"v":2,"runs":[[0,2]],"claim":"one","record":{"pools":{"a":1}}}`))
		}},
		"a key not listed": {Whole, func(h *tape) {
			h.at(append(both("one"), put(numberKey(keys, "a", 1), 7, `{"v":2,"claim":"one","main":"a/0"}`))...)
		}},
		"another main key": {Whole, func(h *tape) {
			h.at(both("one")[0], put(numberKey(keys, "b", 0), 7, `{"v":2,"claim":"one","main":"a/1"}`))
		}},
		"no lease":              {Leased, func(h *tape) { h.at(noLease(claimed("a", 0, "one"))) }},
		"a waiter's no lease":   {Leased, func(h *tape) { w := waits("one", false, "a", "b"); noLease(w[0]); h.at(w...) }},
		"an id without a lease": {Leased, func(h *tape) { h.at(put(keys.ID("one"), 0, `{"v":2}`)) }},
		"a key put before":      {Fence, func(h *tape) { h.revisions[numberKey(keys, "a", 0)] = 99; h.at(claimed("a", 0, "one")) }},
		"an older fence": {Fence, func(h *tape) {
			h.at(claimed("a", 0, "one")).at(freed("a", 0))
			h.at(put(numberKey(keys, "a", 0), 7, `{"v":2,"claim":"two","record":{"pools":{"a":1},"fence":%d}}`, store.FenceAt(4)))
		}},
		"an older fence in a block": {Fence, func(h *tape) {
			h.at(claimed("a", 1, "one")).at(freed("a", 1))
			h.at(put(keys.Slots("a")+"b/00/7", 7, `{"v":2,"runs":[[0,2]],"claim":"two","record":{"pools":{"a":2},"fence":%d}}`, store.FenceAt(4)))
		}},
		"a fence that becomes less": {Fence, func(h *tape) {
			h.at(claimed("a", 0, "one"))
			h.at(put(numberKey(keys, "a", 0), 7, `{"v":2,"claim":"one","record":{"pools":{"a":1},"fence":%d}}`, store.FenceAt(3)))
		}},
		"granted another fence": {Fence, func(h *tape) {
			h.at(claimed("a", 0, "one")).Granted("one", store.FenceAt(5), map[string]int{"a": 1})
		}},
		"granted a claim that never was": {Fence, func(h *tape) { h.Granted("one", store.FenceAt(4), map[string]int{"a": 1}) }},
		"granted other slots": {Whole, func(h *tape) {
			h.at(claimed("a", 0, "one")).Granted("one", store.FenceAt(4), map[string]int{"a": 2})
		}},
		"a demand in one pool":           {Queued, func(h *tape) { h.at(waits("one", false, "a")...) }},
		"a demand only in the other one": {Queued, func(h *tape) { h.at(waits("one", false, "b")...) }},
		"a demand left in one":           {Queued, func(h *tape) { h.at(waits("one", false, "a", "b")...).at(gone()[0]) }},
		"a demand in three":              {Queued, func(h *tape) { h.at(waits("one", false, "a", "b", "c")...) }},
		"a demand put one after another": {Queued, func(h *tape) { h.at(waits("one", false, "a", "b")...).at(gone()[1]).at(waits("one", false, "b")...) }},
		"an unknown key":                 {Readable, func(h *tape) { h.at(put(keys.Pools()+"a/slots/0/0", 7, "{}")) }},
		"a value without fields":         {Readable, func(h *tape) { h.at(put(numberKey(keys, "a", 0), 7, "{}")) }},
		"a spec without fields":          {Readable, func(h *tape) { h.at(put(keys.Spec("a"), 0, `{"v":2}`)) }},
		"a newer version":                {Readable, func(h *tape) { h.at(put(keys.Spec("a"), 0, `{"v":3,"limit":2}`)) }},
		"an unknown name":                {Readable, func(h *tape) { h.at(put(demandsKeyOf("a", "i", 0)+"x", 8, `{"v":2}`)) }},
		"demands of no claim":            {Readable, func(h *tape) { h.at(put(demandsKeyOf("a", "i", 0), 8, `{"v":2,"demands":[{"pools":{"a":1}}]}`)) }},
		"a revision that comes again": {Ordered, func(h *tape) {
			h.rev--
			h.at(claimed("b", 0, "one"))
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
	h.Ignore(numberKey(keys, "a", 0))
	h.at(put(numberKey(keys, "a", 0), 0, "junk"))
	if v := h.Violations(); len(v) > 0 {
		t.Errorf("violations: %v", v)
	}
}

// A claim that a restore under a new cluster id has brought back belongs to no process. Its id can be
// claimed again before its lease ends, but only once, and not if the cluster is the same.
func TestTheIDOfAClaimIsClaimedAgainAfterItsClusterWasReplaced(t *testing.T) {
	for _, replaced := range []bool{true, false} {
		had := []*mvccpb.KeyValue{limit("a", 3).Kv, limit("b", 3).Kv, claimed("a", 0, "c").Kv}
		for _, kv := range had {
			kv.ModRevision = 3
		}
		n := &tape{History: newTape().Restored(1000, had), rev: 1000, created: map[string]int64{}}
		if replaced {
			n.Replaced()
		}
		n.at(claimed("b", 0, "c"))
		if v := n.Violations(); len(v) > 0 == replaced {
			t.Errorf("replaced: %v; the same id again: %v", replaced, v)
		}
		if !replaced {
			continue
		}
		n.at(claimed("b", 1, "c"))
		if v := n.Violations(); len(v) == 0 {
			t.Error("a third claim of the same id is no violation")
		}
	}
}

func TestAHistoryGoesOnAfterARestore(t *testing.T) {
	h := newTape()
	h.at(limit("a", 2)).at(claimed("a", 0, "kept")).at(limit("a", 1)) // the snapshot
	had := []*mvccpb.KeyValue{limit("a", 1).Kv, claimed("a", 0, "kept").Kv}
	had[0].ModRevision, had[1].ModRevision = 4, 3
	h.at(claimed("b", 0, "lost")) // in a pool that there is not, before the restore
	n := newTape()
	n.History, n.rev = h.Restored(1000, had), 1000
	if n.Held() != 1 || n.Used("a") != 1 || len(n.Violations()) > 0 {
		t.Errorf("%d are held, %d slots used, %v", n.Held(), n.Used("a"), n.Violations())
	}
	n.Granted("kept", store.FenceAt(3), map[string]int{"a": 1})
	n.at(claimed("a", 1, "more"))
	n.rev = 4
	n.at(claimed("b", 0, "late")) // with the fencing token of "lost"
	var rules []Rule
	for _, v := range n.Violations() {
		rules = append(rules, v.Rule)
	}
	if want := []Rule{Capacity, Capacity, Ordered, Fence, Capacity}; !slices.Equal(rules, want) {
		t.Errorf("it has found %v, want %v", rules, want)
	}
	if ended := n.Forget(); ended != 0 {
		t.Errorf("%d of those that are held have ended", ended)
	}
	n.rev = 1002
	n.at(freed("a", 0))
	if ended := n.Forget(); ended != 1 || n.Hold("kept") != nil {
		t.Errorf("%d have ended, and kept is %v", ended, n.Hold("kept"))
	}
}
