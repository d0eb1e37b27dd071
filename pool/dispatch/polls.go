package dispatch

import (
	"errors"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// polls is when role and mark are polled. Other polls of the instance that read them count too.
type polls struct {
	under  bool // one was asked for, and is under way
	asked  time.Duration
	last   time.Duration // when the last one was sent that was answered
	pause  time.Duration // until when none is sent, after one without an answer
	now    bool          // an outcome is unknown, and the next poll shows it
	denied bool
}

// want has the next poll sent as soon as possible.
func (p *polls) want() { p.now = true }

func (p *polls) answered(sent time.Duration) {
	p.under, p.denied, p.now, p.last = false, false, false, max(p.last, sent)
}

func (p *polls) failed(now time.Duration, err error) {
	p.under, p.denied, p.pause = false, errors.Is(err, store.ErrDenied), now+pollAgain
	if p.denied {
		p.pause = now + deniedAgain
	}
}

// next returns when a poll that is wanted at a time is asked for.
func (p *polls) next(at time.Duration) time.Duration {
	if p.now {
		at = 0
	}
	if p.under {
		return max(at, p.asked+pollLost)
	}
	return max(at, p.pause)
}

// due reports whether a poll that is wanted at a time is to be sent now. It then is under way.
func (p *polls) due(now, at time.Duration) bool {
	if p.next(at) > now {
		return false
	}
	p.under, p.asked = true, now
	return true
}
