package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// restored replaces etcd by one that was restored from a snapshot, whose leases have numbers that were not used before.
func (r *rig) restored(s *storetest.Saved, cluster uint64, bump int64, all ...*instance) {
	r.Helper()
	for _, i := range all {
		i.by.Down()
	}
	time.Sleep(3 * time.Second)
	e := storetest.New(storetest.Options{ClusterID: cluster})
	for range 1000 {
		_, _, err := e.Grant(time.Minute)
		r.must(nil, err)
	}
	e.Restore(s, s.Revision()-e.Revision()+bump)
	r.root.Restore(e)
	for _, i := range all {
		i.by.Up()
	}
	for range 3 { // the first answer to the client of the test says that etcd was restored
		_, _ = store.ReadAll(r.Context(), r.root, r.keys.Pools())
	}
	time.Sleep(30 * time.Second)
}

func (r *rig) save() (s *storetest.Saved) {
	r.root.Do(func(e *storetest.Etcd) { s = e.Save() })
	return s
}

// Claims that a restore has forgotten are lost, slots that it has brought back are freed, and what waits goes on waiting.
func TestRestoredFromASnapshot(t *testing.T) {
	for name, how := range map[string]struct {
		cluster uint64
		bump    int64
	}{"earlier": {1, 0}, "bumped": {1, 1_000_000}, "another cluster": {2, 1_000_000}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 4, func(r *rig) {
				one, two := r.start("one"), r.start("two")
				kept, ended := one.take("kept", 1), one.take("ended", 1)
				s := r.save()
				for range 3000 { // revisions that are far from those that follow
					r.must(store.Commit(r.Context(), r.root, nil, store.Put("/other", nil, 0)))
				}
				one.release(ended)
				gone := one.ask("gone", 4) // it dispatches
				busy := one.take("busy", 3)
				turn := two.ask("turn", 2)
				one.release(busy)
				two.release(turn.got())
				lost := one.take("lost", 3)
				waits := two.ask("waits", 2)
				time.Sleep(time.Second)
				r.restored(s, how.cluster, how.bump, one, two)
				r.isLost(lost)
				if how.cluster == 1 {
					r.isHeld(kept)
				} else {
					r.isLost(kept)
				}
				got := waits.got()
				one.release(lost, kept)
				two.release(got)
				one.release(gone.got())
				for _, of := range [][2]*instance{{one, two}, {two, one}} { // one of them dispatches, and one has only its watch
					all := of[0].take("all", 4)
					waits = of[1].ask("waits-too", 2)
					time.Sleep(10*time.Second + 300*time.Millisecond)
					begun := time.Now()
					of[0].release(all)
					of[1].release(waits.got())
					if d := time.Since(begun); d > 10*time.Millisecond {
						r.Errorf("it is granted after %v", d)
					}
				}
				if busy, err := one.Restoring(r.Context()); busy || err != nil {
					r.Errorf("it is still busy: %v", err)
				}
				time.Sleep(6 * time.Minute) // leases of the snapshot end
				two.release(two.take("whole", 4))
				r.nothingLeft()
			})
		})
	}
}

// What is remembered of pools does not count after etcd has not answered for 4 s.
func TestMemoryEndsWithoutAnswers(t *testing.T) {
	inBubble(t, 4, func(r *rig) {
		one := r.start("one")
		one.release(one.take("a", 1))
		var count atomic.Int64
		one.by.Inject(func(c storetest.Call) (f storetest.Fault) {
			if c.Op == storetest.OpTxn && len(c.Txn.Compare) == 0 {
				count.Add(1)
			}
			return f
		})
		one.release(one.take("b", 1))
		if n := count.Load(); n > 0 {
			r.Errorf("%d reads for a claim of a pool that is known", n)
		}
		time.Sleep(5 * time.Second)
		count.Store(0)
		one.release(one.take("c", 1))
		if count.Load() == 0 {
			r.Error("what is remembered has counted for too long")
		}
	})
}
