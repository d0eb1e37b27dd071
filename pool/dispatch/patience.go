package dispatch

import (
	"slices"
	"time"

	"github.com/berthhq/berth/pool/wire"
)

const (
	// markPatience is how long role and mark are the same before the dispatcher counts as silent: twice the second in which a
	// dispatcher that lives puts the mark.
	markPatience = 2 * time.Second
	// maxPatience bounds markPatience, which doubles with each take-over for silence of the last minute: a dispatcher that is
	// slow, but lives, must not be replaced again and again by others that are as slow.
	maxPatience = 24 * time.Second
	// patienceSpread is the most that is added by the hash of the instance, so that instances do not take the role at the
	// same moment. Coordinators add nothing: they go first.
	patienceSpread = 500 * time.Millisecond
	// remembered is how long a take-over for silence counts.
	remembered = time.Minute
	// keptTakeOvers bounds the take-overs in the value of the role. Four of them make the patience the longest.
	keptTakeOvers = 16

	// servicePause and commandPause are the times, doubled by the hash of the instance at most, that processes leave a vacant
	// role to those that live longer: a put in etcd takes a few milliseconds. Servers and coordinators take it immediately.
	servicePause = 10 * time.Millisecond
	commandPause = 20 * time.Millisecond

	// wellAnswered is the longest that etcd takes for a poll if it is well. A dispatcher can put the mark each second only
	// through an etcd that answers in such a time.
	wellAnswered = 1500 * time.Millisecond
	// minProbation and maxProbation are how long polls must be well answered before an instance that was replaced for
	// silence takes the role from another one. It doubles each time.
	minProbation = 10 * time.Second
	maxProbation = 5 * time.Minute
	// pollGap is the longest time between an answer and the next poll: claims that wait are polled at least each 5 s, and a
	// second is for what delays the process. A process that was stopped for longer is not well.
	pollGap = 6 * time.Second
)

// spread returns a part of a time that depends on the hash.
func spread(hash uint32, most time.Duration) time.Duration {
	return time.Duration(hash%10_000) * most / 10_000
}

// pauseOf returns how long a kind of process leaves a vacant role to others.
func pauseOf(kind wire.Kind, hash uint32) time.Duration {
	switch kind {
	case wire.Command:
		return commandPause + spread(hash, commandPause)
	case wire.Service:
		return servicePause + spread(hash, servicePause)
	}
	return 0
}

// patienceOf returns how long an instance waits for a sign of life after some take-overs for silence.
func patienceOf(kind wire.Kind, hash uint32, takeOvers int) time.Duration {
	p := markPatience
	for range takeOvers {
		p = min(2*p, maxPatience)
	}
	if kind != wire.Coordinator {
		p += spread(hash, patienceSpread)
	}
	return p
}

// recent returns the take-overs that count at a time, the last ones of many. One in the future counts too, as clocks differ,
// but not by more than it is remembered.
func recent(takeOvers []time.Time, wall time.Time) (all []time.Time) {
	for _, t := range takeOvers {
		if d := wall.Sub(t); d < remembered && d > -remembered {
			all = append(all, t)
		}
	}
	return all[max(0, len(all)-keptTakeOvers):]
}

// isNew reports whether there is a take-over that is not among those known.
func isNew(takeOvers, known []time.Time) bool {
	return slices.ContainsFunc(takeOvers, func(t time.Time) bool {
		return !slices.ContainsFunc(known, t.Equal)
	})
}

// probation is how an instance that was replaced for silence shows that it is well again.
type probation struct {
	serving  bool
	length   time.Duration // of this one, or of the last one
	well     time.Duration // since when etcd has answered each poll in time
	answered time.Duration // when it has answered the last one
}

// begin starts a probation at the time at which an instance has seen that it was replaced for silence. It had dispatched
// for some time: one that is as long as the longest probation shows that it was well.
func (p *probation) begin(now, dispatched time.Duration) {
	p.length = min(2*p.length, maxProbation)
	if p.length == 0 || dispatched >= maxProbation {
		p.length = minProbation
	}
	p.serving, p.well = true, now
}

// poll records that a poll was sent and answered, or was not answered.
func (p *probation) poll(now, sent time.Duration, answered bool) {
	if !answered || now-sent > wellAnswered || sent-p.answered > pollGap {
		p.well = now
	}
	p.answered = now
	if now-p.well >= p.length {
		p.serving = false
	}
}
