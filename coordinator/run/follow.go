package run

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// followBatch is how many events are written at once, and followMost how many are
	// kept while etcd is away: then the oldest are given up.
	followBatch = 64
	followMost  = 4096
	followPause = time.Second
	followTry   = 2 * time.Second
	// perRun bounds the events of claims that one process writes for one run, and
	// perRunRuns the runs that are counted at a time.
	perRun     = 500
	perRunRuns = 10_000
)

// claimEvents are the events of claims that runs have as well.
var claimEvents = map[pool.EventType]EventType{
	pool.ClaimWaiting:  StepSlotWaiting,
	pool.ClaimGranted:  StepSlotClaimed,
	pool.ClaimRenewed:  StepSlotRenewed,
	pool.ClaimReleased: StepSlotReleased,
	pool.ClaimEnded:    StepSlotLost,
}

// logged is an event that is to be written. It has its id before, so that it is the
// same event however often it is tried.
type logged struct {
	run, id string
	event   Event
}

// Follow writes what happens to claims that carry a run among the run's events,
// until ctx ends. It does so beside the claims and after them, so that neither a
// claim nor a release waits for it, and a full etcd still takes releases: a process
// that is killed may leave out its last ones. Function dropped is told how many were
// given up, because etcd was away for too long or the run had 500 already.
func (j *Journal) Follow(ctx context.Context, claims <-chan pool.Event, dropped func(n int)) error {
	var pending []logged
	counts := map[string]int{}
	take := func(ev pool.Event) {
		l, ok := loggedOf(ev, time.Now())
		if !ok {
			return
		}
		if len(counts) > perRunRuns {
			clear(counts)
		}
		if counts[l.run]++; counts[l.run] > perRun {
			dropped(1)
			return
		}
		pending = append(pending, l)
	}
	retry := time.NewTimer(followPause)
	defer retry.Stop()
	for {
		select {
		case ev := <-claims:
			take(ev)
		case <-retry.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for more := true; more; { // what has come meanwhile goes along
			select {
			case ev := <-claims:
				take(ev)
			default:
				more = false
			}
		}
		for len(pending) > 0 {
			n := min(len(pending), followBatch)
			if err := j.write(ctx, pending[:n]); err != nil {
				break
			}
			pending = pending[n:]
		}
		if over := len(pending) - followMost; over > 0 {
			pending = pending[over:]
			dropped(over)
		}
		if len(pending) > 0 {
			retry.Reset(followPause)
		}
	}
}

// loggedOf is the event of a claim, if a run has it too.
func loggedOf(ev pool.Event, now time.Time) (logged, bool) {
	t, ok := claimEvents[ev.Type]
	if !ok || ev.Run == "" || ValidateID(ev.Run) != nil {
		return logged{}, false
	}
	return logged{ev.Run, ulid.Make().String(), Event{
		Type: t, At: now, Reason: ev.Reason,
		Metadata: meta("claim", ev.Claim, "step", ev.Step, "pools", strings.Join(ev.Pools, ",")),
	}}, true
}

// write writes some events at once, those of them that are not there yet.
func (j *Journal) write(ctx context.Context, events []logged) error {
	ctx, cancel := context.WithTimeout(ctx, followTry)
	defer cancel()
	var ops []*pb.RequestOp
	for _, l := range events {
		op, err := j.once(ctx, l.run, l.id, l.event)
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	_, err := store.Commit(ctx, j.backend, nil, ops...)
	if errors.Is(err, store.ErrLeaseNotFound) {
		j.Forget()
	}
	return err
}
