package storetest

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

func TestEveryPastStateIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := New(Options{Revision: 7})
		states := map[int64][]*mvccpb.KeyValue{7: nil}
		e.OnCommit(func(rev int64, _ []*mvccpb.Event, _ *pb.TxnRequest) {
			states[rev] = copyKVs(e.keys)
		})
		leases := grantSome(t, e)
		for range rapid.IntRange(0, 20).Draw(t, "transactions") {
			_, _ = e.Txn(drawer{t: t, since: 7, now: e.Revision(), leases: leases}.txn(1))
		}
		must(t, e.Revoke(leases[0]))
		if len(states) != int(e.Revision()-7)+1 {
			t.Fatalf("%d states of %d revisions", len(states), e.Revision()-7)
		}
		for rev, want := range states {
			got, err := e.State(rev)
			must(t, err)
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Fatalf("state at %d (-then +now):\n%s", rev, diff)
			}
		}
	})
}

func grantSome(t tester, e *Etcd) []store.LeaseID {
	var leases []store.LeaseID
	for range 3 {
		id, _, err := e.Grant(0)
		must(t, err)
		leases = append(leases, id)
	}
	return leases
}

func TestStateOutsideOfHistoryIsAnError(t *testing.T) {
	e := New(Options{Revision: 7})
	for _, rev := range []int64{6, 8} {
		if _, err := e.State(rev); err == nil {
			t.Errorf("no error for revision %d", rev)
		}
	}
}

// Replaying the events of the log, in order, gives the store.
func TestHistoryLeadsToThePresent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := New(Options{})
		leases := grantSome(t, e)
		for range rapid.IntRange(0, 20).Draw(t, "transactions") {
			_, _ = e.Txn(drawer{t: t, since: 1, now: e.Revision(), leases: leases}.txn(1))
		}
		var replayed index
		next := int64(2)
		for _, r := range e.History() {
			if r.Rev != next || len(r.Events) == 0 {
				t.Fatalf("revision %d with %d events where %d is due", r.Rev, len(r.Events), next)
			}
			next++
			for _, ev := range r.Events {
				if at, found := replayed.find(ev.Kv.Key); found != (ev.PrevKv != nil) || found && replayed[at] != ev.PrevKv {
					t.Fatalf("event at %d does not tell what was before", r.Rev)
				}
				if ev.Type == mvccpb.Event_DELETE {
					replayed.drop(ev.Kv.Key)
				} else {
					replayed.set(ev.Kv)
				}
			}
		}
		if !slices.Equal(replayed, e.keys) {
			t.Fatalf("replayed: %s\nstored: %s", describeKVs(replayed, 0), describeKVs(e.keys, 0))
		}
	})
}

func TestOnCommitIsCalledForWritesAlone(t *testing.T) {
	e := New(Options{})
	var calls []string
	e.OnCommit(func(rev int64, events []*mvccpb.Event, req *pb.TxnRequest) {
		line := describeEvents([]Revision{{rev, events}}, 0)
		if req == nil {
			line += " (lease)"
		}
		calls = append(calls, line)
	})
	id, _, _ := e.Grant(0)
	idle, _, _ := e.Grant(0)
	write(t, e, putOn("b", int64(id)), putOn("a", int64(id)))
	write(t, e, del("x"))
	_, _ = e.Txn(always(put("c"), put("c")))
	must(t, e.Revoke(idle))
	must(t, e.Revoke(id))
	want := []string{
		"2: put b=v/c2/m2/v1/l1 put a=v/c2/m2/v1/l1",
		"3: del a@3 del b@3 (lease)",
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Error(diff)
	}
}

