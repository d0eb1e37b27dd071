package pool

import (
	"sync"
)

// Places bound how many claims a holder can use at a time, of any pools: those of a
// worker, for example. A claim that has a [Place] is granted only when the place is taken,
// so no slots are taken that the holder can't use.
type Places struct {
	mu    sync.Mutex // guards free, and which places are taken
	free  int        // below 0 while more are taken by force than there are
	given chan struct{}
}

// Place is what one claim, or anything else that is to be counted with claims, takes of
// places. A nil Place is no bound.
type Place struct {
	of    *Places
	taken bool
	// lent: it was passed on, and was not given back since.
	lent bool
}

// NewPlaces returns places of which so many are free.
func NewPlaces(n int) *Places { return &Places{free: n, given: make(chan struct{}, 1)} }

// Free is how many are free, never below 0.
func (p *Places) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.free)
}

// Given has a message after a place was given back.
func (p *Places) Given() <-chan struct{} { return p.given }

// New returns a place that is not taken yet.
func (p *Places) New() *Place { return &Place{of: p} }

// Take takes the place, and reports whether it is taken: by this call or one before.
func (p *Place) Take() bool {
	if p == nil {
		return true
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken && p.of.free > 0 {
		p.taken = true
		p.of.free--
	}
	return p.taken
}

// Taken reports whether the place is taken; a nil one never is.
func (p *Place) Taken() bool {
	if p == nil {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.taken
}

// Available reports whether the place is taken already, or could be now. A nil one always is.
func (p *Place) Available() bool {
	if p == nil {
		return true
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.taken || p.of.free > 0
}

// Force takes the place even if none is free: for what is there already.
func (p *Place) Force() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken {
		p.taken = true
		p.of.free--
	}
}

// Give gives the place back, if it is taken.
func (p *Place) Give() {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.lent = false
	if !p.taken {
		return
	}
	p.taken = false
	p.of.free++
	select {
	case p.of.given <- struct{}{}:
	default: // there is a message already
	}
}

// Pass gives the place to another one, which is not taken. It reports whether it was taken,
// and so is passed on.
func (p *Place) Pass(to *Place) bool {
	if p == nil || to == nil || p.of != to.of {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken || to.taken {
		return false
	}
	p.taken, to.taken = false, true
	p.lent = true
	return true
}

// Return passes a place back to the one that it was passed on from. It is false if that was
// given back meanwhile: its owner would not give it back again.
func (p *Place) Return(to *Place) bool {
	if p == nil || to == nil || p.of != to.of {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken || !to.lent || to.taken {
		return false
	}
	p.taken, p.lent = false, false
	to.taken, to.lent = true, false
	return true
}
