package coordinator

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// debounce is the time from tick to tick at the least, so that what changes
	// together is planned together. The first change after a rest does not wait.
	debounce = 2 * time.Millisecond
	// writeTimeout bounds one write; then it is in doubt and is settled.
	writeTimeout = 2 * time.Second
	// doorPause is the pause before the door is tried again.
	doorPause = 100 * time.Millisecond
	// behindPause is how often progress is asked for while the feeds are behind.
	behindPause = 20 * time.Millisecond
	// tellEvery is how often an idle leader tells of its ticks.
	tellEvery = 10 * time.Second
)

// leader is the coordinator in one term.
type leader struct {
	cfg     Config
	metrics *metrics
	state   *state
	journal *run.Journal
	me      run.Candidate
	fence   election.Fence

	runs, limits, active *store.Feed
	stepFeed             *store.Feed
	steps                *stepState
	leftovers            *leftovers
	forgotten            *forgotten
	pools                *bridge            // nil until a run needs pools
	spawn                func(func() error) // ends with the term

	troubled bool  // the last tick failed, and that was told
	silent   bool  // the door has failed already, and that was told
	open     bool  // a write may be under way that is not known of
	wary     bool  // a change of the last chunk has failed: see [store.Joined]
	after    int64 // revision that must be known before the next plan
	// bridgedAt is the revision of the last admission of a run with its slots since the
	// door was closed: such writes do not put the leader's key.
	bridgedAt int64
	dirty     bool
	// deadline is when time alone changes the plan.
	deadline time.Time
	begun    time.Time // the tick under way, or the last
	rest     time.Time // until when there is nothing to do but listen
	told     time.Time // when etcd was last told of a tick
	swept    time.Time // when runs to forget were last looked for
}

func newLeader(cfg Config, m *metrics, journal *run.Journal, term election.Candidate) *leader {
	l := &leader{
		cfg: cfg, metrics: m, state: newState(cfg.Keys), me: run.Candidate{Candidate: term},
		journal: journal,
		fence:   election.NewFence(cfg.Keys.Coordinators(), term),
		open:    true, // of a life before, on the same lease

		leftovers: newLeftovers(cfg, m), forgotten: newForgotten(cfg),
	}
	feed := func(prefix string) *store.Feed {
		return store.NewFeed(cfg.Backend, prefix, cfg.Logger, m.resyncs.Inc)
	}
	l.steps, l.stepFeed = newStepState(cfg.Keys), feed(cfg.Keys.StepsAll())
	l.state.steps = l.steps
	l.runs, l.limits, l.active = feed(cfg.Keys.Runs()), feed(cfg.Keys.Limits()), feed(cfg.Keys.ActiveAll())
	return l
}

// run leads until ctx ends, or etcd says that somebody else does.
func (l *leader) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range l.feeds() {
		g.Go(func() error { return f.Run(ctx) })
	}
	g.Go(func() error { return l.leftovers.run(ctx) })
	g.Go(func() error { return l.forgotten.run(ctx) })
	compacter, _ := l.cfg.Backend.(store.Compacter)
	g.Go(func() error { return (&compaction{cfg: l.cfg, metrics: l.metrics, etcd: compacter}).run(ctx) })
	l.spawn = g.Go
	g.Go(func() error { return l.loop(ctx) })
	return g.Wait()
}

