package step

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Store reads and changes step instances. Its errors are problems, unless it says
// otherwise.
type Store struct {
	Backend store.Backend
	Keys    store.Keys
	// Journal takes the events of what is changed.
	Journal *run.Journal
	// Group has changes that come together share transactions.
	Group *store.Group
}

// eventsOf is how many instances of a run have events: two or three each, so that a run
// keeps to some 500 however many instances it has.
const eventsOf = 150

// hasEvents tells whether the instance of that number, among all of its run, has events.
func hasEvents(number int) bool { return number < eventsOf }

// IsTold tells whether an event of the instance of that number is written: of the first of
// a run all are, of the others it is told that they have failed for good, as long as a
// journal has room for that.
func IsTold(j *run.Journal, id string, number int, e run.Event) bool {
	return hasEvents(number) || e.Type == run.StepFailed && j.Spare(id)
}

// Get returns an instance. An unknown one is a StepNotFound problem.
func (s Store) Get(ctx context.Context, id store.StepID) (*Instance, error) {
	i, err := s.read(ctx, id)
	if err != nil {
		return nil, store.Problem("the step instance could not be read", err)
	}
	if i.Revision > 0 {
		return i, nil
	}
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Work(id)), KeysOnly: true})
	switch {
	case err != nil:
		return nil, store.Problem("the step instance could not be read", err)
	case len(resp.Kvs) == 0:
		return nil, notFound(id)
	}
	return i, nil
}

func notFound(id store.StepID) error {
	return problem.New(problem.StepNotFound, "run %q has no step instance %s", id.Run, id.Text())
}

// read returns an instance as its record says; a requested one if it has none.
func (s Store) read(ctx context.Context, id store.StepID) (*Instance, error) {
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Step(id))})
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return &Instance{StepID: id, Record: Record{Status: Requested}}, nil
	}
	return Decode(s.Keys, resp.Kvs[0])
}

// work reads what an instance is to do.
func (s Store) work(key string, resp *pb.RangeResponse) (Work, error) {
	if len(resp.Kvs) == 0 {
		return Work{}, &store.CorruptError{Key: key, Reason: errors.New("it is gone, and nobody knows what the instance is to do")}
	}
	return DecodeWork(key, resp.Kvs[0].Value)
}

// Work reads what an instance is to do.
func (s Store) Work(ctx context.Context, id store.StepID) (Work, error) {
	key := s.Keys.Work(id)
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		return Work{}, store.Problem("the step instance could not be read", err)
	}
	w, err := s.work(key, resp)
	if err != nil {
		return Work{}, store.Problem("the step instance can't be run", err)
	}
	return w, nil
}

// logged appends the write of an event, if it is told.
func (s Store) logged(ctx context.Context, ops []*pb.RequestOp, id store.StepID, number int, e run.Event) ([]*pb.RequestOp, error) {
	if !IsTold(s.Journal, id.Run, number, e) {
		return ops, nil
	}
	op, err := s.Journal.Op(ctx, id.Run, e)
	if err != nil {
		return nil, err
	}
	return append(ops, op), nil
}
