package step

import (
	"context"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// MaxError bounds why an attempt has failed, in bytes.
const MaxError = run.MaxWhy

// Finish ends an attempt, and returns the instance as it is then: it may be requested
// again, unless it is to be canceled. Asking again for the same is no error. If the
// attempt is not the instance's any more, because its executor was taken to be dead,
// that is a StepLost problem. It is written in the way that is given, or in the store's
// group if that is nil.
func (s Store) Finish(ctx context.Context, t *Taken, o Outcome, way Way) (*Instance, error) {
	o.Error = text.CutWithin(o.Error, MaxError)
	var kept *Shown
	if len(o.Output) > 0 {
		kept = &Shown{Text: o.Output, Before: o.Before, File: o.File, Cut: o.Cut}
	}
	return s.end(ctx, t, o.StartedAt, kept, way, "the step instance was not finished", func(now time.Time) Record {
		return t.Record.finish(o, t.Revision, t.Policy(), now)
	})
}

// HandBack puts an instance back into its queue that was taken and not begun: the
// attempt does not count. The way is as for [Store.Finish].
func (s Store) HandBack(ctx context.Context, t *Taken, way Way) (*Instance, error) {
	return s.end(ctx, t, time.Time{}, nil, way, "the step instance was not handed back", func(now time.Time) Record {
		rec := t.handBack(now)
		rec.EndFence = t.Revision
		return rec
	})
}

// Way is how the end of an attempt is written: under conditions, all or nothing. If one
// does not hold, that is [store.ErrChanged].
type Way func(context.Context, store.Extra) (revision int64, err error)

// InGroup is the way through the store's group. Queued, if it is not nil, is called once
// the write has its place there: what is written through the group later happens with
// it, or after it.
func (s Store) InGroup(queued func()) Way {
	return func(ctx context.Context, x store.Extra) (int64, error) {
		answer := s.Group.Enqueue(ctx, s.Backend, x.If, x.Then...)
		if queued != nil {
			queued()
		}
		made, err := answer()
		return made.Revision, err
	}
}

// end takes an instance from its executor, tells that it was started, if that is not zero,
// and keeps what it has written, if that is not nil. One that is to be canceled does not come to be tried again: its mark goes with it.
func (s Store) end(ctx context.Context, t *Taken, started time.Time, output *Shown, way Way, what string, next func(time.Time) Record) (*Instance, error) {
	if way == nil {
		way = s.InGroup(nil)
	}
	now := time.Now()
	then := &Instance{StepID: t.StepID, Record: next(now)}
	key, active, mark := s.Keys.Step(t.StepID), s.Keys.ActiveStep(t.Executor.Host, t.StepID), s.Keys.CanceledStep(t.StepID)
	tried := false
	return store.Change(ctx, what, func(ctx context.Context) (*Instance, error) {
		if tried { // what has become of the try before
			there, marked, err := s.attempt(ctx, t)
			switch {
			case err != nil:
				return nil, stopAtCorrupt(what, err)
			case there.EndFence == t.Revision && (there.Status == then.Status || !then.Status.Ended()):
				return there, nil
			case there.Revision != t.Revision:
				return nil, store.Stop(lost(t))
			case marked && !then.Status.Ended():
				then.Record = then.Cancel(now)
			}
		}
		cmps := []*pb.Compare{store.ModEquals(key, t.Revision), store.Present(active)}
		ops := []*pb.RequestOp{store.Put(key, then.Encode(), 0), store.Delete(active)}
		if then.Status.Ended() {
			ops = append(ops, store.Delete(mark))
		} else {
			cmps = append(cmps, store.CreateEquals(mark, 0))
		}
		if then.Status == Scheduled {
			again := t.Ready.Ready
			again.ScheduledAt = then.ScheduledAt
			ops = append(ops, store.Put(t.Ready.Key(s.Keys), again.Encode(), 0))
		}
		if output != nil {
			l := output.log(t, then.EndedAt)
			l.Ended = true
			op, err := s.Journal.Keep(ctx, s.Keys.Log(t.StepID), l.Encode())
			if err != nil {
				return nil, err
			}
			ops = append(ops, op)
		}
		if !started.IsZero() {
			op, err := s.started(ctx, t, started)
			if err != nil {
				return nil, err
			}
			if op != nil {
				ops = append(ops, op)
			}
		}
		ops, err := s.logged(ctx, ops, t.StepID, t.Ready.Number, then.Event(now))
		if err != nil {
			return nil, err
		}
		then.Revision, err = way(ctx, store.Extra{If: cmps, Then: ops})
		if err == nil {
			return then, nil
		}
		s.suspect(err)
		tried = true
		return nil, err
	})
}

// attempt reads the record of an instance, and whether it is to be canceled, at one
// revision. If the record is that of the attempt but its executor is not seen any more,
// the error is that it is lost.
func (s Store) attempt(ctx context.Context, t *Taken) (there *Instance, marked bool, err error) {
	resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		store.Get(s.Keys.Step(t.StepID)), store.Get(s.Keys.ActiveStep(t.Executor.Host, t.StepID)), store.Get(s.Keys.CanceledStep(t.StepID)),
	}})
	if err != nil {
		return nil, false, err
	}
	seen := func(n int) bool { return len(resp.Responses[n].GetResponseRange().Kvs) > 0 }
	if !seen(0) {
		return nil, false, store.Stop(lost(t))
	}
	if there, err = Decode(s.Keys, resp.Responses[0].GetResponseRange().Kvs[0]); err != nil {
		return nil, false, err
	}
	if there.Revision == t.Revision && !seen(1) {
		return nil, false, store.Stop(lost(t))
	}
	return there, seen(2), nil
}

