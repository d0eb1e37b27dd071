package enginetest

import (
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// tasking has that slots of pools of tasks, which workers claim and release all the time, are free once they were
// released, for all hosts and in all respects.
var tasking = []behavior{
	{"slots of a task that were released are free for all hosts immediately", taskFree, everywhere},
	{"a gated run gets the slots of a task that were released on another host", taskGated, everywhere},
	{"an id is free on all hosts as soon as its claim of a task is released", taskID, everywhere},
	{"a late claim of a lower priority never passes one that waits for a task", taskOrder, everywhere},
	{"slots of a task are not granted on a lease that etcd has ended", taskLease, standIn},
	{"slots of a task that were freed by force in a full etcd are not granted twice", taskForce, standIn},
	{"a claim that was released is not held again after a restart", notHeldAgain, standIn},
	{"a pool that is used is not deleted as unused", unusedPool, everywhere},
}

// task is the name of the pool of the task in these behaviors.
const task = pool.TaskPrefix + "x"

// slotsOfTask is so many slots of the task.
func slotsOfTask(n int) map[string]int { return map[string]int{task: n} }

// declare creates the pool of the task.
func (w world) declare(limit int) {
	w.Helper()
	compare, create, err := w.Declare(w.ctx(), task, limit)
	w.must(err)
	_, err = store.Commit(w.ctx(), w.etcd.any, []*pb.Compare{compare}, create)
	w.must(err)
	w.caughtUp()
}

// twoOfTask has one host claim the task until its instance knows its pool well.
func twoOfTask(w world, limit int) (one, two *host) {
	w.declare(limit)
	one, two = w.host("one"), w.host("two")
	for i := range 5 {
		one.release(one.ask(fmt.Sprint("before", i), slotsOfTask(1)).got())
	}
	return one, two
}

func taskFree(w world) {
	one, two := twoOfTask(w, 1)
	for i := range 3 {
		one.release(one.take(fmt.Sprint("a", i), slotsOfTask(1)))
		two.release(two.take(fmt.Sprint("b", i), slotsOfTask(1)))
	}
}

func taskGated(w world) {
	one, two := twoOfTask(w, 3)
	for i := range 3 {
		one.release(one.take(fmt.Sprint("a", i), slotsOfTask(1)))
		record := w.key(fmt.Sprint("record", i))
		two.release(two.take(fmt.Sprint("b", i), slotsOfTask(3), extra(record), func(r *pool.Request) { r.Bridge = true }))
	}
}

// taskID has a host use the slots of a claim that has ended for its next one.
func taskID(w world) {
	one, two := twoOfTask(w, 5)
	for i := range 3 {
		id := fmt.Sprint("a", i)
		one.release(one.take(id, slotsOfTask(1)))
		next := one.take(fmt.Sprint("b", i), slotsOfTask(1))
		two.release(two.take(id, slotsOfTask(1)))
		w.caughtUp()
		_, err := w.read().Why(id)
		w.problem(err, problem.ClaimNotFound)
		one.release(next)
	}
}

func taskOrder(w world) {
	one, two := twoOfTask(w, 1)
	last := one.take("held", slotsOfTask(1))
	for i := range 3 {
		high := two.queued(fmt.Sprint("high", i), slotsOfTask(1), priority(10))
		low := one.queued(fmt.Sprint("low", i), slotsOfTask(1))
		one.release(last)
		c := high.got()
		low.still()
		two.release(c)
		last = low.got()
	}
	one.release(last)
}

func taskLease(w world) {
	one, _ := twoOfTask(w, 5)
	a := one.take("a", slotsOfTask(1))
	one.release(a)
	w.must(w.etcd.any.Revoke(w.ctx(), a.Lease))
	for i := range 3 {
		c := one.ask(fmt.Sprint("c", i), slotsOfTask(1), wait(30*time.Second)).got()
		if y, err := w.read().Why(c.ID); err != nil || y.Held.Fence != c.Fence {
			w.Errorf("etcd does not show it: %+v, %v", y, err)
		}
		w.held(c)
		one.release(c)
	}
}

func taskForce(w world) {
	one, two := twoOfTask(w, 1)
	a := one.take("a", slotsOfTask(1))
	w.full(true)
	_, err := w.Revoke(w.ctx(), "a", true)
	w.must(err)
	one.release(a)
	w.full(false)
	w.pass(15 * time.Second) // until it is known that etcd has space
	c := two.ask("c", slotsOfTask(1)).got()
	for i := range 3 {
		one.refuses(problem.NoCapacity, fmt.Sprint("b", i), slotsOfTask(1))
	}
	two.release(c)
}

func notHeldAgain(w world) {
	one, _ := twoOfTask(w, 3)
	stays := one.take("stays", slotsOfTask(1))
	one.release(one.take("gone", slotsOfTask(1)))
	one.kill()
	next := w.host("one")
	claims, err := next.Adopted(w.ctx())
	w.must(err)
	if len(claims) != 1 || claims[0].ID != "stays" {
		w.Errorf("taken over are %v", claims)
	}
	w.held(stays)
	next.release(claims...)
	w.pass(5 * time.Second)
	next.release(next.take("all", slotsOfTask(3)))
}

func unusedPool(w world) {
	w.pool("db", 1)
	one := w.host("one")
	deleted := func() bool {
		d, err := w.read().Pool("db")
		w.must(err)
		ifs, then := w.Unused("db", d.SpecRevision)
		_, err = store.Commit(w.ctx(), w.etcd.any, ifs, then...)
		if err != nil {
			w.errIs(err, store.ErrChanged)
		}
		return err == nil
	}
	a := one.take("a", slots(1))
	if deleted() {
		w.Error("it was deleted while its slots were held")
	}
	b := one.queued("b", slots(1))
	one.release(a)
	one.release(b.got())
	w.eventually("it is deleted when it is not in use", deleted)
	w.caughtUp()
	one.refuses(problem.PoolNotFound, "c", slots(1))
}
