package e2e

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// RevisionBump is what a restore adds to the revision of its snapshot: far more than is
// written between the two.
const RevisionBump = 1_000_000_000

// SaveSnapshot writes a snapshot of etcd to a file, as etcdctl does.
func SaveSnapshot(ctx context.Context, etcd *clientv3.Client, path string) error {
	from, err := etcd.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// A restore of etcd takes its history back to the revision of a snapshot, and lets
// revisions go on from a larger one. What is judged after it is a history of its own: it
// begins with the keys that there are, which were judged when they were put.

// Restored returns the history that follows a restore, from the keys that there are at
// a revision. Fencing tokens go on growing from those before it.
func (h *History) Restored(rev int64, all []*mvccpb.KeyValue) *History {
	n := NewHistory(h.keys)
	n.ignored = h.ignored
	n.queue.useClock(h.queue.now)
	n.beginRevision()
	for _, kv := range all {
		n.event(&mvccpb.Event{Kv: kv})
	}
	n.rev = rev
	for id := range n.byClaim {
		n.checkClaim(id)
	}
	n.checkDemands()
	for key, rev := range h.revisions {
		n.revisions[key] = max(n.revisions[key], rev)
	}
	for name, p := range h.pools {
		n.pool(name).keepFences(p)
	}
	n.violations = nil
	return n
}

// keepFences has the fencing tokens of numbers go on from those of another history.
func (p *poolState) keepFences(before *poolState) {
	if more := len(before.numbers) - len(p.numbers); more > 0 {
		p.numbers = append(p.numbers, make([]numberState, more)...)
	}
	for i, x := range before.numbers {
		p.numbers[i].fence = max(p.numbers[i].fence, x.fence)
	}
}

// Replaced records that the cluster of the restore has another id than the one before. No process
// resumes the claims that were there then: until their leases end, their ids can be claimed again.
func (h *History) Replaced() { h.orphaned = h.rev }

// keysOf returns the keys of a claim. Those that were put before [History.Replaced] are of an
// earlier claim of the same id if there are later ones.
func (h *History) keysOf(id string) map[string]*slot {
	all := h.byClaim[id]
	later := maps.Clone(all)
	maps.DeleteFunc(later, func(_ string, s *slot) bool { return s.rev <= h.orphaned })
	if len(later) == 0 {
		return all
	}
	return later
}

// Restored returns the history that follows a restore, from the keys that there are.
func (h *RunHistory) Restored(all []*mvccpb.KeyValue) *RunHistory {
	n := NewRunHistory(h.keys)
	for _, kv := range inOrder(all) {
		n.Event(&mvccpb.Event{Kv: kv})
	}
	n.check()
	n.violations, n.Order = nil, nil
	clear(n.Admissions)
	return n
}

// Restored returns the history that follows a restore, from the keys that there are.
func (h *StepHistory) Restored(all []*mvccpb.KeyValue) *StepHistory {
	n := NewStepHistory(h.keys)
	graphs := func(kv *mvccpb.KeyValue) bool {
		rest, ok := strings.CutPrefix(string(kv.Key), h.keys.StepsAll())
		return ok && !strings.Contains(rest, "/")
	}
	for _, first := range []bool{true, false} {
		for _, kv := range inOrder(all) {
			if graphs(kv) == first {
				n.Event(&mvccpb.Event{Kv: kv})
			}
		}
	}
	n.judgeAll()
	for _, t := range n.turns {
		n.free(t) // its worker may have ended it, and then its slots are free before its record says so
	}
	n.violations = nil
	return n
}

// inOrder returns keys in the order in which they were put.
func inOrder(all []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	return slices.SortedStableFunc(slices.Values(all), func(a, b *mvccpb.KeyValue) int {
		return cmp.Compare(a.ModRevision, b.ModRevision)
	})
}

// Forget drops the holds, waits and gaps that have ended, and the take-overs, and returns how many holds those
// were. What a holder was granted must be judged before.
func (h *History) Forget() (ended int) {
	before := len(h.holds)
	h.idle.forget()
	h.queue.forget()
	h.holds = slices.DeleteFunc(h.holds, func(x *Hold) bool { return x.To != 0 })
	h.demands.forget()
	return before - len(h.holds)
}

// Forget drops the executions that have ended. They must have been judged before.
func (h *StepHistory) Forget() {
	h.turns = slices.DeleteFunc(h.turns, func(t *turn) bool { return t.to != 0 })
}
