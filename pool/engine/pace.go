package engine

import "time"

const (
	// firstPause and mostPause are for how long nothing is sent after a request that etcd did not carry out: doubled each time.
	firstPause = 20 * time.Millisecond
	mostPause  = 5 * time.Second
)

// pace has one request under way at a time, and spaces those that etcd does not carry out.
type pace struct {
	busy  bool // one is under way
	pause time.Duration
	after time.Duration // none is sent before
}

// free reports whether a request may be sent.
func (p *pace) free(now time.Duration) bool { return !p.busy && now >= p.after }

// begin records that a request is sent.
func (p *pace) begin() { p.busy = true }

// answered records whether a request was carried out.
func (p *pace) answered(err error, now time.Duration) {
	if err == nil {
		*p = pace{}
		return
	}
	p.busy = false
	p.pause = min(max(2*p.pause, firstPause), mostPause)
	p.after = now + p.pause
}
