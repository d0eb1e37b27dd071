package ui

import (
	"context"
	"sync"
	"time"
)

const (
	// glanceShare is how many times as long as a reading took it serves those who look
	// after it, up to glanceMost: so looking at a run of many instances takes a tenth of
	// what one reader could take, however many look.
	glanceShare = 9
	glanceMost  = 4 * time.Second
	// glances bounds the readings that are kept.
	glances = 64
)

// glance shares what was read among those who look at the same at the same time. What
// is shared is not to be changed.
type glance[T any] struct {
	mu   sync.Mutex
	some map[string]*glanced[T]
}

// glanced is one reading.
type glanced[T any] struct {
	turn  chan struct{} // holds one while somebody reads
	value T
	until time.Time // when it is too old; zero before the first
}

// get returns what was read under a key lately, or reads it. An error is everyone's own.
func (g *glance[T]) get(ctx context.Context, key string, read func(context.Context) (T, error)) (T, error) {
	var none T
	one := g.of(key)
	select {
	case one.turn <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	defer func() { <-one.turn }()
	begun := time.Now()
	if g.fresh(one, begun) {
		return one.value, nil
	}
	value, err := read(ctx)
	if err != nil {
		return none, err
	}
	now := time.Now()
	one.value = value
	g.mu.Lock()
	defer g.mu.Unlock()
	one.until = now.Add(min(glanceShare*now.Sub(begun), glanceMost))
	return value, nil
}

func (g *glance[T]) fresh(one *glanced[T], now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return now.Before(one.until)
}

// of returns the reading of a key, and forgets old ones where there are too many.
func (g *glance[T]) of(key string) *glanced[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.some[key]
	if one != nil {
		return one
	}
	if g.some == nil {
		g.some = map[string]*glanced[T]{}
	}
	now := time.Now()
	for other, o := range g.some {
		if len(g.some) < glances {
			break
		}
		if !now.Before(o.until) {
			delete(g.some, other)
		}
	}
	if len(g.some) >= glances {
		clear(g.some)
	}
	one = &glanced[T]{turn: make(chan struct{}, 1)}
	g.some[key] = one
	return one
}
