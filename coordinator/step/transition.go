package step

import (
	"strconv"
	"time"

	"github.com/berthhq/berth/coordinator/run"
)

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