func (l *leader) loop(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	due := time.Now() // when next fires
	l.dirty = true
	for {
		select {
		case m, ok := <-l.runs.Messages():
			if ok {
				l.runsMessage(m)
			}
		case m, ok := <-l.limits.Messages():
			if ok {
				if err := l.state.limitsMessage(m); err != nil {
					l.cfg.Logger.Error("the limits can't be read: those from before hold on", "error", err)
				}
				l.changed(len(m.Events) > 0 || m.Snapshot != nil)
			}
		case m, ok := <-l.stepFeed.Messages():
			if ok {
				l.stepsMessage(m)
			}
		case m, ok := <-l.active.Messages():
			if ok {
				l.state.activeMessage(m)
				if len(l.state.absent) > 0 {
					l.runs.RequestProgress() // did they end with their runs?
				}
				if len(l.steps.absent) > 0 {
					l.stepFeed.RequestProgress()
				}
				l.changed(len(m.Events) > 0 || m.Snapshot != nil)
			}
		case <-l.poolsChanged():
			l.changed(l.state.queue.gated > 0 || len(l.state.kept) > 0)
		case now := <-next.C:
			wait, err := l.step(ctx, now)
			if err != nil {
				return err
			}
			due = time.Now().Add(wait)
			next.Reset(wait)
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if soon := l.soon(); l.dirty && due.After(soon) {
			due = soon
			next.Reset(time.Until(soon))
		}
	}
}

// runsMessage takes what the feed of the records delivered. A snapshot may be older
// than the leader's last write: because it was read before, and then the run that was
// admitted would not count; or because etcd was restored from a backup. The door tells
// what revision must be known before the next plan.
func (l *leader) runsMessage(m store.FeedMessage) {
	if m.Snapshot != nil && m.Snapshot.Revision < l.wrote() {
		l.open = true
	}
	l.changed(l.state.runsMessage(m))
	l.tellBad()
}

// wrote is the revision of the leader's last write, as far as it knows.
func (l *leader) wrote() int64 { return max(l.fence.Revision, l.bridgedAt) }

// stepsMessage takes what the feed of the steps delivered: see runsMessage.
func (l *leader) stepsMessage(m store.FeedMessage) {
	if m.Snapshot != nil && m.Snapshot.Revision < l.wrote() {
		l.open = true
	}
	l.changed(l.steps.message(m, time.Now()))
	l.tellBad()
}

// tellBad tells what can't be read, once.
func (l *leader) tellBad() {
	for _, err := range l.state.news() {
		l.cfg.Logger.Error("ignoring a value that cannot be read", "error", err)
	}
}

func (l *leader) feeds() []*store.Feed {
	return []*store.Feed{l.runs, l.limits, l.active, l.stepFeed}
}

// changed notes whether a message has brought news. While a revision is waited for,
// every message may be the one.
func (l *leader) changed(news bool) { l.dirty = l.dirty || news || l.after > 0 }

// soon is when a change is looked at: after the rest, or at once if it is what was
// waited for.
func (l *leader) soon() time.Time {
	if l.after > 0 && !l.open && l.state.knownAt(l.after) {
		return time.Time{}
	}
	return l.rest
}

// step does what is to be done now, and returns when to look again.
func (l *leader) step(ctx context.Context, now time.Time) (time.Duration, error) {
	if l.open {
		return l.closeDoor(ctx)
	}
	if !l.state.knownAt(l.after) {
		for _, f := range l.feeds() {
			f.RequestProgress()
		}
		l.rest = now.Add(behindPause)
		return behindPause, nil
	}
	l.after = 0
	if !l.dirty && (l.deadline.IsZero() || now.Before(l.deadline)) && now.Sub(l.told) < tellEvery {
		return l.idle(now), nil
	}
	l.dirty = false
	if l.pools == nil && (l.state.queue.gated > 0 || len(l.state.kept) > 0) {
		l.pools = newBridge(l.cfg)
		l.spawn(func() error { return l.pools.run(ctx) })
	}
	l.leftovers.add(l.state.left)
	err := l.tick(ctx, now)
	l.rest = time.Now().Add(debounce)
	switch {
	case errors.Is(err, election.ErrDeposed), ctx.Err() != nil:
		return 0, err
	case err != nil:
		if !l.troubled { // once in a row
			l.cfg.Logger.Warn("a tick was not carried out whole, trying again", "error", err)
		}
		l.troubled, l.dirty = true, true
		l.rest = time.Now().Add(l.cfg.TickInterval)
		return l.cfg.TickInterval, nil
	}
	l.troubled = false
	if l.open || l.after > 0 {
		l.dirty = true
	}
	if l.dirty {
		return debounce, nil
	}
	return l.idle(time.Now()), nil
}

// idle is how long there is nothing to do: a tick, or less if something is due before.
func (l *leader) idle(now time.Time) time.Duration {
	if l.deadline.IsZero() {
		return l.cfg.TickInterval
	}
	return max(debounce, min(l.cfg.TickInterval, l.deadline.Sub(now)))
}

// poolsChanged receives when pools that runs need may have changed.
func (l *leader) poolsChanged() <-chan struct{} {
	if l.pools == nil {
		return nil
	}
	return l.pools.changed
}

// closeDoor settles what an earlier write of this leader, or of its key, has done.
func (l *leader) closeDoor(ctx context.Context) (time.Duration, error) {
	try, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	resp, err := l.cfg.Backend.Txn(try, l.fence.Write(l.me.Encode()))
	switch {
	case errors.Is(err, store.ErrLeaseNotFound):
		return 0, election.ErrDeposed
	case err != nil:
		if !l.silent { // once in a row
			l.cfg.Logger.Warn("settling failed, trying again", "error", err)
		}
		l.silent = true
		l.rest = time.Now().Add(doorPause)
		return doorPause, nil
	case !l.fence.Answer(resp):
		return 0, election.ErrDeposed
	case resp.Succeeded:
		l.open, l.after, l.dirty, l.silent = false, resp.Header.Revision, true, false
		l.bridgedAt = 0
		l.state.restored(resp.Header.Revision)
	}
	return 0, nil
}

// write sends one chunk under the fence, and returns its answer. It is an error if
// the root's compares did not hold, or if etcd did not answer.
func (l *leader) write(ctx context.Context, ch *chunk) error {
	if l.me.Tick != nil {
		l.me.Tick.Took = time.Since(l.begun)
	}
	joined, resp, err := l.try(ctx, ch)
	switch {
	case errors.Is(err, store.ErrLeaseNotFound):
		l.journal.Forget()
		l.open = true // which tells whether it was our own
		return err
	case store.OutcomeUnknown(err):
		l.open = true
		return err
	case err != nil:
		return store.Problem("the plan was not carried out", err)
	}
	if !resp.Succeeded {
		before := l.fence.Revision
		if !l.fence.Answer(resp) {
			return election.ErrDeposed
		}
		if l.fence.Revision != before {
			l.open = true
			return problem.New(problem.Internal, "somebody else has written the key of this leader")
		}
		l.after = resp.Header.Revision // the limits have changed
		return nil
	}
	l.fence.Answer(resp)
	l.told = time.Now()
	l.wary = ch.take(resp.Header.Revision, joined.Answers(resp), l.state)
	if l.wary {
		l.after = resp.Header.Revision
	}
	return nil
}

// try sends a chunk: flat, unless a change has failed lately, and again if one fails.
func (l *leader) try(ctx context.Context, ch *chunk) (*store.Joined, *pb.TxnResponse, error) {
	send := func() (*store.Joined, *pb.TxnResponse, error) {
		try, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		joined := ch.join(&l.fence, l.me.Encode(), !l.wary)
		resp, err := l.cfg.Backend.Txn(try, joined.Txn)
		return joined, resp, err
	}
	joined, resp, err := send()
	if joined.Flat && err == nil && !resp.Succeeded {
		l.wary = true
		return send()
	}
	return joined, resp, err
}
