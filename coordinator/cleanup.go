package coordinator

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/revoke"
)

const (
	// compactChecks is how often per interval the leader checks how etcd grows.
	compactChecks = 5
	// compactGrowth is the number of revisions from which it does not wait for the
	// interval: about 100 MB of history if values are small. compactBytes is the growth of the
	// database from which it does not: a revision can have a MiB, and an etcd has 2 GiB by default.
	compactGrowth = 500_000
	compactBytes  = 256 << 20
	// compactCheck bounds the pause between two checks.
	compactCheck = 10 * time.Second
)

// compaction compacts etcd's history. It keeps one interval, so that a watch that was
// interrupted for less can continue.
type compaction struct {
	cfg     Config
	metrics *metrics
	etcd    store.Compacter

	since time.Time // when rev was current
	rev   int64     // 0: not known yet
	least int64     // that etcd has used since then, in bytes
}

// run compacts until ctx ends, if the backend, the settings and etcd allow it.
func (c *compaction) run(ctx context.Context) error {
	if c.etcd == nil || c.cfg.CompactInterval < 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	ticker := time.NewTicker(min(c.cfg.CompactInterval/compactChecks, compactCheck))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		err := c.check(ctx, time.Now())
		if errors.Is(err, store.ErrDenied) {
			c.cfg.Logger.Warn("etcd lets no user but root compact: set --auto-compaction-mode and --auto-compaction-retention of its members", "error", err)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		if err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("etcd was not compacted, trying again", "error", err)
		}
	}
}

// check compacts if that is due.
func (c *compaction) check(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	resp, err := c.cfg.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(c.cfg.Keys.Limits()), CountOnly: true})
	if err != nil {
		return err
	}
	rev := resp.Header.Revision
	if rev < c.rev {
		c.rev = 0 // etcd was restored from a backup
	}
	used, err := c.etcd.Used(ctx)
	if err != nil {
		return err
	}
	c.least = min(c.least, used)
	few := rev-c.rev < compactGrowth && used-c.least < compactBytes
	if c.rev > 0 && now.Sub(c.since) < c.cfg.CompactInterval && few {
		return nil
	}
	if c.rev > 0 {
		if err := c.etcd.Compact(ctx, c.rev); err != nil {
			return err
		}
		c.metrics.compactions.Inc()
	}
	c.since, c.rev, c.least = now, rev, used
	return nil
}

// revokeEvery is the pause between two searches for claims of ended runs: each reads all
// pools.
const revokeEvery = time.Second

// claimRevoker revokes the claims of runs that have ended, or have lost their executor: those
// that belong to them, and not those of others that only name them: see [run.Record.Owns]. It
// works asynchronously: ticks do not wait for it.
type claimRevoker struct {
	cfg     Config
	metrics *metrics
	wake    chan struct{} // coalesces

	asked map[claim]bool // claims that were revoked

	mu   sync.Mutex // guards what follows
	runs map[string]ending
}

// ending is the end of a run, or of an attempt of its executor.
type ending struct {
	// rev is the revision up to which claims of the run were granted that are revoked.
	rev int64
	// of is the run as it ended: it tells which of the claims that name the run belong to it.
	of *run.Run
	// searched: its claims were searched for once. Those of a run that has ended are searched for twice: a claim waits for some
	// milliseconds before others can see it.
	searched bool
}

// next returns the ending for the next search, false if none is needed.
func (e ending) next() (ending, bool) {
	again := e.rev == math.MaxInt64 && !e.searched
	e.searched = true
	return e, again
}

// claim identifies a claim: different instances may hold claims with the same id.
type claim struct {
	id    string
	fence store.Fence
}

func newClaimRevoker(cfg Config, m *metrics) *claimRevoker {
	return &claimRevoker{cfg: cfg, metrics: m, wake: make(chan struct{}, 1), runs: map[string]ending{}}
}