// stopAtCorrupt ends a change that meets a value that can't be read.
func stopAtCorrupt(what string, err error) error {
	if problem.CodeOf(store.Problem(what, err)) == problem.CorruptValue {
		return store.Stop(store.Problem(what, err))
	}
	return err
}

func lost(t *Taken) error {
	return problem.New(problem.StepLost, "attempt %d of step instance %s of run %q is lost: it was not renewed in time, and another executor may have it", t.Revision, t.Text(), t.Run)
}

// The transitions of an instance are pure: each returns the record as it is then. Who
// may ask for which is decided where they are called.

// stampOf is the precision of all times in records.
func stampOf(now time.Time) time.Time { return now.UTC().Truncate(time.Millisecond) }

// Publish lets workers take a requested instance.
func (r Record) Publish(now time.Time) Record {
	r.Status, r.ScheduledAt, r.Pause = Scheduled, stampOf(now), 0
	return r
}

// At puts a scheduled instance into a place of its queue. One that has a place keeps it.
func (r Record) At(place int64) Record {
	if r.Place == 0 {
		r.Place = place
	}
	return r
}

// take gives a scheduled instance to an executor.
func (r Record) take(by run.Executor, now time.Time) Record {
	r.Status, r.StartedAt, r.Executor = Running, stampOf(now), &by
	r.EndedAt, r.Error, r.ExitCode = time.Time{}, "", 0
	r.Attempt++
	return r
}

// Outcome is how an attempt has ended.
type Outcome struct {
	// Status is [Succeeded], [Failed] or [Canceled].
	Status   Status
	ExitCode int
	Error    string
	// EndedAt is when its command has ended, by the clock of the executor's host, which may
	// be long before that is told; zero: now.
	EndedAt time.Time
	// StartedAt is when its command was started, if that is still to be told: see
	// [Store.Started]. Zero: it was told, or nothing was started.
	StartedAt time.Time
	// Output is the end of what its command has written, of which the last [MaxOutput]
	// bytes are kept, and Before is how many bytes come before it.
	Output []byte
	Before int64
	// File has all of it, on the host of the executor, or its beginning and its end if it is
	// Cut; empty: none does.
	File string
	Cut  bool
}

// endOf is when an attempt has ended that was started then. A time that can't be, since a
// clock was set, is not believed.
func (o *Outcome) endOf(started, now time.Time) time.Time {
	if o.EndedAt.IsZero() || o.EndedAt.Before(started) || o.EndedAt.After(now) {
		return now
	}
	return o.EndedAt
}

// Policy says what becomes of an attempt that has failed, or was lost.
type Policy struct {
	Retries int
	Backoff time.Duration
}

// finish ends the attempt of a fence. One that has failed is requested again, after a
// pause, if it may be.
func (r Record) finish(o Outcome, fence int64, p Policy, now time.Time) Record {
	r.EndedAt, r.ExitCode, r.Error, r.EndFence = stampOf(o.endOf(r.StartedAt, now)), o.ExitCode, o.Error, fence
	r.Status = o.Status
	if o.Status == Failed {
		r = r.again(p)
	}
	return r
}

// Lose takes an instance from its executor, who is gone.
func (r Record) Lose(p Policy, now time.Time) Record {
	r.Status, r.EndedAt, r.Error, r.ExitCode = Failed, stampOf(now), "its worker is gone", 0
	if r.Executor != nil {
		r.Error = "its worker on host '" + r.Executor.Host + "' is gone"
	}
	return r.again(p)
}

// again has a failed instance requested once more, if it may be tried again.
func (r Record) again(p Policy) Record {
	if r.Attempt <= p.Retries {
		r.Status, r.Pause = Requested, Pause(p.Backoff, r.Attempt+1)
	}
	return r
}

// giveUp ends an attempt that nobody has begun, for whom the executor has tried. It counts
// as one that has failed.
func (r Record) giveUp(by run.Executor, why string, p Policy, now time.Time) Record {
	r = r.take(by, now)
	r.Status, r.StartedAt, r.EndedAt, r.Error = Failed, time.Time{}, stampOf(now), why
	return r.again(p)
}

// Cancel ends an instance that nobody has begun.
func (r Record) Cancel(now time.Time) Record {
	r.Status, r.EndedAt, r.Pause = Canceled, stampOf(now), 0
	return r
}

// request has an instance that has ended requested again, with as many attempts as at
// first. Whoever has ended the last one may ask for that end once more.
func (r Record) request() Record { return Record{Status: Requested, EndFence: r.EndFence} }

// handBack puts an instance back that was not begun: the start does not count.
func (r Record) handBack(now time.Time) Record {
	r.Attempt--
	r.Executor, r.StartedAt = nil, time.Time{}
	return r.Publish(now)
}

// toldLate is how long after its end an attempt may be told of without the event saying so.
const toldLate = time.Second

// Event tells of a transition to a record's status.
func (i *Instance) Event(now time.Time) run.Event {
	e := run.Event{At: now, Reason: i.Error, Metadata: map[string]string{"step": i.Text()}}
	switch i.Status {
	case Running:
		e.Type = run.StepStarted
	case Succeeded:
		e.Type = run.StepSucceeded
	case Failed:
		e.Type = run.StepFailed
	case Canceled:
		e.Type = run.StepCanceled
	case Requested:
		e.Type = run.StepRetried
	case Scheduled:
		e.Type = run.StepHandedBack
	}
	if i.Executor != nil {
		e.Metadata["host"], e.Metadata["instance"] = i.Executor.Host, i.Executor.Instance
		e.Metadata["attempt"] = strconv.Itoa(i.Attempt)
	}
	if !i.EndedAt.IsZero() && now.Sub(i.EndedAt) > toldLate {
		e.Metadata["ended_at"] = i.EndedAt.Format(time.RFC3339Nano)
	}
	return e
}
