package ui

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

var cacheKeys = store.NewKeys("/b/")

// record is the value of a run.
func record(status run.Status, change ...func(*run.Record)) []byte {
	r := run.Record{Status: status}
	if status == run.Running {
		r.Executor = &run.Executor{Host: "one", Instance: "sidecar"}
	}
	for _, f := range change {
		f(&r)
	}
	return r.Encode()
}

// shore is the keys of runs as they come and go.
type recordSet struct {
	rev int64
	kvs map[string]*mvccpb.KeyValue
}

func newShore() *recordSet { return &recordSet{kvs: map[string]*mvccpb.KeyValue{}} }

// put writes a key in a revision of its own, or in the one before.
func (s *recordSet) put(id string, value []byte, together bool) *mvccpb.Event {
	if !together {
		s.rev++
	}
	key := cacheKeys.Run(id)
	kv := &mvccpb.KeyValue{Key: []byte(key), Value: value, CreateRevision: s.rev, ModRevision: s.rev}
	if old := s.kvs[key]; old != nil {
		kv.CreateRevision = old.CreateRevision
	}
	s.kvs[key] = kv
	return &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: kv}
}

func (s *recordSet) delete(id string) *mvccpb.Event {
	s.rev++
	key := cacheKeys.Run(id)
	delete(s.kvs, key)
	return &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: s.rev}}
}

// set is what there is now, read at once.
func (s *recordSet) set() *runSet { return runSetOf(cacheKeys, slices.Collect(maps.Values(s.kvs))) }

// step changes something.
func (s *recordSet) step(t *rapid.T) *mvccpb.Event {
	id := fmt.Sprintf("r%d", rapid.IntRange(0, 30).Draw(t, "id"))
	together := s.rev > 0 && rapid.IntRange(0, 3).Draw(t, "together") == 0
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0:
		return s.delete(id)
	case 1:
		return s.put(id, []byte("?"), together)
	case 2:
		return s.put(id, []byte(`{"v":2,"status":"running","tags":{"env":"prod"}}`), together)
	}
	status := rapid.SampledFrom(append(run.Statuses, run.Queued, run.Queued)).Draw(t, "status")
	return s.put(id, record(status, func(r *run.Record) {
		r.Priority = rapid.IntRange(-2, 2).Draw(t, "priority") // only hands change it
		r.Tags = map[string]string{"env": rapid.SampledFrom([]string{"prod", "dev"}).Draw(t, "env")}
	}), together)
}

func idsOf(list []*listed) []string {
	ids := []string{}
	for _, l := range list {
		ids = append(ids, l.ID)
	}
	return ids
}

// shown is all that a set says.
func shown(s *runSet) map[string]any {
	counts, bad := map[string]int{}, map[string]string{}
	for status, n := range s.counts {
		if n != 0 {
			counts[string(status)] = n
		}
	}
	for key, err := range s.bad {
		bad[key] = err.Error()
	}
	return map[string]any{
		"queue": idsOf(s.queue.all), "newest": idsOf(s.newest.all), "counts": counts, "bad": bad,
		"progress": slices.Sorted(maps.Keys(s.progress)), "use": tagUseOf(s).tags, "ids": slices.Sorted(maps.Keys(s.byID)),
	}
}

// Following what happens comes to the same as reading all again, whatever happens.
func TestAWatchedCopyIsWhatAReadingWouldBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shore := newShore()
		for range rapid.IntRange(0, 20).Draw(t, "before") {
			shore.step(t)
		}
		followed := shore.set()
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			followed.apply(shore.step(t))
		}
		if d := gocmp.Diff(shown(shore.set()), shown(followed)); d != "" {
			t.Fatal(d)
		}
	})
}

// The orders are those of their definitions: of the queue as the coordinator has it.
func TestTheCopyIsInTheOrderOfTheQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shore := newShore()
		followed := newRunSet(cacheKeys)
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			followed.apply(shore.step(t))
		}
		var all run.All
		for _, kv := range shore.kvs {
			if r, err := run.Decode(cacheKeys, kv); err == nil {
				all.Runs = append(all.Runs, r)
			}
		}
		var queue, newest []string
		for _, r := range all.Queue() {
			queue = append(queue, r.ID)
		}
		slices.SortFunc(all.Runs, func(a, b *run.Run) int {
			return cmp.Or(cmp.Compare(b.Created, a.Created), strings.Compare(a.ID, b.ID))
		})
		for _, r := range all.Runs {
			newest = append(newest, r.ID)
		}
		if got := idsOf(followed.queue.all); !slices.Equal(got, queue) {
			t.Fatalf("the queue is %v, want %v", got, queue)
		}
		if got := idsOf(followed.newest.all); !slices.Equal(got, newest) {
			t.Fatalf("the newest are %v, want %v", got, newest)
		}
	})
}

func TestWhatCantBeReadIsCountedAndNamed(t *testing.T) {
	shore := newShore()
	for i := range maxUnreadable + 3 {
		shore.put(fmt.Sprintf("bad%02d", i), []byte("<b>?</b>"), false)
	}
	shore.put("newer", []byte(`{"v":2,"status":"running","tags":{"env":"prod"}}`), false)
	s := shore.set()
	u := s.unreadable()
	if u.Count != maxUnreadable+4 || len(u.Some) != maxUnreadable || u.More() != 4 || !strings.Contains(u.Some[0], "/b/runs/bad00") {
		t.Errorf("%+v", u)
	}
	// What seems to be in progress counts against limits, as it does for the coordinator.
	if use := tagUseOf(s); use.runs != 1 || use.tags["env"]["prod"] != 1 {
		t.Errorf("%+v", use)
	}
	s.apply(shore.put("newer", record(run.Queued), false))
	if u := s.unreadable(); u.Count != maxUnreadable+3 || tagUseOf(s).runs != 0 || len(s.queue.all) != 1 {
		t.Errorf("%+v", u)
	}
	if u := newRunSet(cacheKeys).unreadable(); u.Count != 0 || u.Some != nil {
		t.Errorf("%+v", u)
	}
}
