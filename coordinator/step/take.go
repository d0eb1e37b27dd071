package step

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// Taken is an instance that an executor has, with its work.
type Taken struct {
	Instance
	Work Work
	// Ready is its publication.
	Ready Published
}

// workTimeout bounds the reading of the work of a taken instance.
const workTimeout = 3 * time.Second

// Policy returns the retries of the instance.
func (t *Taken) Policy() Policy { return Policy{t.Ready.Retries, t.Ready.Backoff} }

// activeValue is the value of the key of a living executor. The key names the instance.
var activeValue = store.Encode(store.Now)

// taking returns the transition of a published instance to a taken one, with its conditions:
// the publication is unchanged, and the run is not canceled.
func (s Store) taking(ctx context.Context, p *Published, by run.Executor) (*Taken, store.Extra, error) {
	id := p.ID()
	scheduled := Record{Status: Scheduled, Attempt: p.Attempt, ScheduledAt: p.ScheduledAt, Place: p.Place}
	t := &Taken{Instance: Instance{StepID: id, Record: scheduled}, Ready: *p}
	record := store.Put(s.Keys.Step(id), nil, 0)
	then := []*pb.RequestOp{record, store.Delete(p.Key(s.Keys))}
	if p.External { // its executor starts at once; a worker reports the start: see [Store.Started]
		var err error
		if then, err = s.logged(ctx, then, id, p.Number, t.Event(time.Now())); err != nil {
			return nil, store.Extra{}, err
		}
	}
	stamp := func(now time.Time) {
		t.Record = scheduled.take(by, now)
		record.GetRequestPut().Value = t.Encode()
		for _, event := range then[2:] {
			s.Journal.Stamp(event, t.Event(now))
		}
	}
	stamp(time.Now())
	return t, store.Extra{
		Stamp: stamp,
		If: []*pb.Compare{
			store.ModEquals(p.Key(s.Keys), p.Revision), store.ModEquals(s.Keys.Step(id), p.Revision),
			store.CreateEquals(s.Keys.Canceled(id.Run), 0),
		},
		Then:   then,
		Leased: []*pb.RequestOp{store.Put(s.Keys.ActiveStep(by.Host, id), activeValue, 0)},
	}, nil
}

// Take gives a published instance without slots to an executor, which lives as long as the
// lease. If another executor has taken it, or its run was canceled, that is a StepTaken
// problem. If etcd did not answer, the outcome is unknown. An instance that was taken is returned
// with an error if its work can't be read, or with a [*MismatchError]: it must not run then.
func (s Store) Take(ctx context.Context, p *Published, by run.Executor, lease store.LeaseID) (*Taken, error) {
	t, x, err := s.taking(ctx, p, by)
	if err != nil {
		return nil, store.Problem("the step instance was not taken", err)
	}
	active := x.Leased[0].GetRequestPut()
	ops := append(append(s.genuine(t.StepID), store.Put(string(active.Key), active.Value, lease)), x.Then...)
	made, err := s.Group.Commit(ctx, s.Backend, x.If, ops...)
	switch {
	case errors.Is(err, store.ErrChanged):
		return nil, taken(t.StepID)
	case err != nil:
		s.suspect(err)
		return nil, store.Problem("the step instance was not taken", err)
	}
	t.Revision = made.Revision
	return t, s.verify(t, made.Responses)
}

// Started writes when the command of an attempt was started, unless that was written before.
// It succeeds if the attempt has ended meanwhile.
func (s Store) Started(ctx context.Context, t *Taken, at time.Time) error {
	op, err := s.started(ctx, t, at)
	if err != nil || op.GetRequestPut() == nil {
		return err
	}
	_, err = s.Group.Commit(ctx, s.Backend, []*pb.Compare{
		store.ModEquals(s.Keys.Step(t.StepID), t.Revision), store.CreateEquals(string(op.GetRequestPut().Key), 0),
	}, op)
	if errors.Is(err, store.ErrChanged) {
		return nil
	}
	s.suspect(err)
	return err
}

// started returns the write of the event of a start; nil if the instance has no events. It is
// the first event of its revision.
func (s Store) started(ctx context.Context, t *Taken, at time.Time) (*pb.RequestOp, error) {
	i := t.Instance
	i.Status = Running
	e := i.Event(at)
	if !HasEvent(s.Journal, t.Run, t.Ready.Number, e) {
		return nil, nil
	}
	return s.Journal.OpAs(ctx, t.Run, fmt.Sprintf("0-%d-%x", t.Ready.Number, t.Revision), e)
}

// suspect makes the journal use another lease if its lease may have expired.
func (s Store) suspect(err error) {
	if errors.Is(err, store.ErrLeaseNotFound) {
		s.Journal.Forget()
	}
}

func taken(id store.StepID) error {
	return problem.New(problem.StepTaken, "step instance %s of run %q cannot be taken: another executor has taken it, or its run was canceled", id.Text(), id.Run)
}

// GiveUp ends the attempt of a published instance whose wait for slots has timed out: it has
// failed, and is requested again if it has retries left. An instance that was taken
// meanwhile is a StepTaken problem.
func (s Store) GiveUp(ctx context.Context, p *Published, by run.Executor, why string) error {
	id, now := p.ID(), time.Now()
	i := &Instance{StepID: id, Record: Record{Status: Scheduled, Attempt: p.Attempt, ScheduledAt: p.ScheduledAt, Place: p.Place}}
	i.Record = i.giveUp(by, text.CutWithin(why, MaxError), Policy{p.Retries, p.Backoff}, now)
	ops, err := s.logged(ctx, []*pb.RequestOp{store.Put(s.Keys.Step(id), i.Encode(), 0), store.Delete(p.Key(s.Keys))}, id, p.Number, i.Event(now))
	if err == nil {
		_, err = s.Group.Commit(ctx, s.Backend, []*pb.Compare{
			store.ModEquals(p.Key(s.Keys), p.Revision), store.ModEquals(s.Keys.Step(id), p.Revision),
			store.CreateEquals(s.Keys.Canceled(id.Run), 0),
		}, ops...)
	}
	switch {
	case errors.Is(err, store.ErrChanged):
		return taken(id)
	case err != nil:
		s.suspect(err)
		return store.Problem("the step instance was not given up", err)
	}
	return nil
}

// TakeWith is [Store.Take] for an instance with slots: claim claims them in one transaction
// with its argument, and returns the fencing token and, if known, the responses. Its error
// is returned, except that a condition that does not hold is a StepTaken problem.
func (s Store) TakeWith(ctx context.Context, p *Published, by run.Executor, claim func(store.Extra) (store.Fence, []*pb.ResponseOp, error)) (*Taken, error) {
	t, x, err := s.taking(ctx, p, by)
	if err != nil {
		return nil, store.Problem("the step instance was not taken", err)
	}
	x.Then = append(s.genuine(t.StepID), x.Then...)
	fence, answers, err := claim(x)
	switch {
	case problem.CodeOf(err) == problem.Precondition:
		return nil, taken(t.StepID)
	case err != nil:
		s.suspect(err)
		return nil, err
	}
	t.Revision = fence.Revision()
	if len(answers) > 0 {
		return t, s.verify(t, answers)
	}
	again, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTimeout)
	defer cancel()
	return t, s.Verify(again, t)
}