// add adds runs, with how they ended.
func (l *claimRevoker) add(runs map[string]ending) {
	if len(runs) == 0 {
		return
	}
	l.mu.Lock()
	maps.Copy(l.runs, runs) // replaces an older revision
	l.mu.Unlock()
	clear(runs)
	l.poke()
}

// again adds runs that are to be searched for once more, unless they were added again meanwhile.
func (l *claimRevoker) again(runs map[string]ending) {
	if len(runs) == 0 {
		return
	}
	l.mu.Lock()
	for id, e := range runs {
		if _, news := l.runs[id]; !news {
			l.runs[id] = e
		}
	}
	l.mu.Unlock()
	l.poke()
}

func (l *claimRevoker) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take removes and returns all runs.
func (l *claimRevoker) take() map[string]ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	runs := l.runs
	l.runs = map[string]ending{}
	return runs
}

func (l *claimRevoker) run(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	troubled := false
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		runs := l.take()
		err := l.free(ctx, runs)
		if err != nil && ctx.Err() == nil && !troubled { // once in a row
			l.cfg.Logger.Warn("claims of ended runs could not be revoked, trying again", "error", err)
		}
		if err == nil {
			for id, e := range runs {
				var more bool
				if runs[id], more = e.next(); !more {
					delete(runs, id)
				}
			}
		}
		l.again(runs)
		troubled = err != nil
		pause.Reset(revokeEvery)
	}
}

// free revokes the claims of runs.
func (l *claimRevoker) free(ctx context.Context, runs map[string]ending) error {
	ctx, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	pools, err := list.Read(ctx, l.cfg.Backend, l.cfg.Keys)
	if err != nil {
		return err
	}
	held, waiting := pools.Claims()
	still := map[claim]bool{}
	for _, h := range held { // the others are not held any more
		if c := (claim{h.Claim, h.Fence}); l.asked[c] {
			still[c] = true
		}
	}
	l.asked = still
	revoker := revoke.Revoker{Backend: l.cfg.Backend, Keys: l.cfg.Keys}
	members := &members{steps: step.Store{Backend: l.cfg.Backend, Keys: l.cfg.Keys}}
	for _, h := range held {
		e, ended := runs[h.Run]
		if !ended || h.Granted > e.rev || l.asked[claim{h.Claim, h.Fence}] {
			continue
		}
		if belongs, err := members.own(ctx, e.of, h.Holder); err != nil {
			return err
		} else if !belongs {
			continue
		}
		l.cfg.Logger.Info("revoking a claim of an ended run", "run", h.Run, "claim", h.Claim, "host", h.Host)
		if h.Bind == run.BindBridge { // there is no holder to stop
			if err := revoker.FreeBridge(ctx, pools, h.Claim, h.Fence); err != nil && problem.CodeOf(err) != problem.ClaimNotFound {
				return err
			}
			l.metrics.freed.Inc()
			continue
		}
		if err := revoker.RequestRevocation(ctx, h.Host, h.Claim, h.Fence); err != nil {
			return err
		}
		l.asked[claim{h.Claim, h.Fence}] = true
		l.metrics.freed.Inc()
	}
	for _, w := range waiting {
		e := runs[w.Run]
		if e.rev < math.MaxInt64 {
			continue // it has not ended
		}
		if belongs, err := members.own(ctx, e.of, w.Holder); err != nil {
			return err
		} else if !belongs {
			continue
		}
		l.cfg.Logger.Info("withdrawing a waiting claim of an ended run", "run", w.Run, "claim", w.Claim, "host", w.Host)
		if err := revoker.RequestWithdrawal(ctx, w.Host, w.Claim); err != nil {
			return err
		}
	}
	return nil
}

// members finds out which of the claims that name runs belong to them.
type members struct {
	steps step.Store
	// executors are those of the step instances of runs, read when a claim needs them.
	executors map[string][]run.Executor
}

