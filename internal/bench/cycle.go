package bench

import (
	"errors"
	"slices"
	"time"
)

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
