package engine

import (
	"context"
	"runtime"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/owner"
)

const (
	// collectFor bounds how long the loop waits for the next requests of callers that it has just answered, before it sends
	// the next transaction; quietTurns is after how many turns of other goroutines without any it stops.
	collectFor = 150 * time.Microsecond
	quietTurns = 128
	// ageEvery is how often what is remembered of pools is aged.
	ageEvery = 10 * time.Second
)

// loop is the state of an engine that its goroutine owns.
type loop struct {
	e        *Engine
	owner    *owner.Owner
	commits  *writer
	queue    *writer
	requests *requests
	polls    *polls
	hosting  *hosting
	life     *life
	adoption *adoption
	audit    *audit
	restore  *restore
	follows  *follows
	reads    pace // of what claims need to know
	several  int  // callers that were answered since the last transaction
	agedAt   time.Duration
	prepared bool
	written  written
	broker   *broker
	waitings *waitings

	revocations *revocations
}

func newLoop(e *Engine) *loop {
	cfg := e.cfg
	o := owner.New(owner.Config{Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance, Leases: cfg.Leases, Presence: cfg.WaiterLeases})
	l := &loop{e: e, owner: o, commits: newWriter(o.Commits(), o.Space()), queue: newWriter(o.Queue(), o.Space()), broker: &broker{}}
	l.waitings, l.revocations, l.requests = newWaitings(e, l.broker), newRevocations(l), newRequests(l)
	l.polls, l.hosting, l.life = newPolls(l), newHosting(l), newLife(l)
	l.adoption, l.audit = newAdoption(l), newAudit(l)
	l.restore, l.follows = newRestore(l), &follows{loop: l}
	return l
}

// run works until ctx ends.
func (l *loop) run(ctx context.Context) {
	wake := time.NewTimer(0)
	defer wake.Stop()
	l.revocations.follow(ctx)
	for {
		select {
		case <-l.e.inbox.poked:
		case <-wake.C:
		case <-ctx.Done():
			return
		}
		l.turn()
		if l.several > 1 && !l.commits.busy {
			l.collect()
		}
		wake.Reset(l.act(ctx))
	}
}

// turn runs what is in the inbox, and answers callers.
func (l *loop) turn() bool {
	some := l.e.inbox.run()
	l.several += l.requests.answer(l.owner.Results())
	return some
}

// expect has the next transaction wait a moment for a request of a caller.
func (l *loop) expect() { l.several = max(l.several, 2) }

// collect waits a moment for callers that were answered together: they often go on with another request.
func (l *loop) collect() {
	end := time.Now().Add(collectFor)
	for quiet := 0; quiet < quietTurns && time.Now().Before(end); quiet++ {
		runtime.Gosched()
		if l.turn() {
			quiet = 0
		}
	}
}

// act sends what there is to send, and returns when to look again if nothing happens before.
func (l *loop) act(ctx context.Context) time.Duration {
	now, wall := l.e.now(), time.Now()
	l.restore.look(ctx)
	if now >= l.agedAt+ageEvery {
		l.owner.Age(now)
		l.requests.places.age(now)
		l.agedAt = now
	}
	l.follows.act(ctx)
	if !l.prepared && l.commits.fenced() && l.queue.fenced() && l.adoption.done(ctx, now) {
		l.prepared = true
		close(l.e.ready)
	}
	l.polls.act(ctx, now, wall)
	l.waitings.act(ctx)
	l.revocations.act(ctx, now)
	l.hosting.act(ctx, now)
	if !l.audit.whole {
		l.write(ctx, l.commits, now, wall)
	}
	l.write(ctx, l.queue, now, wall)
	l.read(ctx)
	l.suspect()
	again := l.requests.answer(l.owner.Results()) > 0 // others may be asked for instead
	l.life.act()
	l.audit.act(ctx, now)
	if l.life.giveRoleUp() || again {
		return 0
	}
	return l.wakes(now)
}

// write sends the next transaction of a half.
func (l *loop) write(ctx context.Context, w *writer, now time.Duration, wall time.Time) {
	t := w.next(now, wall)
	if t == nil {
		return
	}
	if w == l.commits {
		l.several = 0
	}
	l.e.txn(ctx, t, func(resp *pb.TxnResponse, err error) {
		l.answered(w, resp, err, wall)
		l.polls.seeRole()
	})
}

// answered takes the answer to a transaction of a half that was sent at a time.
func (l *loop) answered(w *writer, resp *pb.TxnResponse, err error, sent time.Time) {
	commits := w == l.commits && err == nil
	certain := w.state == sending
	writes := commits && certain && resp.Succeeded
	w.answer(resp, err, l.e.now())
	if certain && w.state != sending {
		l.e.cfg.Logger.Warn("the outcome of a write to etcd is unknown and is being resolved", "error", err)
	}
	if commits {
		l.written.at(resp.Header.Revision, l.e.cfg.Backend.History())
	}
	if writes {
		results := l.owner.Results()
		l.requests.observe(results, pool.Write{Sent: sent, Answered: time.Now(), Revision: resp.Header.Revision})
		l.several += l.requests.answer(results)
	}
}

// read reads what claims need to know of pools.
func (l *loop) read(ctx context.Context) {
	if !l.reads.free(l.e.now()) {
		return
	}
	if t, ok := l.owner.Reads(); ok {
		l.reads.begin()
		l.e.txn(ctx, t, func(resp *pb.TxnResponse, err error) {
			l.reads.answered(err, l.e.now())
			l.owner.Read(resp, err)
		})
	}
}

// suspect reports leases that etcd may not know.
func (l *loop) suspect() {
	claims, demands := l.owner.Suspects()
	if len(claims) > 0 {
		l.e.cfg.Leases.Suspect(claims...)
	}
	if len(demands) > 0 {
		l.e.cfg.WaiterLeases.Suspect(demands...)
	}
}

// wakes returns how long nothing is to be done if nothing happens.
func (l *loop) wakes(now time.Duration) time.Duration {
	at := now + ageEvery
	for _, t := range []time.Duration{
		l.owner.Wakes(now), l.commits.after, l.queue.after, l.hosting.writer.after, l.reads.after, l.polls.wakes(), l.hosting.wakes(now),
		l.revocations.wakes(now), l.adoption.wakes(), l.audit.wakes(), l.requests.successors.act(now),
	} {
		if t > now {
			at = min(at, t)
		}
	}
	return max(0, at-now)
}
