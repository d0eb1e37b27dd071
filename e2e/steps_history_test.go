package e2e

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// stepWrite is one event of a made-up history.
type stepWrite struct {
	rev        int64
	key, value string // no value: it was deleted
	lease      int64
}

// written makes events of step instances of run r.
type written struct{ id store.StepID }

func item(step string, index int) written {
	return written{store.StepID{Run: "r", Step: step, Index: index}}
}

func (w written) place() string { return keys.Ready("default") + w.id.Text() }

// published is the transaction of the coordinator, with the starts there were before.
func (w written) published(rev int64, attempt int) []stepWrite {
	return []stepWrite{
		w.record(rev, fmt.Sprintf(`"status":"scheduled","attempt":%d`, attempt)),
		{rev, w.place(), fmt.Sprintf(`{"v":1,"run":"r","step":%q,"index":%d}`, w.id.Step, w.id.Index), 0},
	}
}

func (w written) record(rev int64, fields string) stepWrite {
	return stepWrite{rev, keys.Step(w.id), `{"v":1,` + fields + `}`, 0}
}

// taken is the transaction of a worker on host a.
func (w written) taken(rev int64, attempt int) []stepWrite {
	return []stepWrite{
		w.record(rev, fmt.Sprintf(`"status":"running","attempt":%d,"executor":{"host":"a","instance":"worker"}`, attempt)),
		{rev, w.place(), "", 0}, w.seen(rev, "a"),
	}
}

func (w written) seen(rev int64, host string) stepWrite {
	return stepWrite{rev, keys.ActiveStep(host, w.id), `{"v":1}`, 7}
}

func (w written) unseen(rev int64) stepWrite {
	return stepWrite{rev, keys.ActiveStep("a", w.id), "", 0}
}

// ended is the last transaction of a worker.
func (w written) ended(rev int64, status string, attempt int, taken int64) []stepWrite {
	return []stepWrite{w.record(rev, fmt.Sprintf(`"status":%q,"attempt":%d,"end_fence":%d`, status, attempt, store.FenceAt(taken))), w.unseen(rev)}
}

func slotOf(rev int64, index int) stepWrite {
	return stepWrite{rev, numberKey(keys, "db", index), fmt.Sprintf(`{"v":2,"claim":"c%d","record":{}}`, index), 7}
}

