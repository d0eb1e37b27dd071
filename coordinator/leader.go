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
	// debounce is the shortest time between two ticks, so that simultaneous changes are
	// planned together. The first change after a pause does not wait.
	debounce = 2 * time.Millisecond
	// writeTimeout bounds one write. Then its outcome is unknown and must be resolved.
	writeTimeout = 2 * time.Second
	// fencePause is the pause after a failed attempt to fence earlier writes.
	fencePause = 100 * time.Millisecond
	// behindPause is how often progress is requested while the feeds are behind.
	behindPause = 20 * time.Millisecond
	// reportEvery is how often an idle leader writes its last tick.
	reportEvery = 10 * time.Second
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
	revoker              *claimRevoker
	deleter              *stepDeleter
	tasks                *taskDeleter
	pools                *pools        // nil until a run needs some
	follow               func() *pools // follows the pools until the term ends

	troubled   bool  // the last tick failed, which was logged
	silent     bool  // fencing earlier writes failed, which was logged
	unresolved bool  // an earlier write may have an unknown outcome
	nested     bool  // send chunks nested, since a change of the last one failed: see [store.Joined]
	after      int64 // revision that must be known before the next plan
	// bridgedAt is the revision of the last admission of a run with its slots since
	// earlier writes were fenced: such writes do not put the leader's key.
	bridgedAt int64
	dirty     bool
	// deadline is when time alone changes the plan.
	deadline time.Time
	begun    time.Time // the tick under way, or the last
	rest     time.Time // the next tick is not before
	reported time.Time // when a tick was last written
	swept    time.Time // when runs to delete were last searched
}

func newLeader(cfg Config, m *metrics, journal *run.Journal, term election.Candidate) *leader {
	m.estimates.reset()
	l := &leader{
		cfg: cfg, metrics: m, state: newState(cfg.Keys), me: run.Candidate{Candidate: term},
		journal:    journal,
		fence:      election.NewFence(cfg.Keys.Coordinators(), term),
		unresolved: true, // of an earlier term on the same lease

		revoker: newClaimRevoker(cfg, m), deleter: newStepDeleter(cfg), tasks: newTaskDeleter(cfg),
	}
	feed := func(prefix string) *store.Feed {
		return store.NewFeed(cfg.Backend, prefix, cfg.Logger, m.resyncs.Inc)
	}
	l.steps, l.stepFeed = newStepState(cfg.Keys), feed(cfg.Keys.StepsAll())
	l.state.steps = l.steps
	l.runs, l.limits, l.active = feed(cfg.Keys.Runs()), feed(cfg.Keys.Limits()), feed(cfg.Keys.ActiveAll())
	return l
}

// run leads until ctx ends, or the term. The slots of runs are claimed by c.
func (l *leader) run(ctx context.Context, c *claimer) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range l.feeds() {
		g.Go(func() error { return f.Run(ctx) })
	}
	g.Go(func() error { return l.revoker.run(ctx) })
	g.Go(func() error { return l.deleter.run(ctx) })
	g.Go(func() error { return l.tasks.run(ctx) })
	compacter, _ := l.cfg.Backend.(store.Compacter)
	g.Go(func() error { return (&compaction{cfg: l.cfg, metrics: l.metrics, etcd: compacter}).run(ctx) })
	l.follow = func() *pools {
		p := newPools(c)
		g.Go(func() error { return p.run(ctx) })
		return p
	}
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
					l.cfg.Logger.Error("the limits cannot be read: the earlier ones stay in force", "error", err)
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
					l.runs.RequestProgress() // they may have ended with their runs
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

// runsMessage applies a message of the feed of the runs. A snapshot may be older than the
// leader's last write: because it was read before, and then an admitted run would not
// count; or because etcd was restored from a backup. Fencing earlier writes determines the
// revision that must be known before the next plan.
func (l *leader) runsMessage(m store.FeedMessage) {
	if m.Snapshot != nil && m.Snapshot.Revision < l.wrote() {
		l.unresolved = true
	}
	l.changed(l.state.runsMessage(m))
	l.logBad()
}

// wrote returns the revision of the leader's last known write.
func (l *leader) wrote() int64 { return max(l.fence.Revision, l.bridgedAt) }

// stepsMessage applies a message of the feed of the steps: see runsMessage.
func (l *leader) stepsMessage(m store.FeedMessage) {
	if m.Snapshot != nil && m.Snapshot.Revision < l.wrote() {
		l.unresolved = true
	}
	l.changed(l.steps.message(m, time.Now()))
	l.logBad()
}

// logBad logs the values that cannot be read, each once.
func (l *leader) logBad() {
	for _, err := range l.state.news() {
		l.cfg.Logger.Error("ignoring a value that cannot be read", "error", err)
	}
}

func (l *leader) feeds() []*store.Feed {
	return []*store.Feed{l.runs, l.limits, l.active, l.stepFeed}
}

// changed records whether a message has changed the state. While the leader waits for a
// revision, each message may bring it.
func (l *leader) changed(news bool) { l.dirty = l.dirty || news || l.after > 0 }

// soon returns when a change is planned: after the rest, or at once if the revision that
// the leader waited for is known.
func (l *leader) soon() time.Time {
	if l.after > 0 && !l.unresolved && l.state.knownAt(l.after) {
		return time.Time{}
	}
	return l.rest
}

