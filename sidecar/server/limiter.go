package server

import (
	"context"
	"sync"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
)

// Limiter bounds what is open at the same time, such as streams: in total, and of one identity,
// so that no identity takes all.
type Limiter struct {
	bound       string // the label of the metric
	what, todo  string
	total, each int
	metrics     *Metrics // nil counts nothing

	// mu guards what follows.
	mu   sync.Mutex
	open map[string]int // by [KeyOf]
	all  int
}

// LimiterConfig describes a [Limiter].
type LimiterConfig struct {
	// Bound is the label of the metric of refusals.
	Bound string
	// What is counted, in the plural, and Todo what to do about too many: both for messages.
	What, Todo string
	// Total and Each bound what is open in total, and of one identity.
	Total, Each int
	// Metrics are nil to count nothing.
	Metrics *Metrics
}

// NewLimiter returns a limiter of which nothing is open.
func NewLimiter(c LimiterConfig) *Limiter {
	return &Limiter{
		bound: c.Bound, what: c.What, todo: c.Todo, total: c.Total, each: c.Each, metrics: c.Metrics, open: map[string]int{},
	}
}

// KeyOf returns whom a request counts for: its identity, or its address if that is anonymous, as
// [access.SourceOf] has it.
func KeyOf(ctx context.Context) string {
	id := access.Of(ctx)
	if id.Authenticated() {
		return id.String()
	}
	if from := AddressOf(ctx); from != "" {
		return access.SourceOf(from)
	}
	return id.String()
}

// Enter opens one more for a key of [KeyOf], until leave is called, once. Above a bound it
// returns a too_many_requests problem.
func (l *Limiter) Enter(key string) (leave func(), err error) { return l.EnterAs(key, 1) }

// EnterAs is [Limiter.Enter] for one that counts as n, from 1 on.
func (l *Limiter) EnterAs(key string, n int) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.all+n > l.total:
		err = problem.New(problem.TooManyRequests, "%d %s are open, which is the most that is allowed: %s", l.total, l.what, l.todo)
	case l.open[key]+n > l.each:
		err = problem.New(problem.TooManyRequests, "%d %s of %s are open, which is the most that is allowed for one identity: %s", l.each, l.what, problem.Clip(key), l.todo)
	default:
		l.all += n
		l.open[key] += n
		return func() { l.leave(key, n) }, nil
	}
	if l.metrics != nil {
		l.metrics.Refused(l.bound)
	}
	return nil, err
}

func (l *Limiter) leave(key string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all -= n
	if l.open[key] -= n; l.open[key] == 0 {
		delete(l.open, key)
	}
}

// Open returns how many are open.
func (l *Limiter) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}
