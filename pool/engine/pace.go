package engine

import "time"

const (
	// firstPause and mostPause are for how long nothing is sent after a transaction that etcd did not carry out: doubled each time.
	firstPause = 20 * time.Millisecond
	mostPause  = 5 * time.Second
)

// pace spaces transactions that etcd does not carry out.
type pace struct {
	pause time.Duration
	after time.Duration // nothing is sent before
}

// answered records whether a transaction was carried out.
func (p *pace) answered(err error, now time.Duration) {
	if err == nil {
		*p = pace{}
		return
	}
	p.pause = min(max(2*p.pause, firstPause), mostPause)
	p.after = now + p.pause
}