func TestSinceSkipsOtherPrefixes(t *testing.T) {
	e := New(Options{})
	write(t, e, put("a/1"), put("b/1"))
	write(t, e, put("b/2"))
	write(t, e, del("a/1"))
	for _, c := range []struct {
		prefix string
		from   int64
		want   string
	}{
		{"a/", 0, "2: put a/1=v/c2/m2/v1\n4: del a/1@4"},
		{"a/", 3, "4: del a/1@4"},
		{"b/", 2, "2: put b/1=v/c2/m2/v1\n3: put b/2=v/c3/m3/v1"},
		{"", 4, "4: del a/1@4"},
		{"", 5, ""},
		{"", 99, ""},
	} {
		got, err := e.Since(c.prefix, c.from)
		if err != nil || describeEvents(got, 0) != c.want {
			t.Errorf("since(%q, %d): %v\n%s\nwant\n%s", c.prefix, c.from, err, describeEvents(got, 0), c.want)
		}
	}
}

func TestCompactionEndsReadsOfThePast(t *testing.T) {
	e := New(Options{})
	write(t, e, put("a"))
	write(t, e, put("a"))
	write(t, e, put("a"))
	if err := e.Compact(9); err == nil {
		t.Error("the future was compacted")
	}
	must(t, e.Compact(3))
	if err := e.Compact(3); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("compacted twice: %v", err)
	}
	for rev, want := range map[int64]error{2: store.ErrCompacted, 3: nil, 4: nil} {
		if _, err := e.Range(&pb.RangeRequest{Key: []byte("a"), Revision: rev}); !errors.Is(err, want) {
			t.Errorf("read at %d: %v", rev, err)
		}
		if _, err := e.Since("", rev); !errors.Is(err, want) {
			t.Errorf("since %d: %v", rev, err)
		}
	}
	if _, err := e.State(2); err != nil {
		t.Errorf("checkers lose the past: %v", err)
	}
}

func TestWhatIsReturnedIsACopy(t *testing.T) {
	e := New(Options{})
	req := always(put("a"), put("b"))
	_, err := e.Txn(req)
	must(t, err)
	clear(req.Success[0].GetRequestPut().Key)
	clear(req.Success[0].GetRequestPut().Value)

	spoil := func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			clear(kv.Key)
			clear(kv.Value)
			_ = append(kv.Key, "spoiled"...)
			_ = append(kv.Value, "spoiled"...)
			kv.ModRevision, kv.Version, kv.Lease = 99, 99, 99
		}
	}
	all := span("a", "z")
	for _, keysOnly := range []bool{false, true} {
		all.KeysOnly = keysOnly
		resp, err := e.Range(all)
		must(t, err)
		spoil(resp.Kvs)
	}
	all.KeysOnly = false
	resp, err := e.Txn(always(read(all)))
	must(t, err)
	spoil(resp.Responses[0].GetResponseRange().Kvs)
	state, err := e.State(2)
	must(t, err)
	spoil(state)
	since, err := e.Since("", 0)
	must(t, err)
	m, _ := e.Follow(store.Prefix(""), 2).Next(9)
	for _, ev := range append(m.Events, since[0].Events...) {
		if ev.PrevKv != nil {
			t.Error("a watch tells what was before")
		}
		spoil([]*mvccpb.KeyValue{ev.Kv})
	}

	want := "2: put a=v/c2/m2/v1 put b=v/c2/m2/v1"
	if got := describeEvents(e.History(), 0); got != want {
		t.Errorf("history was spoiled: %s", got)
	}
	if got := describeKVs(e.keys, 0); got != "a=v/c2/m2/v1 b=v/c2/m2/v1" {
		t.Errorf("the store was spoiled: %s", got)
	}
}

func TestAllYieldsAPrefixInOrder(t *testing.T) {
	e := New(Options{})
	write(t, e, put("b/2"), put("a"), put("b/1"), put("c"), put("b\xff"))
	for prefix, want := range map[string]string{
		"":   "a b/1 b/2 b\xff c",
		"b/": "b/1 b/2",
		"b":  "b/1 b/2 b\xff",
		"x":  "",
	} {
		var got []byte
		for kv := range e.All(prefix) {
			got = append(append(got, ' '), kv.Key...)
		}
		if want != "" {
			want = " " + want
		}
		if string(got) != want {
			t.Errorf("under %q: %q, want %q", prefix, got, want)
		}
	}
	for kv := range e.All("") {
		if string(kv.Key) != "a" {
			t.Errorf("went on after a break: %q", kv.Key)
		}
		break
	}
}
