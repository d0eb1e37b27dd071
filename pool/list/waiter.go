package list

import (
	"cmp"
	"math"
	"slices"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// waiter is a demand that waits.
type waiter struct {
	*wire.Demand
	by    instance
	stamp wire.Stamp
	ref   wire.DemandRef // zero if etcd does not show it
	lease store.LeaseID  // 0 if etcd does not show it
}

func (w *waiter) rank() *wire.Rank {
	return &wire.Rank{Priority: w.Priority, Stamp: w.stamp, Claim: w.Claim, Demand: w.ref}
}

// compare ranks waiters as the dispatcher does.
func (w *waiter) compare(o *waiter) int {
	return cmp.Or(w.rank().Compare(o.rank()), cmp.Compare(w.by.host, o.by.host), cmp.Compare(w.by.name, o.by.name))
}

// status returns what is shown of a waiter, but for its place in the wait queue.
func (w *waiter) status() pool.WaiterStatus {
	return pool.WaiterStatus{
		Claim: w.Claim, Holder: w.Holder, Pools: w.Pools, Priority: w.Priority, Since: w.Since, Reserve: w.Reserve, Lease: w.lease,
	}
}

// allWaiting returns the demands of all instances that count and that have not ended, in order. Those that are for the same
// are one.
func (s *State) allWaiting() (all []*waiter) {
	for _, d := range s.demands {
		if len(d.List) == 0 || len(s.missing(d)) > 0 {
			continue
		}
		for i := range d.List {
			w := &waiter{
				Demand: &d.List[i], by: instance{d.Host, d.Instance}, stamp: d.List[i].Stamped(d.created), lease: d.lease,
				ref: d.Ref(d.created, d.List[i].Index),
			}
			if s.ended[w.ref] == 0 {
				all = append(all, w)
			}
		}
	}
	return inOrder(all)
}

// work is what a claim is for, if others can be for the same.
type work struct{ run, step, bind string }

// work returns what a waiter is for, false if no other can be for the same.
func (w *waiter) work() (of work, sole bool) {
	return work{w.Holder.Run, w.Holder.Step, w.Holder.Bind}, w.Sole
}

// same reports whether two waiters are one in the queue.
func (w *waiter) same(o *waiter) bool {
	of, sole := w.work()
	if other, also := o.work(); sole && also && of == other {
		return true
	}
	return w.Claim == o.Claim && w.by == o.by
}

// inOrder puts waiters in their order, and leaves of those that are for the same only the first one.
func inOrder(all []*waiter) []*waiter {
	slices.SortFunc(all, (*waiter).compare)
	seen := map[work]bool{}
	return slices.DeleteFunc(all, func(w *waiter) bool {
		of, sole := w.work()
		if !sole {
			return false
		}
		again := seen[of]
		seen[of] = true
		return again
	})
}

// Own is what an instance knows of its claims that wait, beyond what etcd shows.
type Own struct {
	Host, Instance string
	// Waiting are all of its demands, in the order in which they came: those that are not in etcd yet, too.
	Waiting []OwnDemand
	// Trouble is why no lease could be made for them, nil if one could.
	Trouble error
	// Revision is one that shows what the instance knows of its claims that hold slots.
	Revision int64
}

// OwnDemand is a demand as its owner knows it.
type OwnDemand struct {
	wire.Demand
	// Created is the revision that has created its key, 0 while there is none.
	Created int64
}

// name returns the name of the instance, empty if there is none.
func (o Own) name() instance { return instance{o.Host, o.Instance} }

// is reports whether a claim belongs to the instance.
func (o Own) is(by instance) bool { return by != (instance{}) && by == o.name() }

// demand returns the demand of the instance that is named by HOST/INSTANCE/ID, nil if there is none.
func (o Own) demand(named string) *OwnDemand {
	by, id := split(named)
	if !o.is(by) {
		return nil
	}
	for i := range o.Waiting {
		if o.Waiting[i].Claim == id {
			return &o.Waiting[i]
		}
	}
	return nil
}

// pool returns a pool of that demand, empty if there is none.
func (o Own) pool(named string) string {
	d := o.demand(named)
	if d == nil {
		return allPools
	}
	return sortedNames(d.Pools)[0]
}

// waiters returns the demands of the instance that etcd has not granted, which were asked for before etcd was read.
func (o Own) waiters(s *State) (all []*waiter) {
	for i := range o.Waiting {
		d := &o.Waiting[i]
		if s.heldBy(o.name(), d.Claim) != nil {
			continue
		}
		w := &waiter{Demand: &d.Demand, by: o.name(), stamp: d.Stamped(d.Created)}
		if d.Stamp == nil && d.Created == 0 {
			w.stamp = wire.Stamp{Revision: math.MaxInt64, Index: i}
		}
		all = append(all, w)
	}
	return all
}

// waitQueue returns the wait queue: what etcd shows, and instead of that the demands of the instance that asks as it knows them,
// which may not be in etcd yet, or may be about to be deleted there.
func (s *State) waitQueue() []*waiter {
	o, inEtcd := s.own, s.waiting()
	if o.name() == (instance{}) {
		return inEtcd
	}
	all, own := make([]*waiter, 0, len(inEtcd)+len(o.Waiting)), map[string]*waiter{}
	for _, w := range inEtcd {
		if w.by == o.name() {
			own[w.Claim] = w
		} else {
			all = append(all, w)
		}
	}
	for _, w := range o.waiters(s) {
		if shown := own[w.Claim]; shown != nil {
			w.lease, w.ref = shown.lease, shown.ref
		}
		all = append(all, w)
	}
	return inOrder(all)
}
