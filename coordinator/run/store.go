package run

import (
	"context"
	"errors"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Store reads and changes the records of runs. Its errors are problems.
type Store struct {
	Backend store.Backend
	Keys    store.Keys
	// Journal writes the events of changes.
	Journal *Journal
	// Quota bounds what an identity can submit; nil is no bound.
	Quota *Quota
}

// Get returns a run, or a RunNotFound problem.
func (s Store) Get(ctx context.Context, id string) (*Run, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	r, err := s.read(ctx, id)
	switch {
	case err != nil:
		return nil, store.Problem("the run could not be read", err)
	case r == nil:
		return nil, notFound(id)
	}
	return r, nil
}

func notFound(id string) error {
	return problem.New(problem.RunNotFound, "there is no run %q", id)
}

// read returns a run; nil if it does not exist.
func (s Store) read(ctx context.Context, id string) (*Run, error) {
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Run(id))})
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	return Decode(s.Keys, resp.Kvs[0])
}

// stopAtCorrupt ends the attempts of a change if a value cannot be read.
func stopAtCorrupt(what string, err error) error {
	if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
		return store.Stop(store.Problem(what, err))
	}
	return err
}

// All holds all runs at one revision.
type All struct {
	// Runs are ordered by id.
	Runs []*Run
	// Bad are the records that cannot be read: each names its key.
	Bad      []error
	Revision int64
}

// All returns all runs.
func (s Store) All(ctx context.Context) (all All, err error) {
	all.Revision, err = s.Each(ctx, "", func(r *Run, _ int, err error) bool {
		if err != nil {
			all.Bad = append(all.Bad, err)
		} else {
			all.Runs = append(all.Runs, r)
		}
		return true
	})
	return all, err
}

// firstRuns and runsPage are how many records of runs are read at once, at first and at most: one
// can have 32 KiB.
const firstRuns, runsPage = 250, 1000

// Each calls take with the runs whose id follows an id, ordered by id and at one revision,
// until it returns false: with a run and the size of its record in bytes, or with why a record
// cannot be read. An empty id is before all. It returns the revision.
func (s Store) Each(ctx context.Context, after string, take func(r *Run, size int, err error) bool) (revision int64, err error) {
	pages := store.Pages{Prefix: s.Keys.Runs(), First: firstRuns, Most: runsPage}
	if after != "" {
		pages.From = s.Keys.Run(after) + "\x00"
	}
	revision, err = pages.Each(ctx, s.Backend, func(page store.Page) bool {
		for _, kv := range page.KVs {
			r, err := Decode(s.Keys, kv)
			if !take(r, store.SizeOf(kv), err) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return 0, store.Problem("the runs could not be read", err)
	}
	return revision, nil
}

// Queue returns the queued runs in the order of the queue.
func (a All) Queue() []*Run {
	queue := a.With(Queued)
	slices.SortFunc(queue, (*Run).Compare)
	return queue
}

// With returns the runs with one of the statuses, or all runs, ordered by id.
func (a All) With(statuses ...Status) []*Run {
	var some []*Run
	for _, r := range a.Runs {
		if len(statuses) == 0 || slices.Contains(statuses, r.Status) {
			some = append(some, r)
		}
	}
	return some
}

// Get returns a run; nil if it does not exist.
func (a All) Get(id string) *Run {
	i, ok := slices.BinarySearchFunc(a.Runs, id, func(r *Run, id string) int { return strings.Compare(r.ID, id) })
	if !ok {
		return nil
	}
	return a.Runs[i]
}
