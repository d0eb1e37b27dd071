package lease

import (
	"time"

	"github.com/berthhq/berth/internal/grace"
)

const (
	// tickEvery is how often the clock is checked: for validity that has ended and
	// for renewals that are due.
	tickEvery = grace.CheckInterval
	// renewals is how many fit into a time to live: one each third of it.
	renewals = 3
	// minTry and maxTry bound the wait for one answer. An answer of a healthy
	// etcd under load comes within the smaller one; nothing is gained by waiting
	// longer than the larger one, another try may go through another endpoint.
	minTry = 500 * time.Millisecond
	maxTry = 2 * time.Second
	// maxPause bounds the pause between two tries, and with it how long after
	// etcd's return a lease is renewed or made.
	maxPause = 2 * time.Second
	// firstPause is the one after the first failed grant; later ones grow.
	firstPause = 100 * time.Millisecond
)

// renewAfter is the time from sending one renewal until the next is due: a third
// of the time to live, less the tick by which it may be noticed late.
func renewAfter(ttl time.Duration) time.Duration { return max(0, ttl/renewals-tickEvery) }

// tryTimeout bounds one try to renew or make a lease. A sixth of the time to
// live lets even the shortest lease (5 s) be tried three times before it is lost.
func tryTimeout(ttl time.Duration) time.Duration { return min(max(ttl/6, minTry), maxTry) }

// retryPause is the least time from sending a renewal that failed to the next
// try. One that hung until its deadline is followed at once.
func retryPause(ttl time.Duration) time.Duration { return min(max(ttl/30, tickEvery), maxPause) }
