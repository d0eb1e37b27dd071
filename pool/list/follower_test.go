package list

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/wire"
)

// follow runs a follower until the test ends.
func follow(t *testing.T, b store.Backend, keys store.Keys) *Follower {
	f := NewFollower(b, keys, hclog.NewNullLogger())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

func TestAFollowerKnowsWhatWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.w.hold("a", "one", db(1))
		b.write()
		f := follow(t, b.b, b.w.keys.Keys)
		if _, _, _, err := f.Space(nil); problem.CodeOf(err) != problem.EtcdUnavailable {
			t.Error(err)
		}
		want := func(what string, slots int, held ...string) int64 {
			t.Helper()
			synctest.Wait()
			space, are, revision, err := f.Space([]string{"a", "b", "w"})
			if err != nil || free(space, "db") != slots || len(are) != len(held) {
				t.Errorf("%s: %v, %v are held; want %d free, %v", what, err, are, slots, held)
			}
			for _, id := range held {
				if are[id] == nil {
					t.Errorf("%s: %s is not held", what, id)
				}
			}
			return revision
		}
		time.Sleep(time.Second)
		first := want("at first", 2, "a")
		<-f.Changed()
		b.w.hold("b", "two", db(1))
		at := b.write()
		if got := want("after a claim", 1, "a", "b"); got < at || got <= first {
			t.Errorf("revision %d, want %d", got, at)
		}
		<-f.Changed()
		ref := b.w.waits("w", "two", db(1))
		b.write()
		want("after a demand", 0, "a", "b")
		b.w.passed("two")
		b.write()
		want("while its owner is passed", 1, "a", "b")
		ref.Created = 0
		b.b.Do(func(e *storetest.Etcd) {
			for kv := range e.All(b.w.keys.DemandsAll("db")) {
				ref.Created = kv.CreateRevision
			}
		})
		b.w.offers("two", 0, ref)
		b.write()
		want("with an offer", 0, "a", "b")

		b.b.Down()
		time.Sleep(5 * time.Second)
		if _, held, _, err := f.Space([]string{"a"}); problem.CodeOf(err) != problem.EtcdUnavailable || held["a"] == nil {
			t.Errorf("while etcd is silent: %v, %v", held, err)
		}
		b.b.Up()
		time.Sleep(10 * time.Second)
		want("afterwards", 0, "a", "b")
	})
}

// A snapshot replaces all that was known.
func TestASnapshotReplacesWhatWasKnown(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		before, after := newWorld(seed).run(60), newWorld(seed+1).run(60)
		f := NewFollower(nil, before.keys.Keys, hclog.NewNullLogger())
		for _, w := range []*world{before, after} {
			m := store.FeedMessage{Revision: w.rev, Snapshot: &store.Snapshot{Revision: w.rev}}
			for _, kv := range w.kvs {
				m.Snapshot.KVs = append(m.Snapshot.KVs, kv)
			}
			f.take(m)
		}
		if diff := cmp.Diff(show(after.state()), show(f.state)); diff != "" {
			t.Fatalf("seed %d:\n%s", seed, diff)
		}
	}
}

// A follower that has seen everything end knows of nothing.
func TestAFollowerForgetsWhatHasEnded(t *testing.T) {
	w := newByHand(t)
	f := NewFollower(nil, w.keys.Keys, hclog.NewNullLogger())
	w.follows = f.state
	w.spec("db", 9)
	for range 100 {
		w.hold("a", "one", db(1))
		w.waits("w", "two", db(1))
		w.release()
		w.endDemands(w.anyDemands())
	}
	if s := f.state; len(s.claims)+len(s.demands) > 0 || len(s.pools["db"].slots) > 0 || len(s.leases) > 0 {
		t.Errorf("%+v", s)
	}
	if p := f.state.Pools(); len(p) != 1 || p[0].Claimed != 0 || p[0].Spec.Limit != 9 {
		t.Errorf("%+v", p)
	}
	var none wire.Role
	if f.state.role.Host != none.Host || f.state.Space().Why(db(10)) != "pool 'db' has a limit of 9, this claim needs 10" {
		t.Error(f.state.Space().Why(db(10)))
	}
}