// What a [StepHistory] is to notice, it does.
func TestAStepHistoryNoticesWhatItIsTo(t *testing.T) {
	t.Parallel()
	m0, m1, m2, n0, db0, db1 := item("m", 0), item("m", 1), item("m", 2), item("n", 0), item("db", 0), item("db", 1)
	cat := func(all ...[]stepWrite) (writes []stepWrite) {
		for _, some := range all {
			writes = append(writes, some...)
		}
		return writes
	}
	one := func(w stepWrite) []stepWrite { return []stepWrite{w} }
	begin := []stepWrite{
		{1, keys.Spec("db"), `{"v":2,"limit":1}`, 0},
		{2, keys.Graph("r"), `{"v":1,"steps":[{"name":"m","count":3,"concurrency":2,"retries":1},
			{"name":"db","count":2,"pools":{"db":1}},{"name":"n","count":1,"needs":[0]}]}`, 0},
		{3, keys.Run("r"), `{"v":1,"status":"running","steps":6,"max_concurrent_steps":3}`, 0},
	}
	whole := cat(m0.published(4, 0), m1.published(4, 0), m0.taken(5, 1), m1.taken(6, 1), m0.ended(7, "succeeded", 1, 5),
		m2.published(8, 0), m2.taken(9, 1), m2.ended(10, "requested", 1, 9), m1.ended(11, "succeeded", 1, 6), m2.published(12, 1),
		m2.taken(13, 2), m2.ended(14, "succeeded", 2, 13))
	db := cat(db0.published(20, 0), one(slotOf(21, 0)), db0.taken(21, 1))
	for name, tc := range map[string]struct {
		then []stepWrite
		want Rule
	}{
		"nothing wrong":                 {cat(whole, n0.published(15, 0), n0.taken(16, 1), n0.ended(17, "succeeded", 1, 16), db), ""},
		"a lost one":                    {cat(m0.published(4, 0), m0.taken(5, 1), one(m0.unseen(6)), one(m0.record(7, `"status":"requested","attempt":1`)), m0.published(8, 1), m0.taken(9, 2)), ""},
		"a lost one without its slot":   {cat(db, one(stepWrite{22, numberKey(keys, "db", 0), "", 0}), db1.published(22, 0), one(slotOf(23, 1)), db1.taken(23, 1), one(db0.unseen(24)), one(db0.record(25, `"status":"failed","attempt":1`))), ""},
		"one handed back":               {cat(m0.published(4, 0), m0.taken(5, 1), one(m0.unseen(6)), m0.published(6, 0)), ""},
		"a window":                      {cat(m0.published(4, 0), m1.published(5, 0), m2.published(6, 0)), StepWindows},
		"a window at one revision":      {cat(m0.published(4, 0), m1.published(4, 0), m2.published(4, 0)), StepWindows},
		"the cap of the run":            {cat(m0.published(4, 0), m1.published(4, 0), db0.published(5, 0), db1.published(6, 0)), StepWindows},
		"not in order":                  {cat(m1.published(4, 0)), StepOrder},
		"before what it needs":          {cat(m0.published(4, 0), n0.published(5, 0)), StepNeeds},
		"a way there is none":           {cat(m0.published(4, 0), one(m0.record(5, `"status":"succeeded","attempt":0`)), one(stepWrite{5, m0.place(), "", 0})), StepWays},
		"ended twice":                   {cat(whole, one(m0.record(15, `"status":"failed","attempt":1`))), StepWays},
		"a start that is not counted":   {cat(m0.published(4, 0), m0.taken(5, 2)), StepWays},
		"a try too many":                {cat(db0.published(4, 0), one(slotOf(5, 0)), db0.taken(5, 1), one(db0.unseen(6)), one(db0.record(7, `"status":"requested","attempt":1`)), db0.published(8, 1), one(slotOf(9, 0)), db0.taken(9, 2)), StepWays},
		"seen twice":                    {cat(m0.published(4, 0), m0.taken(5, 1), one(m0.seen(6, "b"))), StepAlone},
		"not seen":                      {cat(m0.published(4, 0), m0.taken(5, 1)[:2]), StepAlone},
		"seen after its end":            {cat(m0.published(4, 0), m0.taken(5, 1), m0.ended(6, "succeeded", 1, 5)[:1]), StepAlone},
		"ended by an earlier executor":  {cat(m0.published(4, 0), m0.taken(5, 1), m0.ended(6, "succeeded", 1, 4)), StepAlone},
		"in no queue":                   {m0.published(4, 0)[:1], StepQueued},
		"left in its queue":             {cat(m0.published(4, 0), m0.taken(5, 1)[:1], m0.taken(5, 1)[2:]), StepQueued},
		"without slots":                 {cat(db0.published(20, 0), db0.taken(21, 1)), StepPools},
		"with slots that were returned": {cat(db0.published(20, 0), one(slotOf(21, 0)), one(stepWrite{22, numberKey(keys, "db", 0), "", 0}), db0.taken(23, 1)), StepPools},
		"with the slot of another one":  {cat(db0.published(20, 0), db1.published(20, 0), one(slotOf(21, 0)), db0.taken(21, 1), db1.taken(22, 1)), StepPools},
		"beyond a limit":                {cat(db, db1.published(22, 0), one(slotOf(23, 1)), db1.taken(23, 1)), StepPools},
		"started after the end":         {cat(m0.published(4, 0), one(stepWrite{5, keys.Canceled("r"), `{"v":1}`, 0}), m0.taken(6, 1)), StepStopped},
		"an end too early":              {cat(whole, one(stepWrite{15, keys.Run("r"), `{"v":1,"status":"succeeded","steps":6}`, 0})), StepWhole},
		"a broken value":                {one(stepWrite{4, keys.Step(m0.id), "{", 0}), Readable},
		"an unknown instance":           {one(item("m", 3).record(4, `"status":"scheduled"`)), Readable},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewStepHistory(keys)
			for _, w := range append(begin, tc.then...) {
				ev := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(w.key), Value: []byte(w.value), ModRevision: w.rev, Lease: w.lease}}
				if w.value == "" {
					ev.Type = mvccpb.Event_DELETE
				}
				h.Event(ev)
			}
			found := h.Violations()
			if tc.want == "" {
				if len(found) > 0 {
					t.Errorf("%v", found)
				}
				return
			}
			if len(found) == 0 {
				t.Fatalf("nothing was found, want %q", tc.want)
			}
			for _, v := range found {
				if v.Rule != tc.want {
					t.Errorf("%v, want %q", v, tc.want)
				}
			}
		})
	}
}

// A restore brings back an execution that has ended. Its worker gives back its slot in the transaction
// that takes another instance.
func TestAnExecutionThatARestoreBringsBackNeedsNoSlots(t *testing.T) {
	t.Parallel()
	events := func(writes ...stepWrite) (all []*mvccpb.Event) {
		for _, w := range writes {
			ev := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(w.key), Value: []byte(w.value), ModRevision: w.rev, Lease: w.lease}}
			if w.value == "" {
				ev.Type = mvccpb.Event_DELETE
			}
			all = append(all, ev)
		}
		return all
	}
	old, next := item("db", 0), item("db", 1)
	taken := old.taken(6, 1)
	var had []*mvccpb.KeyValue
	for _, ev := range events(
		stepWrite{1, keys.Spec("db"), `{"v":2,"limit":1}`, 0},
		stepWrite{2, keys.Graph("r"), `{"v":1,"steps":[{"name":"db","count":2,"pools":{"db":1}}]}`, 0},
		stepWrite{3, keys.Run("r"), `{"v":1,"status":"running","steps":2}`, 0},
		slotOf(6, 0), taken[0], taken[2],
	) {
		had = append(had, ev.Kv)
	}
	h := NewStepHistory(keys).Restored(had)
	for _, ev := range events(next.published(1001, 0)...) {
		h.Event(ev)
	}
	for _, ev := range events(append(next.taken(1002, 1), stepWrite{1002, numberKey(keys, "db", 0), "", 0}, slotOf(1002, 1))...) {
		h.Event(ev)
	}
	if found := h.Violations(); len(found) > 0 {
		t.Errorf("%v", found)
	}
}
