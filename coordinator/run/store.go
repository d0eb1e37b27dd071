package run

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Store reads and changes the records of runs. Its errors are problems.
type Store struct {
	Backend store.Backend
	Keys    store.Keys
	// Journal takes the events of what is changed.
	Journal *Journal
}

// Get returns a run. An unknown one is a RunNotFound problem.
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

// read returns a run, nil if there is none.
func (s Store) read(ctx context.Context, id string) (*Run, error) {
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Run(id))})
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	return Decode(s.Keys, resp.Kvs[0])
}

// stopAtCorrupt ends a change that meets a value that can't be read: that does not
// mend by itself.
func stopAtCorrupt(what string, err error) error {
	if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
		return store.Stop(store.Problem(what, err))
	}
	return err
}
