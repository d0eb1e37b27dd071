package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// warmShare is the part of a load's measured time that it runs before.
	warmShare = 4
	// patience is how much longer than planned a load may take, patienceEach how
	// long a claim of a load that is counted.
	patience     = time.Minute
	patienceEach = 10 * time.Millisecond
)

// Load describes clients that claim and release in a closed loop.
type Load struct {
	Driver  Driver
	Clients int
	Hold    time.Duration
	// Duration is how long the load is measured.
	Duration time.Duration

	slots int // of a pool that is full, else 0
	// host, if it is not nil, returns which host a client is on: how long a host has no slot is
	// measured.
	host  func(client int) int
	count int // of claims that are measured instead of the duration
	// cut gives up the claims that wait at the end, for which the driver must be a fleet;
	// otherwise they are granted and released.
	cut   bool
	meter *Meter // of what it costs, or nil
}

// Round drives the load, and tidies up after it.
func (l Load) Round(ctx context.Context) (Outcome, error) {
	o, err := l.run(ctx)
	if t, ok := l.Driver.(Tidier); ok && err == nil {
		err = t.Tidy(ctx)
	}
	return o, err
}

// run drives the load and returns its outcome. If nothing was done in the time to
// measure, it tries for longer.
func (l Load) run(ctx context.Context) (Outcome, error) {
	for {
		o, err := l.once(ctx)
		if !errors.Is(err, errNone) || l.Duration > patience {
			return o, err
		}
		l.Duration *= 2
	}
}

// once drives the load once.
func (l Load) once(ctx context.Context) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, l.limit())
	defer cancel()
	w := l.window()

	g, ctx := errgroup.WithContext(ctx)
	done := make([][]cycle, l.Clients)
	var begun atomic.Int64 // claims, if they are counted
	base := time.Now()
	more := func() bool { return time.Since(base) < w.end }
	if l.count > 0 {
		more = func() bool { return begun.Add(1) <= int64(l.count) }
	}
	claim := l.Driver.Claim
	if l.cut {
		claim = func(ctx context.Context, client int) (Held, error) {
			return l.Driver.(fleet).claimUntil(ctx, client, base.Add(w.end))
		}
	}
	for i := range l.Clients {
		g.Go(func() (err error) {
			done[i], err = l.client(ctx, claim, i, base, more)
			return err
		})
	}
	var cpu Usage
	if l.meter != nil {
		g.Go(func() (err error) {
			cpu, err = l.meter.during(ctx, base, w)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return Outcome{}, err
	}
	if l.count > 0 {
		w = window{end: time.Since(base)}
	}
	o, err := analyze(slices.Concat(done...), w, l.slots)
	if err == nil && l.slots > 0 && len(o.transfer) == 0 {
		err = errNone
	}
	o.cpu = cpu
	for _, cycles := range done {
		o.grants = append(o.grants, w.grants(cycles))
	}
	if l.host != nil {
		byHost := map[int][]cycle{}
		for i, cycles := range done {
			byHost[l.host(i)] = append(byHost[l.host(i)], cycles...)
		}
		for _, cycles := range byHost {
			o.withoutSlot = max(o.withoutSlot, w.withoutSlot(cycles))
		}
	}
	return o, err
}

// window returns the part of the load that counts.
func (l Load) window() window {
	begin := l.Duration / warmShare
	return window{begin: begin, end: begin + l.Duration}
}

// limit bounds the time that the load may take.
func (l Load) limit() time.Duration {
	return 2*l.Duration + patience + time.Duration(l.count)*patienceEach
}

// client claims and releases as long as there is more to do.
func (l Load) client(ctx context.Context, claim func(context.Context, int) (Held, error), i int, base time.Time, more func() bool) ([]cycle, error) {
	var cycles blocks
	before, _ := l.Driver.(Preparer)
	for more() {
		var c cycle
		if before != nil {
			if err := before.Prepare(ctx, i); err != nil {
				return cycles.all(), err
			}
		}
		c.requested = time.Since(base)
		h, err := claim(ctx, i)
		c.granted = time.Since(base)
		if errors.Is(err, errCut) {
			cycles.add(cycle{requested: c.requested, cut: true})
			return cycles.all(), nil
		}
		if err != nil {
			return cycles.all(), fmt.Errorf("claim: %w", err)
		}
		var interrupted error
		if l.Hold > 0 {
			interrupted = sleep(ctx, l.Hold)
		}
		if h == nil {
			c.kept = true
			cycles.add(c)
			continue
		}
		c.releasing = time.Since(base)
		err = errors.Join(release(ctx, h), interrupted)
		c.released = time.Since(base)
		if err != nil {
			return cycles.all(), fmt.Errorf("release: %w", err)
		}
		cycles.add(c)
	}
	return cycles.all(), nil
}

// release releases a claim, also if the load was interrupted: an instance that holds claims
// takes long to close.
func release(ctx context.Context, h Held) error {
	err := h.Release(ctx)
	if err == nil || ctx.Err() == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseTimeout)
	defer cancel()
	return h.Release(ctx)
}

