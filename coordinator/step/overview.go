package step

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Overview is how the steps of a run stand, at one revision.
type Overview struct {
	Run *run.Run
	// Steps are in the order of the graph; none of a run without steps, or of one that
	// is still being stored.
	Steps    []Summary
	Revision int64
	// Bad are states that can't be read, which are in no count: each names its key.
	Bad []error
}

// Summary is how one step stands.
type Summary struct {
	Shape Shape
	// Needs are the names of the steps that must have succeeded before.
	Needs []string
	// Counts of its instances by status. One without a state is requested. Once the run
	// has ended, what has not ended counts as canceled.
	Counts map[Status]int
	// StartedAt is when the first of them was started, zero if none was.
	StartedAt time.Time
	// EndedAt is when the last of them has ended, zero while one has not.
	EndedAt time.Time
}

// view is a run with its graph at one revision. The graph is nil if there is none.
type view struct {
	run      *run.Run
	graph    *Graph
	revision int64
}

const unread = "the steps of the run could not be read"

// view reads a run and its graph. An unknown run is a RunNotFound problem.
func (s Store) view(ctx context.Context, id string) (v view, err error) {
	if err := run.ValidateID(id); err != nil {
		return view{}, err
	}
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Run(id))})
	switch {
	case err != nil:
		return view{}, store.Problem(unread, err)
	case len(resp.Kvs) == 0:
		return view{}, problem.New(problem.RunNotFound, "there is no run %q", id)
	}
	v.revision = resp.Header.Revision
	if v.run, err = run.Decode(s.Keys, resp.Kvs[0]); err != nil {
		return view{}, store.Problem(unread, err)
	}
	if v.run.Steps == 0 || v.run.Status == run.Storing {
		return v, nil
	}
	key := s.Keys.Graph(id)
	resp, err = s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key), Revision: v.revision})
	switch {
	case err != nil:
	case len(resp.Kvs) == 0:
		err = &store.CorruptError{Key: key, Reason: errors.New("it is gone, and nobody knows the steps of the run")}
	default:
		v.graph, err = DecodeGraph(key, resp.Kvs[0].Value)
	}
	if err != nil {
		return view{}, store.Problem(unread, err)
	}
	return v, nil
}

// step returns the number of one of the run's steps. If there is none of that name,
// that is a StepNotFound problem.
func (v *view) step(name string) (int, error) {
	if v.graph != nil && pool.ValidateName(name) == nil {
		if n := v.graph.Number(name); n >= 0 {
			return n, nil
		}
	}
	return -1, problem.New(problem.StepNotFound, "run %q has no step %q", v.run.ID, problem.Clip(name))
}

// shown is an instance as it is to be seen: once its run has ended, nothing more
// happens to one that has not, whatever its state says.
func (v *view) shown(i *Instance) *Instance {
	if v.run.Status.Ended() && !i.Status.Ended() {
		i.Status, i.EndedAt, i.Pause = Canceled, v.run.EndedAt, 0
	}
	return i
}

// statePage is how many states are read at a time.
const statePage = 1000

// states hands on what there is under a prefix from a key on, in its order and as it
// was at a revision, until take returns false.
func (s Store) states(ctx context.Context, prefix, from string, revision int64, take func(*mvccpb.KeyValue) bool) error {
	key := []byte(from)
	for {
		resp, err := s.Backend.Range(ctx, &pb.RangeRequest{
			Key: key, RangeEnd: store.RangeEnd(prefix), Limit: statePage, Revision: revision,
		})
		if err != nil {
			return store.Problem(unread, err)
		}
		for _, kv := range resp.Kvs {
			if !take(kv) {
				return nil
			}
		}
		if !resp.More {
			return nil
		}
		key = append(resp.Kvs[len(resp.Kvs)-1].Key, 0)
	}
}

// Overview tells how the steps of a run stand. An unknown run is a RunNotFound
// problem.
func (s Store) Overview(ctx context.Context, id string) (*Overview, error) {
	v, err := s.view(ctx, id)
	if err != nil {
		return nil, err
	}
	o := &Overview{Run: v.run, Revision: v.revision}
	if v.graph == nil {
		return o, nil
	}
	t := newTally(&v)
	prefix := s.Keys.Steps(id)
	err = s.states(ctx, prefix, prefix, v.revision, func(kv *mvccpb.KeyValue) bool {
		i, err := Decode(s.Keys, kv)
		if err == nil {
			err = t.add(string(kv.Key), v.shown(i))
		} else {
			t.lose(s.Keys, kv)
		}
		if err != nil {
			o.Bad = append(o.Bad, err)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	o.Steps = t.summaries()
	return o, nil
}
