package step

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// MaxWhich bounds what one retry can name: its event tells of all of it.
	MaxWhich = 100
	// retryPuts is how many instances one write requests again. Each takes a compare and
	// two operations, of which etcd takes 128.
	retryPuts = 50
	// retryTimeout bounds one read or write of a retry.
	retryTimeout = 2 * time.Second
)

// Retried is what has become of a run of which something was to be tried again.
type Retried struct {
	Run *run.Run
	// Queued tells that the run was put into the queue once more.
	Queued bool
	// Requested is how many instances that were named are requested again.
	Requested int
}

// Retry has instances of a run that have failed or were canceled tried again, with as
// many retries as at first, and why is told with it. Without a name that is all that has
// not succeeded, of a run that has ended; such a run is put into the queue once more. A
// run that has not ended is returned as it is, since that may be an answer that was lost.
//
// With names it is those instances. What else has failed stays so. A run that has ended
// is queued once more, and with those go all that have not ended by themselves: that
// were never begun, or were stopped because the run had ended. A run that has not ended
// goes on meanwhile. Instances that have not ended are left as they are.
//
// Refused are a run or instances that have succeeded (RunEnded, StepEnded), a run of
// which something is being stopped still (RunNotEnded), and names that would come to
// nothing: because of something else that has failed the run would fail at once, or they
// would wait for it for ever (StepEnded).
func (s Store) Retry(ctx context.Context, runs run.Store, id, why string, which ...Which) (*Retried, error) {
	switch {
	case len(which) > MaxWhich:
		return nil, problem.Field("steps", "%d are too many: allowed are %d", len(which), MaxWhich)
	case len(why) > run.MaxWhy:
		return nil, problem.Field("reason", "it is %d bytes long: allowed are %d", len(why), run.MaxWhy)
	}
	t := newRetrial(why, which)
	return store.Change(ctx, "not all was requested again: try again", func(context.Context) (*Retried, error) {
		// To look at a large run and to change it takes longer than one try may: every
		// read and write of it has a bound of its own.
		done, err := s.retry(ctx, runs, id, t)
		if p := (*problem.Error)(nil); errors.As(err, &p) && p.Code != problem.EtcdUnavailable {
			err = store.Stop(err)
		}
		return done, err
	})
}

// retry looks at a run, and does what there is to do about it.
func (s Store) retry(ctx context.Context, runs run.Store, id string, t *retrial) (*Retried, error) {
	try, cancel := context.WithTimeout(ctx, retryTimeout)
	defer cancel()
	v, err := s.view(try, id)
	if err != nil {
		return nil, err
	}
	all, err := s.withState(ctx, &v)
	if err != nil {
		return nil, err
	}
	next, err := t.decide(&v, all)
	if err != nil {
		return nil, err
	}
	for some := range slices.Chunk(next.instances, retryPuts) {
		if err := s.request(ctx, v.run, some, t); err != nil {
			return nil, err
		}
	}
	if next.queue {
		r, err := runs.Retry(ctx, id, t.why, v.run.Revision)
		if err != nil {
			return nil, store.Stop(err)
		}
		v.run = r
	}
	return &Retried{Run: v.run, Queued: t.ended != 0, Requested: len(t.seen)}, nil
}

// withState reads the instances of a run that have a state.
func (s Store) withState(ctx context.Context, v *view) ([]*Instance, error) {
	if v.graph == nil {
		return nil, nil
	}
	read, err := store.ReadAll(ctx, s.Backend, s.Keys.Steps(v.run.ID))
	if err != nil {
		return nil, store.Problem(unread, err)
	}
	all := make([]*Instance, len(read.KVs))
	for n, kv := range read.KVs {
		if all[n], err = Decode(s.Keys, kv); err != nil {
			return nil, store.Problem(unread, err)
		}
	}
	return all, nil
}

// request has some instances that have ended requested again, if they and their run are
// as they were. The record of a run that goes on is put once more: an end of it that was
// decided on while they had failed must not come after.
func (s Store) request(ctx context.Context, r *run.Run, some []*Instance, t *retrial) error {
	ctx, cancel := context.WithTimeout(ctx, retryTimeout)
	defer cancel()
	cmps := []*pb.Compare{store.ModEquals(s.Keys.Run(r.ID), r.Revision)}
	var ops []*pb.RequestOp
	for _, i := range some {
		cmps = append(cmps, store.ModEquals(s.Keys.Step(i.StepID), i.Revision))
		ops = append(ops,
			store.Put(s.Keys.Step(i.StepID), i.request().Encode(), 0),
			store.Delete(s.Keys.CanceledStep(i.StepID))) // of an attempt before
	}
	goesOn := !r.Status.Ended()
	if goesOn {
		ops = append(ops, store.Put(s.Keys.Run(r.ID), r.Encode(), 0))
	}
	tells := !t.told && len(t.which) > 0
	if tells {
		op, err := s.Journal.Op(ctx, r.ID, t.event(time.Now()))
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	rev, err := store.Commit(ctx, s.Backend, cmps, ops...)
	if err != nil {
		s.suspect(err)
		return err
	}
	t.told = t.told || tells
	if goesOn {
		r.Revision = rev
	}
	return nil
}

// event tells who has asked for what to be tried again, and why.
func (t *retrial) event(now time.Time) run.Event {
	names := make([]string, len(t.which))
	for n, w := range t.which {
		names[n] = w.String()
	}
	return run.Event{Type: run.StepRetried, At: now, Reason: t.why, Metadata: map[string]string{
		"step": strings.Join(names, ", "), "instances": strconv.Itoa(len(t.seen)),
	}}
}
