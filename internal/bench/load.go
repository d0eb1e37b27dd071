package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// door is a way to claim. Clients are numbered from 0.
type door interface {
	// claim returns once the claim is granted; nil is one that is kept.
	claim(ctx context.Context, client int) (held, error)
	// close gives up what the door had opened.
	close() error
}

// preparer is a door with something to do before each claim, which does not count.
type preparer interface {
	prepare(ctx context.Context, client int) error
}

// tidier is a door that leaves behind what would be in the next round's way.
type tidier interface {
	tidy(ctx context.Context) error
}

// held is a claim that was granted.
type held interface {
	// Release returns once the slots are free.
	Release(ctx context.Context) error
}

const (
	// warmShare is the part of a load's measured time that it runs before.
	warmShare = 4
	// patience is how much longer than planned a load may take, patienceEach how
	// long a claim of one that is counted.
	patience     = time.Minute
	patienceEach = 10 * time.Millisecond
)

// load is clients that claim and release in a closed loop.
type load struct {
	door    door
	clients int
	hold    time.Duration
	slots   int // of a pool that is full, else 0
	// measure is how long, or count how many claims: then all of them count.
	measure time.Duration
	count   int
}

// run drives the load and returns what it came to. If nothing got done in the
// time to measure, it tries for longer.
func (l load) run(ctx context.Context) (outcome, error) {
	for {
		o, err := l.once(ctx)
		if !errors.Is(err, errNone) || l.measure > patience {
			return o, err
		}
		l.measure *= 2
	}
}

// round runs the load, and tidies up behind it.
func (l load) round(ctx context.Context) (outcome, error) {
	o, err := l.run(ctx)
	if t, ok := l.door.(tidier); ok && err == nil {
		err = t.tidy(ctx)
	}
	return o, err
}

// once drives the load once. Claims under way at the end are granted and
// released, so that nothing is left.
func (l load) once(ctx context.Context) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, l.limit())
	defer cancel()
	w := window{begin: l.measure / warmShare}
	w.end = w.begin + l.measure

	g, ctx := errgroup.WithContext(ctx)
	done := make([][]cycle, l.clients)
	var begun atomic.Int64 // claims, if they are counted
	base := time.Now()
	more := func() bool { return time.Since(base) < w.end }
	if l.count > 0 {
		more = func() bool { return begun.Add(1) <= int64(l.count) }
	}
	for i := range l.clients {
		g.Go(func() (err error) {
			done[i], err = l.client(ctx, i, base, more)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return outcome{}, err
	}
	if l.count > 0 {
		w = window{end: time.Since(base)}
	}
	o, err := analyze(slices.Concat(done...), w, l.slots)
	if err == nil && l.slots > 0 && len(o.handOver) == 0 {
		err = errNone
	}
	return o, err
}

// limit bounds the time that the load may take.
func (l load) limit() time.Duration {
	return 2*l.measure + patience + time.Duration(l.count)*patienceEach
}

// client claims and releases as long as there is more to do.
func (l load) client(ctx context.Context, i int, base time.Time, more func() bool) ([]cycle, error) {
	var cycles []cycle
	before, _ := l.door.(preparer)
	for more() {
		var c cycle
		if before != nil {
			if err := before.prepare(ctx, i); err != nil {
				return cycles, err
			}
		}
		c.asked = time.Since(base)
		h, err := l.door.claim(ctx, i)
		c.granted = time.Since(base)
		if err != nil {
			return cycles, fmt.Errorf("claim: %w", err)
		}
		if l.hold > 0 {
			time.Sleep(l.hold)
		}
		if h == nil {
			c.kept = true
			cycles = append(cycles, c)
			continue
		}
		c.releasing = time.Since(base)
		err = h.Release(ctx)
		c.released = time.Since(base)
		if err != nil {
			return cycles, fmt.Errorf("release: %w", err)
		}
		cycles = append(cycles, c)
	}
	return cycles, nil
}
