package enginetest

import (
	"fmt"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
)

// restoring has what happens when etcd is restored from a snapshot.
var restoring = []behavior{
	{"claims that a restore has forgotten are lost and their slots can be claimed", forgotten(earlier), standIn},
	{"claims that a restore with a bump has forgotten are lost and their slots can be claimed", forgotten(bumped), standIn},
	{"claims of a cluster that another one has replaced are lost", forgotten(replaced), standIn},
	{"slots and ids that a restore has brought back and nobody holds are freed", broughtBack(earlier), standIn},
	{"slots and ids that a restore with a bump has brought back and nobody holds are freed", broughtBack(bumped), standIn},
	{"a waiting claim that a restore has forgotten waits on and is granted", waiterForgotten(earlier), standIn},
	{"a waiting claim that a restore with a bump has forgotten waits on and is granted", waiterForgotten(bumped), standIn},
	{"a waiting claim that a restore has brought back and nobody makes stops no other", waiterBroughtBack(earlier), standIn},
	{"a waiting claim that a restore with a bump has brought back and nobody makes stops no other", waiterBroughtBack(bumped), standIn},
	{"a step whose publication is later than any revision after a restore waits and is granted", sinceOfLater, standIn},
	{"a claim is not granted on a lease that was lost before a restore has brought it back", leaseBroughtBack, standIn},
	{"lists are of the history after a restore", listsAfter, standIn},
	{"a pool that was created after the snapshot is unknown after the restore", poolForgotten, standIn},
	{"a fence grows across a restore with a bump", fenceAfter, standIn},
}

// restore is a way in which etcd is restored: as which cluster, and how much later its revisions are.
type restore struct {
	cluster uint64
	bump    int64
}

var (
	earlier  = restore{1, 0}         // to the revision of the snapshot
	bumped   = restore{1, 1_000_000} // with revisions that were not used before
	replaced = restore{2, 1_000_000} // as another cluster
)

// etcd returns the etcd that was restored. Its leases have numbers that were not used before.
func (r restore) etcd(w world, s *storetest.Saved) *storetest.Etcd {
	w.Helper()
	e := storetest.New(storetest.Options{ClusterID: r.cluster})
	for range 1000 {
		_, _, err := e.Grant(time.Minute)
		w.must(err)
	}
	e.Restore(s, s.Revision()-e.Revision()+r.bump)
	return e
}

// save takes a snapshot.
func (w world) save() (s *storetest.Saved) {
	w.etcd.root.Do(func(e *storetest.Etcd) { s = e.Save() })
	return s
}

// restored restores etcd while no client reaches it, as an operator does, and lets all instances find out.
func (w world) restored(how restore, s *storetest.Saved) {
	w.Helper()
	downs(*w.live...)
	w.pass(3 * time.Second)
	*w.damaged = true
	w.etcd.root.Restore(how.etcd(w, s))
	ups(*w.live...)
	w.pass(30 * time.Second)
}

// afterRestore waits until the clients of the test itself know of the restore, and no instance is busy with it.
func (w world) afterRestore() {
	w.Helper()
	for range 3 { // the first answer says that etcd was restored
		_, _ = list.Read(w.ctx(), w.etcd.any, w.keys)
	}
	for _, h := range *w.live {
		w.eventually("it has read everything", func() bool {
			busy, err := h.Restoring(w.ctx())
			return err == nil && !busy
		})
	}
}

func forgotten(how restore) func(w world) {
	return func(w world) {
		w.pool("db", 3)
		one, two := w.host("one"), w.host("two")
		two.release(two.take("first", slots(1)))
		w.pass(time.Second)
		saved := w.save()
		a := one.take("a", slots(2))
		w.pass(time.Second)
		w.restored(how, saved)
		w.afterRestore()
		w.pass(5 * time.Minute) // at the latest with its lease
		w.ended(a, problem.ClaimLost)
		one.release(a)
		two.release(two.ask("b", slots(3), wait(10*time.Minute)).got())
		w.empty()
	}
}

func broughtBack(how restore) func(w world) {
	return func(w world) {
		w.pool("db", 3)
		one, two := w.host("one"), w.host("two")
		stays := one.take("stays", slots(1))
		a := one.take("a", slots(2), chosen)
		w.pass(time.Second)
		saved := w.save()
		one.release(a)
		w.pass(time.Second)
		w.restored(how, saved)
		w.afterRestore()
		w.pass(3 * time.Minute)
		if stays.Context().Err() == nil { // it was held before and after
			w.wantUsed("db", 1)
		} else {
			one.release(stays)
		}
		two.release(two.ask("a", slots(2), chosen, wait(10*time.Minute)).got())
	}
}

