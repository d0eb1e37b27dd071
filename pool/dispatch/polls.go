package dispatch

import (
	"errors"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// polls is when role and mark are polled. Other polls of the instance that read them count too.
type polls struct {
	last   time.Duration // when the last one was sent that was answered
	pause  time.Duration // until when none is sent, after one without an answer
	now    bool          // an outcome is unknown, and the next poll shows it
	denied bool
}

// want has the next poll sent as soon as possible.
func (p *polls) want() { p.now = true }

func (p *polls) answered(sent time.Duration) {
	p.denied, p.now, p.last = false, false, max(p.last, sent)
}

func (p *polls) failed(now time.Duration, err error) {
	p.denied, p.pause = errors.Is(err, store.ErrDenied), now+pollAgain
	if p.denied {
		p.pause = now + deniedAgain
	}
}

// next returns when a poll that is wanted at a time is to be sent.
func (p *polls) next(at time.Duration) time.Duration {
	if p.now {
		at = 0
	}
	return max(at, p.pause)
}
