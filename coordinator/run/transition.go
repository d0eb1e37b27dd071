package run

import (
	"cmp"
	"strconv"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// The transitions of a run are pure: each returns the new record and its event. The caller
// decides whether a transition is allowed.

// stampOf truncates a time to the precision of records.
func stampOf(now time.Time) time.Time { return now.UTC().Truncate(time.Millisecond) }

func queued(s Spec, now time.Time) (Record, Event) {
	if s.Delay > 0 {
		s.NotBefore = InstantOf(now.Add(s.Delay))
	}
	r := Record{Spec: s, Status: Queued, QueuedAt: stampOf(now)}
	e := Event{Type: RunQueued, At: now, Metadata: meta("priority", strconv.Itoa(s.Priority))}
	if !s.NotBefore.IsZero() {
		e.Metadata["not_before"] = s.NotBefore.Format(time.RFC3339Nano)
	}
	return r, e
}

// Join makes a run that is due join the queue, after the runs that were submitted up to a
// revision.
func (r Record) Join(behind int64, now time.Time) (Record, Event) {
	r.Joined = behind
	return r, Event{Type: RunDue, At: now, Metadata: meta("priority", strconv.Itoa(r.Priority))}
}

// Admit admits a queued run. claim is the id of the claim of its slots.
func (r Record) Admit(claim string, now time.Time) (Record, Event) {
	r.Status, r.Block, r.AdmittedAt, r.Claim = NotStarted, nil, stampOf(now), claim
	r.HeldSince = time.Time{}
	r.Executor, r.StartedAt = nil, time.Time{}
	e := Event{Type: RunDequeued, At: now, Metadata: meta("priority", strconv.Itoa(r.Priority))}
	if len(r.Pools) > 0 {
		e.Metadata["pools"] = PoolList(r.Pools)
	}
	return r, e
}

// Requeue puts an admitted run whose slots have expired back into its place in the queue.
func (r Record) Requeue(now time.Time) (Record, Event) {
	r.Status, r.Block, r.Claim = Queued, nil, ""
	r.AdmittedAt = time.Time{}
	return r, Event{Type: RunRequeued, At: now, Reason: "its slots have expired"}
}

// BlockedBy records why a queued run still waits.
func (r Record) BlockedBy(b Block) Record {
	r.Block = &b
	return r
}

// HeldUp records that pools block a queued run from now on.
func (r Record) HeldUp(now time.Time) Record {
	r.HeldSince = stampOf(now)
	return r
}

func (r Record) start(by Executor, now time.Time) (Record, Event) {
	r.Status, r.StartedAt, r.Executor = Running, stampOf(now), &by
	r.Attempt++
	return r, Event{Type: RunStarted, At: now, Metadata: meta(
		"host", by.Host, "instance", by.Instance, "attempt", strconv.Itoa(r.Attempt))}
}

// retry puts a run into the queue again, at its place and with all its retries.
func (r Record) retry(why string, now time.Time) (Record, Event) {
	again := Record{Spec: r.Spec, Status: Queued, QueuedAt: stampOf(now), Attempt: r.Attempt, Joined: r.Joined, StoredKiB: r.StoredKiB}
	e := Event{Type: RunQueued, At: now, Reason: cmp.Or(why, "it is retried")}
	e.Metadata = meta("priority", strconv.Itoa(r.Priority))
	return again, e
}

// Begin starts a run with steps.
func (r Record) Begin(now time.Time) (Record, Event) {
	r.Status, r.StartedAt = Running, stampOf(now)
	r.Attempt++
	return r, Event{Type: RunStarted, At: now, Metadata: meta("steps", strconv.Itoa(r.Steps))}
}

// End ends a run with its steps.
func (r Record) End(as Status, why string, now time.Time) (Record, Event) {
	return r.finish(as, 0, why, now)
}

// Lose takes a run from its executor, which is gone or never started it. The run returns to
// its place in the queue if it has retries left, else it has failed.
func (r Record) Lose(now time.Time) (Record, Event) {
	e := Event{Type: RunLost, At: now}
	switch {
	case r.Status == NotStarted:
		e.Type = RunLaunchFailed
		e.Reason = "no executor started it within " + now.Sub(r.AdmittedAt).Round(time.Second).String()
	case r.Executor != nil:
		e.Reason = "its executor on host '" + r.Executor.Host + "' is gone"
	}
	r.Lost++
	if r.Lost <= r.Retries {
		r.Status, r.Block, r.Executor, r.Claim = Queued, nil, nil, ""
		r.AdmittedAt, r.StartedAt = time.Time{}, time.Time{}
		e.Metadata = meta(metaRetry, strconv.Itoa(r.Lost)+"/"+strconv.Itoa(r.Retries))
		return r, e
	}
	r.Status, r.EndedAt, r.Error = Failed, stampOf(now), e.Reason
	return r, e
}

func (r Record) finish(as Status, fence store.Fence, why string, now time.Time) (Record, Event) {
	r.Status, r.EndedAt, r.Error, r.EndFence = as, stampOf(now), why, fence
	e := Event{Type: RunSucceeded, At: now, Reason: why}
	if as == Failed {
		e.Type = RunFailed
	}
	return r, e
}

func (r Record) cancel(why string, now time.Time) (Record, Event) {
	r.Status, r.Block, r.EndedAt, r.Error = Canceled, nil, stampOf(now), why
	r.HeldSince = time.Time{}
	return r, Event{Type: RunCanceled, At: now, Reason: why}
}
