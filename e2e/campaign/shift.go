//go:build linux

package main

import (
	"bufio"
	"context"
	"os"
	"sync"
	"time"
)

// shift follows the referee, which says when a load or a neighbor works and when it rests.
type shift struct {
	*witness

	mu     sync.Mutex // guards what follows
	rests  bool
	active int
	moved  chan struct{} // closed and replaced when one of them changes
	n      int
}

func newShift(w *witness) *shift {
	return &shift{witness: w, rests: true, moved: make(chan struct{})}
}

// begin reports to the referee, and follows it from then on.
func (s *shift) begin() {
	s.tell(record{What: "hello"})
	go s.obey()
	go s.announce()
}

// obey follows the referee. Without it there is nothing to do.
func (s *shift) obey() {
	for lines := bufio.NewScanner(s.conn); lines.Scan(); {
		s.change(func() { s.rests = lines.Text() == "rest" })
	}
	os.Exit(0)
}

func (s *shift) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.moved)
	s.moved = make(chan struct{})
}

// announce tells the referee whenever the process rests and has nothing under way.
func (s *shift) announce() {
	for was := false; ; {
		s.mu.Lock()
		idle, moved := s.rests && s.active == 0, s.moved
		s.mu.Unlock()
		if idle && !was {
			s.tell(record{What: "idle"})
		}
		was = idle
		<-moved
	}
}

// enter waits while the process rests, and returns the number of what is under way from then on.
func (s *shift) enter() int {
	for {
		s.mu.Lock()
		rests, moved := s.rests, s.moved
		if !rests {
			s.active++
			s.n++
			n := s.n
			s.mu.Unlock()
			return n
		}
		s.mu.Unlock()
		<-moved
	}
}

// leave ends what enter has begun.
func (s *shift) leave() { s.change(func() { s.active-- }) }

// await waits until what is said of the shift is so, or ctx ends.
func (s *shift) await(ctx context.Context, so func(rests bool, active int) bool) {
	for {
		s.mu.Lock()
		yes, moved := so(s.rests, s.active), s.moved
		s.mu.Unlock()
		if yes {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// working returns a context that ends when the process rests.
func (s *shift) working() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		s.await(ctx, func(rests bool, _ int) bool { return rests })
		cancel()
	}()
	return ctx, cancel
}

// hold reports a claim until its time is over, or valid says that it has ended: it is
// asked after the clock was read, so that what is reported was so. A claim of a kept pool ends when
// the process rests.
func (s *shift) hold(rec record, lasts time.Duration, ended <-chan struct{}, valid func() bool) {
	at := now()
	if !valid() {
		return
	}
	rec.What, rec.At = "begin", at
	s.tell(rec)
	last := at
	var rests <-chan struct{}
	if kept(rec.Slots) {
		ctx, cancel := s.working()
		defer cancel()
		rests = ctx.Done()
	}
	for end := time.After(lasts); ; {
		over := false
		select {
		case <-end:
			over = true
		case <-rests:
			over = true
		case <-ended:
			over = true
		case <-time.After(beatEach):
		}
		at := now()
		if !valid() {
			over = true
		} else {
			last = at
		}
		if over {
			s.tell(record{What: "end", Job: rec.Job, At: last})
			return
		}
		s.tell(record{What: "beat", Job: rec.Job, At: last})
	}
}