// own reports whether a claim that names a run belongs to it.
func (m *members) own(ctx context.Context, r *run.Run, h pool.Holder) (bool, error) {
	if r.Owns(h) {
		return true, nil
	}
	all, known := m.executors[r.ID]
	if !known && r.Steps > 0 {
		var err error
		if all, err = m.steps.Executors(ctx, r.ID); err != nil {
			return false, err
		}
	}
	if m.executors == nil {
		m.executors = map[string][]run.Executor{}
	}
	m.executors[r.ID] = all
	return slices.ContainsFunc(all, func(e run.Executor) bool { return e.Owns(h) }), nil
}

const (
	// deleteKeys bounds the keys that one write deletes, which blocks etcd.
	deleteKeys = 5000
	// deletePause is the pause after a failed write.
	deletePause = time.Second
)

// stepDeleter deletes the keys of the steps of runs whose records are deleted: up to
// 400,000 keys each, in many writes. It works asynchronously: ticks do not wait for it. The
// graph is deleted last: as long as it exists, any leader finds the remaining keys.
type stepDeleter struct {
	cfg  Config
	wake chan struct{} // coalesces

	mu   sync.Mutex // guards what follows
	runs map[string]bool
}

func newStepDeleter(cfg Config) *stepDeleter {
	return &stepDeleter{cfg: cfg, wake: make(chan struct{}, 1), runs: map[string]bool{}}
}

// add adds a run. Its steps are deleted if it has no record.
func (f *stepDeleter) add(id string) {
	f.mu.Lock()
	f.runs[id] = true
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// next removes and returns a run.
func (f *stepDeleter) next() (id string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.runs {
		delete(f.runs, id)
		return id, true
	}
	return "", false
}

func (f *stepDeleter) run(ctx context.Context) error {
	troubled := false
	for {
		select {
		case <-f.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for id, ok := f.next(); ok; id, ok = f.next() {
			err := f.delete(ctx, id)
			if err != nil && ctx.Err() == nil {
				if !troubled { // once in a row
					f.cfg.Logger.Warn("the steps of a deleted run could not be deleted, trying again", "run", id, "error", err)
				}
				f.add(id)
				select {
				case <-time.After(deletePause):
				case <-ctx.Done():
				}
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			troubled = err != nil
		}
	}
}

// delete deletes the keys of the steps of a run. It stops if the run has a record: then it
// was submitted again, or was not deleted.
func (f *stepDeleter) delete(ctx context.Context, id string) error {
	keys := f.cfg.Keys
	for _, prefix := range []string{keys.Steps(id), keys.Works(id), keys.CanceledSteps(id)} {
		for more := true; more; {
			var err error
			if more, err = f.some(ctx, id, prefix); err != nil {
				return unlessChanged(err)
			}
		}
	}
	return unlessChanged(f.commit(ctx, id, store.Delete(keys.Canceled(id)), store.Delete(keys.Graph(id))))
}

func unlessChanged(err error) error {
	if errors.Is(err, store.ErrChanged) {
		return nil
	}
	return err
}

// some deletes the first keys under a prefix, and reports whether there are more.
func (f *stepDeleter) some(ctx context.Context, id, prefix string) (more bool, err error) {
	try, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	resp, err := f.cfg.Backend.Range(try, &pb.RangeRequest{
		Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), Limit: deleteKeys, KeysOnly: true,
	})
	if err != nil || len(resp.Kvs) == 0 {
		return false, err
	}
	last := string(resp.Kvs[len(resp.Kvs)-1].Key)
	return resp.More, f.commit(try, id, store.DeleteUpTo(prefix, last))
}

func (f *stepDeleter) commit(ctx context.Context, id string, ops ...*pb.RequestOp) error {
	ctx, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	_, err := store.Commit(ctx, f.cfg.Backend, []*pb.Compare{store.CreateEquals(f.cfg.Keys.Run(id), 0)}, ops...)
	return err
}
