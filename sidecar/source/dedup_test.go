package source

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestWhatFollowsFromAList(t *testing.T) {
	all := dedupRecords{
		"listed": {At: epoch},
		"again":  {At: epoch, Gone: epoch.Add(time.Minute)},
		"gone":   {At: epoch},
		"going":  {At: epoch, Gone: epoch.Add(time.Second)},
		"past":   {At: epoch, Gone: epoch},
	}
	before := maps.Clone(all)
	now := epoch.Add(time.Hour)
	got := all.due([]Item{{ID: "z"}, {ID: "listed"}, {ID: "again"}, {ID: "a"}}, time.Hour, now)
	want := due{
		submit: []Item{{ID: "z"}, {ID: "a"}}, // in their order
		change: dedupRecords{"again": {At: epoch}, "gone": {At: epoch, Gone: now}},
		forget: []string{"past"},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(due{}, dedupRecord{})); d != "" {
		t.Error(d)
	}
	if !maps.Equal(all, before) {
		t.Error("the marks were changed")
	}
}

// A model: an item is submitted when it is listed and there is no mark, which stays for
// as long as the item is listed and for a while after.
func TestMarksKeepWhatIsListed(t *testing.T) {
	const forget = 10 * time.Minute
	rapid.Check(t, func(t *rapid.T) {
		all, now := dedupRecords{}, epoch
		last := map[string]time.Time{} // when an item was listed last
		for range rapid.IntRange(1, 30).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(1, 12).Draw(t, "minutes")) * time.Minute)
			var items []Item
			var ids []string
			for i := range 4 {
				if rapid.Bool().Draw(t, "listed") {
					id := fmt.Sprint(i)
					items, ids = append(items, Item{ID: id}), append(ids, id)
				}
			}
			d := all.due(items, forget, now)
			for _, it := range d.submit {
				if _, seen := all[it.ID]; seen {
					t.Fatalf("%s is submitted again", it.ID)
				}
				all[it.ID] = dedupRecord{At: now}
			}
			maps.Copy(all, d.change)
			for _, id := range d.forget {
				if now.Sub(last[id]) < forget || slices.Contains(ids, id) {
					t.Fatalf("%s is forgotten too soon", id)
				}
				delete(all, id)
			}
			for _, id := range ids {
				if m, seen := all[id]; !seen || !m.Gone.IsZero() {
					t.Fatalf("%s is listed: %+v", id, m)
				}
				last[id] = now
			}
		}
	})
}

func TestMarksAndLooksReadBack(t *testing.T) {
	for _, m := range []dedupRecord{{At: epoch}, {At: epoch, Gone: epoch.Add(time.Hour)}} {
		if got, err := decodeDedup("k", m.encode()); err != nil || got != m {
			t.Errorf("%+v, %v, want %+v", got, err, m)
		}
	}
	l := Poll{By: "x", Interval: time.Second, At: epoch, Took: 5, Listed: 3, Refused: 1, Submitted: 1, Refusal: "a", Error: "b", Failures: 2, LastGood: epoch, Wake: 7}
	if got, err := decodePoll("k", l.encode()); err != nil || got != l {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := decodeDedup("k", []byte(`{"v":2}`)); err == nil {
		t.Error("a mark of another version was read")
	}
}

func TestPauses(t *testing.T) {
	for _, c := range []struct {
		interval time.Duration
		failures int
		want     time.Duration
	}{
		{30 * time.Second, 0, 30 * time.Second},
		{30 * time.Second, 1, 30 * time.Second},
		{30 * time.Second, 2, time.Minute},
		{30 * time.Second, 4, 4 * time.Minute},
		{30 * time.Second, 5, 5 * time.Minute},
		{30 * time.Second, 1000, 5 * time.Minute},
		{time.Hour, 0, time.Hour},
		{time.Hour, 7, time.Hour},
	} {
		if got := pause(c.interval, c.failures); got != c.want {
			t.Errorf("%s after %d: %s, want %s", c.interval, c.failures, got, c.want)
		}
	}
}

func TestWhatIsWorthTelling(t *testing.T) {
	reported := Poll{By: "x", At: epoch, LastGood: epoch, Listed: 3}
	same := reported
	same.At, same.LastGood, same.Took = epoch.Add(time.Second), epoch.Add(time.Second), 7
	other := same
	other.Wake = 9
	old := same
	old.At = epoch.Add(storeEvery)
	for l, want := range map[Poll]bool{same: false, other: true, old: true, {At: epoch.Add(-time.Second)}: true} {
		if l.differs(reported) != want {
			t.Errorf("%+v: not %v", l, want)
		}
	}
}
