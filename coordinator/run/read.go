package run

import (
	"context"
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/store"
)

// All are the records of all runs at one revision.
type All struct {
	// Runs by id.
	Runs []*Run
	// Bad are records that can't be read: each names its key.
	Bad      []error
	Revision int64
}

// All reads all runs.
func (s Store) All(ctx context.Context) (All, error) {
	snapshot, err := store.ReadAll(ctx, s.Backend, s.Keys.Runs())
	if err != nil {
		return All{}, store.Problem("the runs could not be read", err)
	}
	all := All{Revision: snapshot.Revision}
	for _, kv := range snapshot.KVs {
		r, err := Decode(s.Keys, kv)
		if err != nil {
			all.Bad = append(all.Bad, err)
			continue
		}
		all.Runs = append(all.Runs, r)
	}
	slices.SortFunc(all.Runs, func(a, b *Run) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// Queue returns the queued runs in the order in which they are looked at.
func (a All) Queue() []*Run {
	queue := a.With(Queued)
	slices.SortFunc(queue, (*Run).Compare)
	return queue
}

// With returns the runs of some statuses, all without any, by id.
func (a All) With(statuses ...Status) []*Run {
	var some []*Run
	for _, r := range a.Runs {
		if len(statuses) == 0 || slices.Contains(statuses, r.Status) {
			some = append(some, r)
		}
	}
	return some
}

// Get returns a run, nil if there is none.
func (a All) Get(id string) *Run {
	i, ok := slices.BinarySearchFunc(a.Runs, id, func(r *Run, id string) int { return strings.Compare(r.ID, id) })
	if !ok {
		return nil
	}
	return a.Runs[i]
}
