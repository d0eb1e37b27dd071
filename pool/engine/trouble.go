package engine

import (
	"context"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/owner"
)

// patience is for how long a claim that does not wait is tried while etcd does not answer.
const patience = 5 * time.Second

// errAway tells that etcd does not answer.
var errAway = problem.New(problem.EtcdUnavailable, "etcd does not answer; nothing was claimed")

// trouble returns why nothing can be claimed now, whatever is free; nil if there is no such reason.
func (l *loop) trouble() error {
	if l.owner.Space().Full() {
		return owner.ErrFull
	}
	for _, w := range []*writer{l.commits, l.queue} {
		if w.failed != nil {
			return store.Problem("etcd does not take this instance's writes", w.failed)
		}
	}
	if !l.prepared || l.e.contact.away() {
		return errAway
	}
	if err := l.e.cfg.Leases.Trouble(); err != nil {
		return store.Problem("no lease could be made", err)
	}
	return nil
}

// Trouble returns why nothing can be claimed now, whatever is free; nil if there is no such reason, or none is known within a
// second.
func (e *Engine) Trouble() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	why, _ := await(ctx, e, func(reply chan<- error) { reply <- e.trouble() })
	return why
}

// impatience returns the error for a claim that does not wait, and was neither granted nor refused for a while.
func (e *Engine) impatience() error {
	if err := e.Trouble(); err != nil {
		return err
	}
	return errSilent
}