// step does what is due, and returns the time until the next step.
func (l *leader) step(ctx context.Context, now time.Time) (time.Duration, error) {
	if l.unresolved {
		return l.fenceEarlierWrites(ctx)
	}
	if !l.state.knownAt(l.after) {
		for _, f := range l.feeds() {
			f.RequestProgress()
		}
		l.rest = now.Add(behindPause)
		return behindPause, nil
	}
	l.after = 0
	if !l.dirty && (l.deadline.IsZero() || now.Before(l.deadline)) && now.Sub(l.reported) < reportEvery {
		return l.idle(now), nil
	}
	l.dirty = false
	if l.pools == nil && (l.state.queue.gated > 0 || len(l.state.kept) > 0) {
		l.pools = l.follow()
	}
	l.revoker.add(l.state.revoke)
	err := l.tick(ctx, now)
	l.rest = time.Now().Add(debounce)
	switch {
	case errors.Is(err, election.ErrDeposed), ctx.Err() != nil:
		return 0, err
	case err != nil:
		if !l.troubled { // once in a row
			l.cfg.Logger.Warn("a tick was not completed, trying again", "error", err)
		}
		l.troubled, l.dirty = true, true
		l.rest = time.Now().Add(l.cfg.TickInterval)
		return l.cfg.TickInterval, nil
	}
	l.troubled = false
	if l.unresolved || l.after > 0 {
		l.dirty = true
	}
	if l.dirty {
		return debounce, nil
	}
	return l.idle(time.Now()), nil
}

// idle returns the time until the next tick: the interval, or less if something is due.
func (l *leader) idle(now time.Time) time.Duration {
	if l.deadline.IsZero() {
		return l.cfg.TickInterval
	}
	return max(debounce, min(l.cfg.TickInterval, l.deadline.Sub(now)))
}

// poolsChanged returns a channel that receives when pools may have changed; nil if no run
// needs any.
func (l *leader) poolsChanged() <-chan struct{} {
	if l.pools == nil {
		return nil
	}
	return l.pools.changed
}

// fenceEarlierWrites makes sure that no earlier write with this key can commit any more.
func (l *leader) fenceEarlierWrites(ctx context.Context) (time.Duration, error) {
	try, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	resp, err := l.cfg.Backend.Txn(try, l.fence.Write(l.me.Encode()))
	switch {
	case errors.Is(err, store.ErrLeaseNotFound):
		return 0, election.ErrDeposed
	case err != nil:
		if !l.silent { // once in a row
			l.cfg.Logger.Warn("earlier writes could not be fenced, trying again", "error", err)
		}
		l.silent = true
		l.rest = time.Now().Add(fencePause)
		return fencePause, nil
	case !l.fence.Answer(resp):
		return 0, election.ErrDeposed
	case resp.Succeeded:
		l.unresolved, l.after, l.dirty, l.silent = false, resp.Header.Revision, true, false
		l.bridgedAt = 0
		l.state.restored(resp.Header.Revision)
	}
	return 0, nil
}

// write sends one chunk under the fence, and applies the response. It is an error if the
// term has ended, or if etcd did not answer.
func (l *leader) write(ctx context.Context, ch *chunk) error {
	ch.cmps = append(l.sameHistory(), ch.cmps...)
	if l.me.Tick != nil {
		l.me.Tick.Took = time.Since(l.begun)
	}
	joined, resp, err := l.try(ctx, ch)
	switch {
	case errors.Is(err, store.ErrLeaseNotFound):
		l.journal.Forget()
		l.unresolved = true // fencing tells whether it was the leader's own
		return err
	case store.OutcomeUnknown(err):
		l.unresolved = true
		return err
	case err != nil:
		return store.Problem("the plan was not applied", err)
	}
	if !resp.Succeeded {
		before := l.fence.Revision
		if !l.fence.Answer(resp) {
			return election.ErrDeposed
		}
		if l.fence.Revision != before {
			l.unresolved = true
			return problem.New(problem.Internal, "another process has written the key of this leader")
		}
		l.after = resp.Header.Revision // the limits have changed, or etcd was restored
		return nil
	}
	l.fence.Answer(resp)
	l.reported = time.Now()
	l.nested = ch.take(resp.Header.Revision, joined.Answers(resp), l.state)
	if l.nested {
		l.after = resp.Header.Revision
	}
	return nil
}

// sameHistory returns compares under which etcd has what the leader knows of runs and steps.
func (l *leader) sameHistory() []*pb.Compare {
	return append(l.state.newest.since(l.fence.Revision), l.steps.newest.since(l.fence.Revision)...)
}

// try sends a chunk, flat unless the last one failed, and once more nested if that fails.
func (l *leader) try(ctx context.Context, ch *chunk) (*store.Joined, *pb.TxnResponse, error) {
	send := func() (*store.Joined, *pb.TxnResponse, error) {
		try, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		joined := ch.join(&l.fence, l.me.Encode(), !l.nested)
		resp, err := l.cfg.Backend.Txn(try, joined.Txn)
		return joined, resp, err
	}
	joined, resp, err := send()
	if joined.Flat && err == nil && !resp.Succeeded {
		l.nested = true
		return send()
	}
	return joined, resp, err
}
