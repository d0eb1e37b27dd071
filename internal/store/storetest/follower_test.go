package storetest

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

func TestAFollowerReadsInChunksOfWholeRevisions(t *testing.T) {
	e := New(Options{})
	f := e.Follow(store.Prefix("a"), 2)
	write(t, e, put("a1"), put("b"), put("a2"))
	write(t, e, put("b"))
	write(t, e, put("a1"))
	write(t, e, del("a1"))
	if got := f.Lag(); got != 4 {
		t.Errorf("lag is %d", got)
	}
	if _, ok := f.Progress(); ok {
		t.Error("progress was delivered before the events")
	}
	for _, want := range []struct {
		events string
		rev    int64
		lag    int64
	}{
		{"0: put a1=v/c2/m2/v1 put a2=v/c2/m2/v1 put a1=v/c2/m4/v2", 4, 1},
		{"0: del a1@5", 5, 0},
	} {
		m, ok := f.Next(2)
		if got := describeEvents([]Revision{{Events: m.Events}}, 0); !ok || got != want.events || m.Revision != want.rev || f.Lag() != want.lag {
			t.Errorf("got %s up to %d, lag %d; want %+v", got, m.Revision, f.Lag(), want)
		}
	}
	if m, ok := f.Next(2); ok {
		t.Errorf("something is left: %v", m)
	}
	write(t, e, put("b"))
	if m, ok := f.Progress(); !ok || m.Revision != 6 || m.Events != nil {
		t.Errorf("progress is %v, %t", m, ok)
	}
}

func TestAFollowerFromNowOnSeesNoPast(t *testing.T) {
	e := New(Options{})
	write(t, e, put("a"))
	f := e.Follow(store.Prefix(""), 0)
	if m, ok := f.Progress(); !ok || m.Revision != 2 {
		t.Errorf("progress is %v, %t", m, ok)
	}
	write(t, e, put("b"))
	if m, ok := f.Next(9); !ok || m.Revision != 3 || len(m.Events) != 1 {
		t.Errorf("got %v, %t", m, ok)
	}
}

func TestAFollowerOfTheNextRevisionGetsNoProgressBeforeIt(t *testing.T) {
	e := New(Options{})
	f := e.Follow(store.Prefix("a"), e.Revision()+1)
	if m, ok := f.Progress(); ok {
		t.Errorf("progress is %v", m)
	}
	rev := write(t, e, put("b"))
	if m, ok := f.Progress(); !ok || m.Revision != rev {
		t.Errorf("progress is %v, %t; want %d", m, ok, rev)
	}
}

func TestCompactionEndsAFollowerThatMissesEvents(t *testing.T) {
	e := New(Options{})
	behind, idle, late := e.Follow(store.Prefix("a"), 2), e.Follow(store.Prefix("b"), 2), e.Follow(store.Prefix("a"), 5)
	write(t, e, put("a"))
	write(t, e, put("a"))
	write(t, e, put("a"))
	must(t, e.Compact(4))
	opened := e.Follow(store.Prefix("b"), 3)
	for name, f := range map[string]*Follower{"one with events to read": behind, "one that is opened too late": opened, "one before all": e.Follow(store.Prefix(""), -1)} {
		if _, ok := f.Progress(); ok {
			t.Errorf("%s gets progress", name)
		}
		if m, ok := f.Next(1); !ok || !errors.Is(m.Err, store.ErrCompacted) {
			t.Errorf("%s gets %v, %t", name, m, ok)
		}
		if m, ok := f.Next(1); ok {
			t.Errorf("%s goes on: %v", name, m)
		}
	}
	if m, ok := idle.Progress(); !ok || m.Revision != 4 {
		t.Errorf("one without events gets %v, %t", m, ok)
	}
	write(t, e, put("a"))
	if m, ok := late.Next(9); !ok || m.Revision != 5 {
		t.Errorf("one that is not behind gets %v, %t", m, ok)
	}
}

// However a follower is asked, its messages together are what [Etcd.Since] says.
func TestAFollowerDeliversEverythingOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := New(Options{})
		f := e.Follow(store.Prefix("b"), 2)
		var got []Revision
		take := func(limit int) {
			m, ok := f.Next(limit)
			if !ok {
				return
			}
			must(t, m.Err)
			for _, ev := range m.Events {
				if n := len(got); n == 0 || got[n-1].Rev != ev.Kv.ModRevision {
					got = append(got, Revision{Rev: ev.Kv.ModRevision})
				}
				last := &got[len(got)-1]
				last.Events = append(last.Events, ev)
			}
		}
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				take(rapid.IntRange(1, 3).Draw(t, "chunk"))
			case 1:
				if m, ok := f.Progress(); ok && m.Revision != e.Revision() {
					t.Fatalf("progress says %d at %d", m.Revision, e.Revision())
				}
			default:
				_, _ = e.Txn(drawer{t: t, since: 1, now: e.Revision()}.txn(1))
			}
		}
		take(1 << 30)
		want, err := e.Since("b", 2)
		must(t, err)
		if describeEvents(got, 0) != describeEvents(want, 0) {
			t.Fatalf("got\n%s\nwant\n%s", describeEvents(got, 0), describeEvents(want, 0))
		}
	})
}
