package run

import (
	"strconv"
	"time"
)

// The transitions of a run are pure: each returns the record as it is then, and
// the event that tells of it. Who may ask for which is decided where they are
// called.

// stampOf is the precision of all times in records.
func stampOf(now time.Time) time.Time { return now.UTC().Truncate(time.Millisecond) }

func queued(s Spec, now time.Time) (Record, Event) {
	r := Record{Spec: s, Status: Queued, QueuedAt: stampOf(now)}
	return r, Event{Type: RunQueued, At: now, Metadata: meta("priority", strconv.Itoa(s.Priority))}
}

// Admit lets a queued run go.
func (r Record) Admit(now time.Time) (Record, Event) {
	r.Status, r.Block, r.AdmittedAt = NotStarted, nil, stampOf(now)
	r.Executor, r.StartedAt = nil, time.Time{}
	return r, Event{Type: RunDequeued, At: now, Metadata: meta("priority", strconv.Itoa(r.Priority))}
}

// BlockedBy notes why a queued run still waits.
func (r Record) BlockedBy(b Block) Record {
	r.Block = &b
	return r
}

func (r Record) start(by Executor, now time.Time) (Record, Event) {
	r.Status, r.StartedAt, r.Executor = Running, stampOf(now), &by
	r.Attempt++
	return r, Event{Type: RunStarted, At: now, Metadata: meta(
		"host", by.Host, "instance", by.Instance, "attempt", strconv.Itoa(r.Attempt))}
}

// Lose takes a run from its executor, who is gone or never came. It goes back to
// its old place in the queue if it may be tried again, and has failed else.
func (r Record) Lose(now time.Time) (Record, Event) {
	e := Event{Type: RunLost, At: now}
	switch {
	case r.Status == NotStarted:
		e.Type = RunLaunchFailed
		e.Reason = "nobody started it within " + now.Sub(r.AdmittedAt).Round(time.Second).String()
	case r.Executor != nil:
		e.Reason = "its executor on host '" + r.Executor.Host + "' is gone"
	}
	r.Lost++
	if r.Lost <= r.Retries {
		r.Status, r.Block, r.Executor = Queued, nil, nil
		r.AdmittedAt, r.StartedAt = time.Time{}, time.Time{}
		e.Metadata = meta("retry", strconv.Itoa(r.Lost)+"/"+strconv.Itoa(r.Retries))
		return r, e
	}
	r.Status, r.EndedAt, r.Error = Failed, stampOf(now), e.Reason
	return r, e
}

func (r Record) finish(as Status, fence int64, why string, now time.Time) (Record, Event) {
	r.Status, r.EndedAt, r.Error, r.EndFence = as, stampOf(now), why, fence
	e := Event{Type: RunSucceeded, At: now, Reason: why}
	if as == Failed {
		e.Type = RunFailed
	}
	return r, e
}

func (r Record) cancel(why string, now time.Time) (Record, Event) {
	r.Status, r.Block, r.EndedAt, r.Error = Canceled, nil, stampOf(now), why
	return r, Event{Type: RunCanceled, At: now, Reason: why}
}
