package dispatch

import (
	"maps"
	"time"

	"github.com/berthhq/berth/pool/wire"
)

// reason is why an instance takes the role, as it is counted.
type reason string

const (
	noReason  reason = ""
	vacant    reason = "vacant"    // nobody dispatches
	named     reason = "named"     // the one that ends names it
	outranked reason = "outranked" // its kind goes before that of the dispatcher
	orphaned  reason = "orphaned"  // it has its name, and is not known to it
	silent    reason = "silent"    // the dispatcher shows no sign of life
)

// Reasons returns the names of all reasons for which an instance takes the role: nobody has it (vacant), the one that ends
// names the instance (named), the process of the other one goes behind (outranked), an earlier process of the instance has it
// (orphaned), or the other one shows no sign of life (silent).
func Reasons() []string {
	return []string{string(named), string(orphaned), string(outranked), string(silent), string(vacant)}
}

// Taken returns how often the instance has taken the role, by the names of the reasons.
func (s *Succession) Taken() map[string]int { return maps.Clone(s.times) }

// takeOver is why and when an instance takes the role.
type takeOver struct {
	why reason
	due time.Duration
}

// ranks orders the kinds of processes: one takes the role from those of lower ranks.
var ranks = map[wire.Kind]int{wire.Command: 0, wire.Service: 1, wire.Server: 2, wire.Coordinator: 3}

// rank is the kind in which the instance dispatches. A coordinator that does not lead ranks as a server.
func (s *Succession) rank() wire.Kind {
	if s.kind == wire.Coordinator && !s.own.Leads {
		return wire.Server
	}
	return s.kind
}

// nextTakeOver returns why the instance takes the role that it has seen, and when.
func (s *Succession) nextTakeOver(wall time.Time) takeOver {
	needs := s.own.Demands || s.own.Leads
	switch from, empty := s.sight.vacant(); {
	case s.sight.is(s.host, s.instance):
		return takeOver{orphaned, s.seized + seizeAgain}
	case empty && s.isNamed() && s.own.Demands:
		return takeOver{named, 0}
	case empty && s.own.Leads:
		return takeOver{vacant, 0}
	case empty && needs:
		return takeOver{vacant, max(from, s.since) + pauseOf(s.kind, s.hash)}
	case empty, s.sight.state == unseen, s.probation.serving:
		return takeOver{}
	case s.outranks():
		return takeOver{outranked, s.seized + seizeAgain}
	}
	if due, ok := s.silence(wall); ok {
		return takeOver{silent, due}
	}
	return takeOver{}
}

// isNamed reports whether the instance shall follow the one that ends.
func (s *Succession) isNamed() bool {
	r := &s.sight.role
	return r.NextHost == s.host && r.NextInstance == s.instance
}

// outranks reports whether the instance takes the role from a dispatcher that lives. A process that stays does so only
// with demands of its own.
func (s *Succession) outranks() bool {
	switch {
	case s.own.Leads:
		return true
	case s.sight.state != present, s.rank() == wire.Service && !s.own.Demands:
		return false
	}
	return ranks[s.rank()] > ranks[s.sight.role.Kind]
}

// silence returns when the dispatcher counts as silent if it shows no sign of life. An unreadable role counts as any other:
// a later version of berth may have put it, and be alive.
func (s *Succession) silence(wall time.Time) (due time.Duration, ok bool) {
	from, ok := s.sight.silence(s.own.Demands, s.since, s.kind == wire.Coordinator)
	return from + patienceOf(s.kind, s.hash, len(recent(s.sight.role.TakeOvers, wall))), ok
}

// nextPoll returns when role and mark are to be polled, as far as the instance's own polls do not show them.
func (s *Succession) nextPoll(now time.Duration, wall time.Time) time.Duration {
	needs := s.own.Demands || s.kind == wire.Coordinator
	switch {
	case s.stage == stageEnded, s.stage == stageLeaving:
		return never
	case s.stage == stageDispatching:
		return max(s.polls.last, s.took) + holderPoll
	case !needs:
		return never
	case s.sight.state == unseen:
		return now
	}
	next := never
	if s.kind == wire.Coordinator {
		next = s.polls.last + standbyPoll
	}
	if due, ok := s.silence(wall); ok && !s.probation.serving {
		if s.sight.polled >= due { // it waits for a lease, or after a refusal
			due = s.sight.polled + standbyPoll
		}
		next = min(next, due)
	}
	return next
}

// nobody returns from when on the instance has to serve its demands itself, unless something changes.
func (s *Succession) nobody(wall time.Time) (from time.Duration, ok bool) {
	if !s.own.Demands || s.stage == stageDispatching || s.stage == stageEnded {
		return 0, false
	}
	if s.polls.denied {
		return 0, true
	}
	if from, ok = s.sight.vacant(); ok {
		if s.denied {
			return 0, true
		}
		return max(from, s.since) + vacantTime, true
	}
	due, ok := s.silence(wall)
	return due + vacantTime, ok
}