func waiterForgotten(how restore) func(w world) {
	return func(w world) {
		w.pool("db", 1)
		one, two := w.host("one"), w.host("two")
		held := one.take("held", slots(1))
		w.pass(time.Second)
		saved := w.save()
		a := two.queued("a", slots(1))
		w.pass(time.Second)
		w.restored(how, saved)
		w.afterRestore()
		w.pass(10 * time.Second)
		a.still()
		one.release(held)
		c := a.got()
		w.held(c)
		two.release(c)
		w.empty()
	}
}

func waiterBroughtBack(how restore) func(w world) {
	return func(w world) {
		w.pool("db", 1)
		w.pool("api", 1)
		one, two := w.host("one"), w.host("two")
		held, other := one.take("held", slots(1)), one.take("other", map[string]int{"api": 1})
		waits := two.queued("waits", map[string]int{"api": 1})
		a := two.queued("a", map[string]int{"api": 1, "db": 1})
		w.pass(time.Second)
		saved := w.save()
		a.cancel()
		<-a.done
		w.pass(time.Second)
		w.restored(how, saved)
		w.afterRestore()
		w.pass(10 * time.Second)
		waits.still()
		one.release(held, other)
		two.release(waits.got())
		one.release(one.ask("b", map[string]int{"api": 1, "db": 1}, wait(time.Minute)).got())
		w.empty()
	}
}

func sinceOfLater(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	w.pass(time.Second)
	saved := w.save()
	var since int64
	for i := range 50 {
		since = w.txn(store.Put(w.key(fmt.Sprint(i)), nil, 0))
	}
	w.restored(earlier, saved)
	w.afterRestore()
	held := one.ask("held", slots(1)).got()
	a := two.ask("a", slots(1), step(w, since))
	w.eventually("it waits", func() bool { return len(w.queue()) == 1 })
	one.release(held)
	two.release(a.got())
	w.empty()
}

func leaseBroughtBack(w world) {
	w.pool("db", 1)
	one := w.host("one")
	one.release(one.take("first", slots(1)))
	w.pass(time.Second)
	var saved *storetest.Saved
	one.by.Inject(func(c storetest.Call) storetest.Fault {
		if !putsTo("db")(c) {
			return storetest.Fault{}
		}
		one.by.Down() // it is carried out, and then etcd is away
		return storetest.Fault{LoseAnswer: true, Err: store.ErrUnavailable}
	})
	a := one.ask("a", slots(1), wait(2*time.Hour))
	w.pass(time.Second)
	saved = w.save()
	holders, _ := w.read().Claims()
	w.same("claims that were written", len(holders), 1)
	before := holders[0].Lease
	w.pass(30 * time.Minute) // the lease is lost here
	one.mend()
	w.restored(replaced, saved)
	w.afterRestore()
	c := a.got()
	if c.Lease == before && c.Err() == nil {
		w.Error("it is held on the lease that was lost")
	}
}

func listsAfter(w world) {
	w.pool("db", 9)
	one := w.host("one")
	w.pass(time.Second)
	saved := w.save()
	for i := range 5 {
		one.release(one.take(fmt.Sprint("a", i), slots(1)))
	}
	one.take("b", slots(1))
	w.restored(earlier, saved)
	w.afterRestore()
	w.pass(5 * time.Second)
	holders, _ := w.read().Claims()
	d, err := one.Pool(w.ctx(), "db")
	w.must(err)
	w.same("holders that are listed", len(d.Holders), len(holders))
	if d.Revision > w.read().Revision() {
		w.Errorf("the pool is of revision %d, etcd is at %d", d.Revision, w.read().Revision())
	}
}

func poolForgotten(w world) {
	w.pool("db", 9)
	one := w.host("one")
	w.pass(time.Second)
	saved := w.save()
	w.pool("new", 9)
	one.release(one.take("a", map[string]int{"new": 1}))
	w.restored(earlier, saved)
	w.afterRestore()
	w.pass(5 * time.Second)
	one.refuses(problem.PoolNotFound, "b", map[string]int{"new": 1})
	w.pass(3 * time.Second)
	if one.HasPool("new") {
		w.pass(2 * time.Second)
		if one.HasPool("new") {
			w.Error("the pool is said to be there")
		}
	}
	one.release(one.take("c", slots(9)))
}

func fenceAfter(w world) {
	w.pool("db", 1)
	one := w.host("one")
	w.pass(time.Second)
	saved := w.save()
	var last *pool.Claim
	for i := range 9 {
		last = one.take(fmt.Sprint("a", i), slots(1))
		one.release(last)
	}
	w.restored(bumped, saved)
	w.afterRestore()
	c := one.ask("b", slots(1)).got()
	if c.Fence <= last.Fence {
		w.Errorf("fence %d after %d", c.Fence, last.Fence)
	}
	one.release(c)
}
