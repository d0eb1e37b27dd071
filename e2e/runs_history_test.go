package e2e

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// What a [RunHistory] is to notice, it does.
func TestARunHistoryNoticesWhatItIsTo(t *testing.T) {
	t.Parallel()
	type write struct {
		rev        int64
		key, value string
	}
	run := func(rev int64, id, status, more string) write {
		return write{rev, keys.Run(id), `{"v":1,"status":"` + status + `","tags":{"env":"prod","t":"` + id + `"}` + more + `}`}
	}
	limits := func(rev int64, value string) write { return write{rev, keys.Limits(), value} }
	slots := func(rev int64, claim string, n int) write {
		return write{rev, fmt.Sprintf("%sb/00/%d", keys.Slots("db"), n), fmt.Sprintf(`{"v":2,"count":%d,"claim":%q,"record":{}}`, n, claim)}
	}
	seen := func(rev int64, id string) write { return write{rev, keys.ActiveRun("x", id), `{"v":1}`} }
	gone := func(rev int64, of write) write { return write{rev, of.key, ""} }
	const needs = `,"claim":"c","pools":{"db":2}`
	two := []write{run(2, "a", "queued", ""), run(2, "b", "queued", "")}
	for name, tc := range map[string]struct {
		then []write
		want Rule
	}{
		"nothing wrong":             {[]write{limits(3, `{"max_concurrent_runs":1}`), run(4, "a", "not_started", ""), run(5, "a", "running", ""), run(6, "a", "succeeded", ""), run(7, "b", "not_started", "")}, ""},
		"all":                       {[]write{limits(3, `{"max_concurrent_runs":1}`), run(4, "a", "not_started", ""), run(5, "b", "not_started", "")}, RunLimits},
		"both at one revision":      {[]write{limits(3, `{"max_concurrent_runs":1}`), run(4, "a", "not_started", ""), run(4, "b", "not_started", "")}, RunLimits},
		"a tag":                     {[]write{limits(3, `{"max_concurrent_runs":9,"tags":[{"key":"env","value":"prod","limit":1}]}`), run(4, "a", "not_started", ""), run(5, "b", "not_started", "")}, RunLimits},
		"each value":                {[]write{limits(3, `{"max_concurrent_runs":9,"tags":[{"key":"t","per_unique_value":true,"limit":1}]}`), run(4, "a", "not_started", ""), run(5, "b", "not_started", "")}, ""},
		"all values":                {[]write{limits(3, `{"max_concurrent_runs":9,"tags":[{"key":"t","limit":1}]}`), run(4, "a", "not_started", ""), run(5, "b", "not_started", "")}, RunLimits},
		"a way there is none":       {[]write{run(3, "a", "running", "")}, RunWays},
		"twice to its end":          {[]write{run(3, "a", "canceled", ""), run(4, "a", "failed", "")}, RunWays},
		"a reason left":             {[]write{run(3, "a", "not_started", `,"block":{"text":"x"}`)}, RunReasons},
		"admitted with slots":       {[]write{run(3, "a", "not_started", needs), slots(3, "c", 2), run(4, "a", "running", needs), slots(4, "c", 2), seen(4, "a"), gone(5, seen(5, "a")), run(5, "a", "succeeded", ""), gone(6, slots(6, "c", 2))}, ""},
		"lost with its slots":       {[]write{run(3, "a", "not_started", needs), slots(3, "c", 2), run(4, "a", "running", needs), seen(4, "a"), gone(5, seen(5, "a")), gone(5, slots(5, "c", 2)), run(6, "a", "queued", "")}, ""},
		"admitted without slots":    {[]write{run(3, "a", "not_started", needs), slots(4, "c", 2)}, RunSlots},
		"admitted with too few":     {[]write{run(3, "a", "not_started", needs), slots(3, "c", 1)}, RunSlots},
		"with those of another":     {[]write{run(3, "a", "not_started", needs), slots(3, "d", 2)}, RunSlots},
		"started without its slots": {[]write{run(3, "a", "not_started", needs), slots(3, "c", 2), run(4, "a", "running", needs), seen(4, "a"), gone(4, slots(4, "c", 2))}, RunSlots},
		"its slots gone first":      {[]write{run(3, "a", "not_started", needs), slots(3, "c", 2), run(4, "a", "running", needs), seen(4, "a"), gone(5, slots(5, "c", 2)), gone(6, seen(6, "a"))}, RunSlots},
		"a broken value":            {[]write{{3, keys.Run("a"), "{"}}, Readable},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewRunHistory(keys)
			for _, w := range append(two, tc.then...) {
				ev := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(w.key), Value: []byte(w.value), ModRevision: w.rev}}
				if w.value == "" {
					ev.Type = mvccpb.Event_DELETE
				}
				h.Event(ev)
			}
			found := h.Violations()
			switch {
			case tc.want == "" && len(found) > 0, tc.want != "" && len(found) != 1:
				t.Errorf("%v, want %q", found, tc.want)
			case tc.want != "" && found[0].Rule != tc.want:
				t.Errorf("%v, want %q", found, tc.want)
			}
		})
	}
}
