package audit

import (
	"sync"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
)

const (
	// MaxActions bounds the actions that one identity takes within ActionsWindow: each is recorded,
	// and some 100 MB of records are kept for a day.
	MaxActions    = 1000
	ActionsWindow = 10 * time.Minute
)

// Bounds bounds what callers of one process have recorded and logged. The zero value is ready. Who
// may operate everything is not bounded.
type Bounds struct {
	// Failed bounds how often actions that fail are logged.
	Failed lograte.Limit
	// Refused is called for each action that is refused; nil for nothing.
	Refused func()

	// mu guards what follows.
	mu    sync.Mutex
	begun time.Time      // of the window
	of    map[string]int // actions within it, by identity
}

// take counts an action, or returns why the caller may not take it now.
func (b *Bounds) take(by access.Identity, now time.Time) error {
	if by.Allow(access.Operate, access.Everything) == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if age := now.Sub(b.begun); b.of == nil || age >= ActionsWindow || age < 0 {
		b.begun, b.of = now, map[string]int{}
	}
	who := by.String()
	if b.of[who] < MaxActions {
		b.of[who]++
		return nil
	}
	if b.Refused != nil {
		b.Refused()
	}
	return problem.New(problem.TooManyRequests, "%s has taken %d actions, which is the most within %s for one identity that may not operate everything: take this one later", problem.Clip(who), MaxActions, ActionsWindow)
}
