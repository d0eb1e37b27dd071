package server

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

// Turns bounds how much of one kind is done at the same time, such as large reads: in total, and
// for one identity. What is above a bound waits for its turn: the identity for which least is
// done comes first, so none waits for the many requests of another one.
type Turns struct {
	cfg TurnsConfig

	// mu guards what follows.
	mu      sync.Mutex
	doing   map[string]int // by [KeyOf]
	all     int
	waiting []*turn        // in the order of their requests
	queued  map[string]int // how many of them each key has
}

// turn is a request that waits.
type turn struct {
	key  string
	come chan struct{} // closed when its turn has come
}

// TurnsConfig describes [Turns].
type TurnsConfig struct {
	// Bound is the label of the metric of refusals.
	Bound string
	// What is done, in the plural, and Todo what to do about too many: both for messages.
	What, Todo string
	// Total and Each bound what is done at the same time, in total and for one identity;
	// Waiting bounds what waits of one identity, and Patience for how long.
	Total, Each, Waiting int
	Patience             time.Duration
	// Metrics are nil to count nothing.
	Metrics *Metrics
}

// NewTurns returns turns of which none is taken.
func NewTurns(c TurnsConfig) *Turns {
	return &Turns{cfg: c, doing: map[string]int{}, queued: map[string]int{}}
}

// Enter waits for a turn of who sent a request, which lasts until leave is called, once. If too
// many wait, or for too long, it returns a too_many_requests problem.
func (t *Turns) Enter(ctx context.Context) (leave func(), err error) {
	key := KeyOf(ctx)
	one, err := t.take(key)
	if err != nil {
		return nil, err
	}
	leave = func() { t.leave(key) }
	if one == nil {
		return leave, nil
	}
	patience := time.NewTimer(t.cfg.Patience)
	defer patience.Stop()
	select {
	case <-one.come:
		return leave, nil
	case <-patience.C:
	case <-ctx.Done():
	}
	if !t.withdraw(one) {
		return leave, nil // its turn has come meanwhile
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, context.Cause(ctx)
	}
	return nil, t.refused("%d %s of %s are under way, which is the most that is allowed for one identity or in total, and none has ended in time: %s",
		t.Of(key), t.cfg.What, problem.Clip(key), t.cfg.Todo)
}

// take takes a turn, or returns one that waits.
func (t *Turns) take(key string) (*turn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free(key) {
		t.begin(key)
		return nil, nil
	}
	if t.queued[key] >= t.cfg.Waiting {
		return nil, t.refused("%d %s of %s wait already, which is the most that is allowed for one identity: %s", t.cfg.Waiting, t.cfg.What, problem.Clip(key), t.cfg.Todo)
	}
	one := &turn{key: key, come: make(chan struct{})}
	t.waiting = append(t.waiting, one)
	t.queued[key]++
	return one, nil
}

func (t *Turns) free(key string) bool { return t.all < t.cfg.Total && t.doing[key] < t.cfg.Each }

func (t *Turns) begin(key string) {
	t.all++
	t.doing[key]++
}

// leave ends a turn, and begins the next ones.
func (t *Turns) leave(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	less(t.doing, key)
	for t.all < t.cfg.Total {
		var next *turn
		for _, one := range t.waiting {
			if t.free(one.key) && (next == nil || t.doing[one.key] < t.doing[next.key]) {
				next = one
			}
		}
		if next == nil {
			return
		}
		t.remove(next)
		t.begin(next.key)
		close(next.come)
	}
}

// withdraw removes a turn that waits. It reports false if its turn has come.
func (t *Turns) withdraw(one *turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.waiting, one) {
		return false
	}
	t.remove(one)
	return true
}

func (t *Turns) remove(one *turn) {
	t.waiting = slices.DeleteFunc(t.waiting, func(o *turn) bool { return o == one })
	less(t.queued, one.key)
}

func less(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

func (t *Turns) refused(format string, args ...any) error {
	if t.cfg.Metrics != nil {
		t.cfg.Metrics.Refused(t.cfg.Bound)
	}
	return problem.New(problem.TooManyRequests, format, args...)
}

// Of returns how many turns a key has now.
func (t *Turns) Of(key string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.doing[key]
}
