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

// Finish ends an attempt and returns the instance, which may be requested again. Repeating
// it succeeds. If the attempt has lost the instance, because its executor was considered
// dead, that is a StepLost problem. The end is written by way, or through the store's group
// if way is nil.
func (s Store) Finish(ctx context.Context, t *Taken, o Outcome, way Way) (*Instance, error) {
	o.Error = text.CutWithin(o.Error, MaxError)
	var kept *Shown
	if len(o.Output) > 0 {
		kept = &Shown{Text: o.Output, Before: o.Before, File: o.File, Cut: o.Cut}
	}
	return s.end(ctx, t, o.StartedAt, kept, way, "the step instance was not finished", func(now time.Time) Record {
		return t.Record.finish(o, t.Fence(), t.Policy(), now)
	})
}

// HandBack puts an instance that was taken but not started back into its queue. The attempt
// does not count. way is as for [Store.Finish].
func (s Store) HandBack(ctx context.Context, t *Taken, way Way) (*Instance, error) {
	return s.end(ctx, t, time.Time{}, nil, way, "the step instance was not handed back", func(now time.Time) Record {
		rec := t.handBack(now)
		rec.EndFence = t.Fence()
		return rec
	})
}

// Way writes the end of an attempt in one transaction under conditions. Its error is
// [store.ErrChanged] if one does not hold.
type Way func(context.Context, store.Extra) (revision int64, err error)

// InGroup returns the way through the store's group. queued, if not nil, is called once the
// write is queued there: later writes through the group are committed with it, or after.
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

// end takes an instance from its executor. It writes the start unless started is zero, and
// the output unless it is nil. An instance with a cancel mark is not tried again, and the
// mark is deleted.
func (s Store) end(ctx context.Context, t *Taken, started time.Time, output *Shown, way Way, what string, next func(time.Time) Record) (*Instance, error) {
	if way == nil {
		way = s.InGroup(nil)
	}
	now := time.Now()
	then := &Instance{StepID: t.StepID, Record: next(now)}
	key, active, mark := s.Keys.Step(t.StepID), s.Keys.ActiveStep(t.Executor.Host, t.StepID), s.Keys.CanceledStep(t.StepID)
	tried := false
	return store.Change(ctx, what, func(ctx context.Context) (*Instance, error) {
		if tried { // the earlier attempt to write may have succeeded
			there, marked, err := s.attempt(ctx, t)
			switch {
			case err != nil:
				return nil, stopAtCorrupt(what, err)
			case there.EndFence == t.Fence() && (there.Status == then.Status || !then.Status.Ended()):
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

// attempt reads the record of an instance, and whether it has a cancel mark, at one
// revision. If the executor of the attempt is gone, the error is that it is lost.
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

// stopAtCorrupt ends the attempts of a change if a value cannot be read.
func stopAtCorrupt(what string, err error) error {
	if problem.CodeOf(store.Problem(what, err)) == problem.CorruptValue {
		return store.Stop(store.Problem(what, err))
	}
	return err
}

func lost(t *Taken) error {
	return problem.New(problem.StepLost, "attempt %d of step instance %s of run %q is lost: it was not renewed in time, and another executor may have it", t.Revision, t.Text(), t.Run)
}

// The transitions of an instance are pure: each returns the new record. The caller decides
// whether a transition is allowed.

// stampOf truncates a time to the precision of records.
func stampOf(now time.Time) time.Time { return now.UTC().Truncate(time.Millisecond) }

// Publish publishes a requested instance.
func (r Record) Publish(now time.Time) Record {
	r.Status, r.ScheduledAt, r.Pause = Scheduled, stampOf(now), 0
	return r
}

// At sets the place of an instance in its queue, unless it has one.
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

// Outcome is the end of an attempt.
type Outcome struct {
	// Status is [Succeeded], [Failed] or [Canceled].
	Status   Status
	ExitCode int
	Error    string
	// EndedAt is when its command has ended, by the clock of the executor's host; zero is
	// now.
	EndedAt time.Time
	// StartedAt is when its command was started, if [Store.Started] has not reported that;
	// else zero.
	StartedAt time.Time
	// Output is the end of its output, of which the last [MaxOutput] bytes are kept. Before
	// is the number of bytes before it.
	Output []byte
	Before int64
	// File is the file with all of it on the host of the executor, or with its beginning and
	// end if Cut; empty without a file.
	File string
	Cut  bool
}

// endOf returns the end of an attempt. An impossible time, of a clock that was set, is
// replaced.
func (o *Outcome) endOf(started, now time.Time) time.Time {
	if o.EndedAt.IsZero() || o.EndedAt.Before(started) || o.EndedAt.After(now) {
		return now
	}
	return o.EndedAt
}

// Policy is the retries of an instance.
type Policy struct {
	Retries int
	Backoff time.Duration
}

// finish ends an attempt. A failed one is requested again after a pause if it has retries
// left.
func (r Record) finish(o Outcome, fence store.Fence, p Policy, now time.Time) Record {
	r.EndedAt, r.ExitCode, r.Error, r.EndFence = stampOf(o.endOf(r.StartedAt, now)), o.ExitCode, o.Error, fence
	r.Status = o.Status
	if o.Status == Failed {
		r = r.again(p)
	}
	return r
}

// Lose takes an instance from an executor that is gone.
func (r Record) Lose(p Policy, now time.Time) Record {
	r.Status, r.EndedAt, r.Error, r.ExitCode = Failed, stampOf(now), "its worker is gone", 0
	if r.Executor != nil {
		r.Error = "its worker on host '" + r.Executor.Host + "' is gone"
	}
	return r.again(p)
}

// again requests a failed instance again if it has retries left.
func (r Record) again(p Policy) Record {
	if r.Attempt <= p.Retries {
		r.Status, r.Pause = Requested, Pause(p.Backoff, r.Attempt+1)
	}
	return r
}

// giveUp ends an attempt that an executor could not start. It counts as failed.
func (r Record) giveUp(by run.Executor, why string, p Policy, now time.Time) Record {
	r = r.take(by, now)
	r.Status, r.StartedAt, r.EndedAt, r.Error = Failed, time.Time{}, stampOf(now), why
	return r.again(p)
}

// Cancel cancels an instance that is not running.
func (r Record) Cancel(now time.Time) Record {
	r.Status, r.EndedAt, r.Pause = Canceled, stampOf(now), 0
	return r
}

// request requests an ended instance again, with all its retries. The end of the last
// attempt can still be repeated.
func (r Record) request() Record { return Record{Status: Requested, EndFence: r.EndFence} }

// handBack requests an instance again that was not started: the start does not count.
func (r Record) handBack(now time.Time) Record {
	r.Attempt--
	r.Executor, r.StartedAt = nil, time.Time{}
	return r.Publish(now)
}

// reportedLate is the delay of an event from which its metadata has the time of the end.
const reportedLate = time.Second

// Event returns the event of a transition to the status.
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
	if !i.EndedAt.IsZero() && now.Sub(i.EndedAt) > reportedLate {
		e.Metadata["ended_at"] = i.EndedAt.Format(time.RFC3339Nano)
	}
	return e
}