// cycle is one claim, in times since the load began. One that is kept is never
// released. One that is cut was never granted.
type cycle struct {
	requested, granted, releasing, released time.Duration
	kept, cut                               bool
}

// blocks is a list of cycles in blocks: a slice that grows is copied again and again, which would
// take a quarter of the time of claims that take microseconds.
type blocks [][]cycle

func (b *blocks) add(c cycle) {
	const size = 1000
	last := len(*b) - 1
	if last < 0 || len((*b)[last]) == size {
		*b = append(*b, make([]cycle, 0, size))
		last++
	}
	(*b)[last] = append((*b)[last], c)
}

func (b *blocks) all() []cycle { return slices.Concat(*b...) }

// window is the part of a load that counts.
type window struct{ begin, end time.Duration }

func (w window) has(t time.Duration) bool { return t >= w.begin && t < w.end }

func (w window) length() time.Duration { return w.end - w.begin }

// grants returns how many cycles of a client were granted in the window.
func (w window) grants(cycles []cycle) (n int) {
	for _, c := range cycles {
		if !c.cut && w.has(c.granted) {
			n++
		}
	}
	return n
}

// withoutSlot returns the longest time of the window in which none of some clients had a slot.
func (w window) withoutSlot(cycles []cycle) (longest time.Duration) {
	slices.SortFunc(cycles, func(a, b cycle) int { return cmp.Compare(a.granted, b.granted) })
	since := w.begin
	for _, c := range cycles {
		if c.cut {
			continue
		}
		longest = max(longest, min(c.granted, w.end)-since)
		since = max(since, c.releasing)
	}
	return max(longest, w.end-since)
}

// overlap returns how much of a span lies in the window.
func (w window) overlap(from, to time.Duration) time.Duration {
	return max(0, min(to, w.end)-max(from, w.begin))
}

// Outcome holds the measurements of one load.
type Outcome struct {
	PerSecond float64
	Claim     []time.Duration // from the request to the grant
	Release   []time.Duration
	held      []time.Duration
	transfer  []time.Duration // only of a pool that was full
	inUse     float64         // slots in use on average
	waiting   []time.Duration // of claims that were cut, until the end
	grants    []int           // by client
	cpu       Usage           // if it was metered
	// withoutSlot is the longest time in which a host had no slot.
	withoutSlot time.Duration
}

// errOverfull means that more slots were granted than exist, which would make the figures
// meaningless.
var errOverfull = errors.New("more claims were granted at a time than there are slots")

// errCut means that a claim was given up.
var errCut = errors.New("the claim was not granted until the end of the load")

// errNone means that there are no measurements from which to compute figures.
var errNone = errors.New("no claim was granted, transferred and released in the time that was measured")

// analyze computes the figures of a load from its cycles. With slots above 0 the
// pool was full: there were always more clients than slots.
func analyze(cycles []cycle, w window, slots int) (Outcome, error) {
	var o Outcome
	var used time.Duration
	kept := 0
	granted := make([]cycle, 0, len(cycles))
	for _, c := range cycles {
		if c.cut {
			o.waiting = append(o.waiting, w.end-c.requested)
			continue
		}
		granted = append(granted, c)
		if w.has(c.granted) {
			o.Claim = append(o.Claim, c.granted-c.requested)
		}
		if c.kept {
			kept++
			continue
		}
		if w.has(c.granted) {
			o.held = append(o.held, c.releasing-c.granted)
		}
		if w.has(c.released) {
			o.Release = append(o.Release, c.released-c.releasing)
		}
		used += w.overlap(c.granted, c.releasing)
	}
	if len(o.Claim) == 0 || len(o.Release) == 0 && kept == 0 {
		return o, errNone
	}
	o.PerSecond = float64(len(o.Claim)) / w.length().Seconds()
	o.inUse = float64(used) / float64(w.length())
	if slots == 0 {
		return o, nil
	}
	var err error
	o.transfer, err = transfers(granted, w, slots)
	return o, err
}

// transfers pairs each release with the grant that it made possible: see the
// package's comment. The cycles are all of a load that began with free slots.
func transfers(cycles []cycle, w window, slots int) ([]time.Duration, error) {
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
