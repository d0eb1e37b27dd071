package lograte

import (
	"strings"
	"time"
)

// Repeat is how long after a line of a failing try the next one with the same reason is logged.
const Repeat = time.Minute

// Tries passes the errors of what is tried until it succeeds: the first, each with another reason, and one
// in [Repeat]. The zero value is ready. It is not safe for concurrent use.
type Tries struct {
	reason string
	logged time.Time
}

// Allow reports whether the error of a try is to be logged. Digits are no part of a reason: an error often says how
// long something still takes.
func (t *Tries) Allow(err error) bool {
	reason := strings.Map(func(r rune) rune {
		if r == '.' || '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, err.Error())
	now := time.Now()
	if reason == t.reason && now.Sub(t.logged) < Repeat {
		return false
	}
	t.reason, t.logged = reason, now
	return true
}
