package ui

import (
	"context"
	"sync"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

const (
	// aroundAge is how old it may be what stands around the runs.
	aroundAge = time.Second
	// aroundTimeout bounds the reading of it.
	aroundTimeout = 2 * time.Second
)

// surroundings are what runs are admitted by.
type surroundings struct {
	limits run.Limits
	// limitsWrong says why the limits are not known, if they can't be read.
	limitsWrong error
	candidates  []run.Candidate
	pools       []pool.Status
}

// around keeps the surroundings for all who look, and reads them once a second at most.
type around struct {
	mu  sync.Mutex
	at  time.Time
	now surroundings
	err error
}

// look returns the surroundings.
func (a *around) look(ctx context.Context, s *Session) (surroundings, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.IsZero() || time.Since(a.at) >= aroundAge {
		// They are read for others, too, who do not go away when this one does.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aroundTimeout)
		defer cancel()
		a.now, a.err = readAround(ctx, s)
		a.at = time.Now()
	}
	return a.now, a.err
}

func readAround(ctx context.Context, s *Session) (now surroundings, err error) {
	now.limits, _, err = s.Runs.Limits(ctx)
	if problem.CodeOf(err) == problem.CorruptValue {
		now.limitsWrong, err = err, nil
	}
	if err == nil {
		now.candidates, err = s.Runs.Candidates(ctx)
	}
	if err == nil {
		now.pools, err = s.Client.Pools(ctx) // of memory
	}
	return now, err
}
