package coordinator

import (
	"context"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// leftoversEvery is the pause between two looks for claims of runs that have ended:
// each reads all pools.
const leftoversEvery = time.Second

// leftovers takes back what runs hold that have ended, or were taken from their
// executor. It works beside the ticks, which do not wait for it.
type leftovers struct {
	cfg     Config
	metrics *metrics
	wake    chan struct{} // coalesces

	asked map[claim]bool // claims that were revoked

	mu   sync.Mutex       // guards what follows
	runs map[string]int64 // claims of older fences are to go
}

// claim names one claim: more than one instance may hold its id.
type claim struct {
	id    string
	fence int64
}

func newLeftovers(cfg Config, m *metrics) *leftovers {
	return &leftovers{cfg: cfg, metrics: m, wake: make(chan struct{}, 1), runs: map[string]int64{}}
}

// add takes runs over, with the revisions at which they ended.
func (l *leftovers) add(runs map[string]int64) {
	if len(runs) == 0 {
		return
	}
	l.mu.Lock()
	maps.Copy(l.runs, runs) // what was known of a run before is out of date
	l.mu.Unlock()
	clear(runs)
	l.poke()
}

// again puts back what could not be done, but for runs of which there is news.
func (l *leftovers) again(runs map[string]int64) {
	l.mu.Lock()
	for id, rev := range runs {
		if _, news := l.runs[id]; !news {
			l.runs[id] = rev
		}
	}
	l.mu.Unlock()
	l.poke()
}

func (l *leftovers) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take returns what there is to do, and leaves nothing.
func (l *leftovers) take() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	runs := l.runs
	l.runs = map[string]int64{}
	return runs
}

func (l *leftovers) run(ctx context.Context) error {
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
		if err != nil && ctx.Err() == nil {
			if !troubled { // once in a row
				l.cfg.Logger.Warn("claims of runs that have ended could not be taken back, trying again", "error", err)
			}
			l.again(runs)
		}
		troubled = err != nil
		pause.Reset(leftoversEvery)
	}
}

// free asks back what these runs hold.
func (l *leftovers) free(ctx context.Context, runs map[string]int64) error {
	ctx, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	pools, err := pool.Read(ctx, l.cfg.Backend, l.cfg.Keys)
	if err != nil {
		return err
	}
	held, waiting := pools.Claims()
	still := map[claim]bool{}
	for _, h := range held { // those that are not held any more are forgotten
		if c := (claim{h.Claim, h.Fence}); l.asked[c] {
			still[c] = true
		}
	}
	l.asked = still
	registry := pool.Registry{Backend: l.cfg.Backend, Keys: l.cfg.Keys}
	for _, h := range held {
		if rev, ended := runs[h.Run]; !ended || h.Fence > rev || l.asked[claim{h.Claim, h.Fence}] {
			continue
		}
		l.cfg.Logger.Info("taking back a claim of a run that has ended", "run", h.Run, "claim", h.Claim, "host", h.Host)
		if h.Bind == run.BindBridge { // nobody has to stop
			if err := registry.Free(ctx, pools, h.Claim, h.Fence); err != nil && problem.CodeOf(err) != problem.ClaimNotFound {
				return err
			}
			l.metrics.freed.Inc()
			continue
		}
		if err := registry.RequestRevocation(ctx, h.Host, h.Claim, h.Fence); err != nil {
			return err
		}
		l.asked[claim{h.Claim, h.Fence}] = true
		l.metrics.freed.Inc()
	}
	for _, w := range waiting {
		if runs[w.Run] < math.MaxInt64 {
			continue // it has not ended
		}
		l.cfg.Logger.Info("taking a claim out of the line whose run has ended", "run", w.Run, "claim", w.Claim, "host", w.Host)
		if err := registry.RequestWithdrawal(ctx, w.Host, w.Claim); err != nil {
			return err
		}
	}
	return nil
}
