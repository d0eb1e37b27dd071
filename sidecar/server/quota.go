package server

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// quota is an amount that requests share, of which those of one identity can have a part: so there is
// some for others, however slow one identity is. Unlike a [Limiter] it has requests wait.
type quota struct {
	total *semaphore.Weighted
	each  int64

	// mu guards what follows.
	mu sync.Mutex
	of map[string]*part // by [KeyOf]
}

// part is what one identity can have of a quota, while it has some or waits for it.
type part struct {
	left  *semaphore.Weighted
	users int
}

func newQuota(total, each int64) *quota {
	return &quota{total: semaphore.NewWeighted(total), each: each, of: map[string]*part{}}
}

// share is some of a quota. The zero share is none.
type share struct {
	of   *quota
	key  string
	size int64
}

// take takes a share for a key of [KeyOf], for which it waits for a time, twice at most. One that is
// larger than the part of an identity is the only one that this has. It reports false if there is none,
// and then whether the identity has its part already.
func (q *quota) take(ctx context.Context, wait time.Duration, key string, size int64) (s share, own, ok bool) {
	p, need := q.enter(key), min(size, q.each)
	if !acquire(ctx, wait, p.left, need) {
		q.leave(key, p)
		return share{}, true, false
	}
	if !acquire(ctx, wait, q.total, size) {
		p.left.Release(need)
		q.leave(key, p)
		return share{}, false, false
	}
	return share{q, key, size}, false, true
}

func acquire(ctx context.Context, wait time.Duration, of *semaphore.Weighted, size int64) bool {
	if of.TryAcquire(size) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return of.Acquire(ctx, size) == nil
}

func (s *share) end() {
	q := s.of
	if q == nil {
		return
	}
	q.total.Release(s.size)
	q.mu.Lock()
	p := q.of[s.key]
	q.mu.Unlock()
	p.left.Release(min(s.size, q.each))
	q.leave(s.key, p)
	*s = share{}
}

func (q *quota) enter(key string) *part {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.of[key]
	if p == nil {
		p = &part{left: semaphore.NewWeighted(q.each)}
		q.of[key] = p
	}
	p.users++
	return p
}

func (q *quota) leave(key string, p *part) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(q.of, key)
	}
}
