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

// cycle is one claim, in times since the load began. One that is kept is never
// released.
type cycle struct {
	asked, granted, releasing, released time.Duration
	kept                                bool
}

// window is the part of a load that counts.
type window struct{ begin, end time.Duration }

func (w window) has(t time.Duration) bool { return t >= w.begin && t < w.end }

func (w window) length() time.Duration { return w.end - w.begin }

// clip returns how much of a span lies in the window.
func (w window) clip(from, to time.Duration) time.Duration {
	return max(0, min(to, w.end)-max(from, w.begin))
}

// outcome is what one load came to.
type outcome struct {
	perSecond float64
	claim     []time.Duration // from the asking to the grant
	release   []time.Duration
	held      []time.Duration
	handOver  []time.Duration // only of a pool that was full
	used      float64         // share of the slots' time; 0 of a pool that was not full
}

// errOverfull means that more was granted than there were slots. It is checked
// for because the figures would mean nothing.
var errOverfull = errors.New("more claims were granted at a time than there are slots")

// errNone means that there is nothing to compute figures from.
var errNone = errors.New("no claim was granted, handed over and released in the time that was measured")

// analyze computes the figures of a load from its cycles. With slots above 0 the
// pool was full: there were always more clients than slots.
func analyze(cycles []cycle, w window, slots int) (outcome, error) {
	var o outcome
	var used time.Duration
	kept := 0
	for _, c := range cycles {
		if w.has(c.granted) {
			o.claim = append(o.claim, c.granted-c.asked)
		}
		if c.kept {
			kept++
			continue
		}
		if w.has(c.granted) {
			o.held = append(o.held, c.releasing-c.granted)
		}
		if w.has(c.released) {
			o.release = append(o.release, c.released-c.releasing)
		}
		used += w.clip(c.granted, c.releasing)
	}
	if len(o.claim) == 0 || len(o.release) == 0 && kept == 0 {
		return o, errNone
	}
	o.perSecond = float64(len(o.claim)) / w.length().Seconds()
	if slots == 0 {
		return o, nil
	}
	o.used = float64(used) / float64(w.length()) / float64(slots)
	var err error
	o.handOver, err = handOvers(cycles, w, slots)
	return o, err
}

// handOvers pairs each release with the grant that it made possible: see the
// package's comment. The cycles are all of a load that began with free slots.
func handOvers(cycles []cycle, w window, slots int) ([]time.Duration, error) {
	grants := make([]time.Duration, 0, len(cycles))
	releases := make([]time.Duration, 0, len(cycles))
	for _, c := range cycles {
		grants = append(grants, c.granted)
		releases = append(releases, c.releasing)
	}
	slices.Sort(grants)
	slices.Sort(releases)
	var all []time.Duration
	for k := slots; k < len(grants); k++ {
		d := grants[k] - releases[k-slots]
		if d < 0 {
			return nil, errOverfull
		}
		if w.has(grants[k]) {
			all = append(all, d)
		}
	}
	return all, nil
}
