package pool

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Reason is why a claim waits, as data and in one sentence that is the same
// wherever it is shown.
type Reason struct {
	// Text is the sentence: pool 'db' full (3/3 slots).
	Text string `json:"text"`
	// Position in the wait queue, from 1 on, of Waiting claims that wait for one
	// of the same pools, this one included.
	Position int `json:"position,omitempty"`
	Waiting  int `json:"waiting,omitempty"`
	// Since when it waits.
	Since time.Time `json:"since,omitzero"`
	// Dispatcher grants it: HOST/INSTANCE, empty while there is none.
	Dispatcher string `json:"dispatcher,omitempty"`
	// Pools that keep it from being granted.
	Pools []Shortage `json:"pools,omitempty"`
}

// Shortage is one pool that a claim waits for.
type Shortage struct {
	Pool    string `json:"pool"`
	Wanted  int    `json:"wanted"`
	Limit   int    `json:"limit"`
	Claimed int    `json:"claimed"`
	// Short is how many slots are missing: 0 if there are enough, but others
	// are first.
	Short   int         `json:"short"`
	Paused  bool        `json:"paused,omitempty"`
	Holders []HolderRef `json:"holders,omitempty"`
}

// shortage is one with what else makes its text.
type shortage struct {
	Shortage
	unknown, unreadable bool
}

// HolderRef names a holder in a reason.
type HolderRef struct {
	Claim string `json:"claim"`
	Host  string `json:"host"`
	Run   string `json:"run,omitempty"`
	Step  string `json:"step,omitempty"`
	Slots int    `json:"slots"`
}

// Turn explains a claim that fits and is not granted yet. Trouble is why no lease could be
// made for it.
func (r Reason) Turn(trouble error) string {
	if trouble != nil {
		return fmt.Sprintf("no lease could be made: %v", trouble)
	}
	return fmt.Sprintf("waiting its turn (position %d of %d)", r.Position, r.Waiting)
}

// Blocked returns which pools keep a claim of these slots from being granted, by name, and the sentence that says so, which
// is empty if the claim fits. The function of returns the state of a pool; Deleted is set if there is none of that name.
func Blocked(slots map[string]int, of func(pool string) Status) (pools []Shortage, text string) {
	var all []shortage
	for _, need := range needsOf(slots) {
		p := of(need.Pool)
		if s, blocks := p.shortage(need); blocks {
			pools, all = append(pools, s.Shortage), append(all, s)
		}
	}
	return pools, shortageText(all)
}

// shortage returns what a claim of so many slots lacks in the pool, and whether that keeps it from being granted.
func (s *Status) shortage(n Need) (is shortage, blocks bool) {
	is = shortage{
		Shortage:   Shortage{Pool: n.Pool, Wanted: n.N, Limit: s.Limit, Claimed: s.Claimed, Paused: s.Paused},
		unknown:    s.Deleted,
		unreadable: s.Problem != "",
	}
	if s.Limit != Unlimited {
		is.Short = max(0, s.Claimed+n.N-s.Limit)
	}
	return is, is.Short > 0 || !s.open()
}

func shortageText(pools []shortage) string {
	var full []string
	for _, s := range pools {
		switch {
		case s.unknown:
			return fmt.Sprintf("pool '%s' does not exist", s.Pool)
		case s.unreadable:
			return fmt.Sprintf("pool '%s' has a value that can't be read", s.Pool)
		case s.Paused:
			return fmt.Sprintf("pool '%s' is paused", s.Pool)
		case s.Limit == Closed:
			return fmt.Sprintf("pool '%s' is closed", s.Pool)
		case exceedsLimit(s.Limit, s.Wanted):
			return fmt.Sprintf("pool '%s' has a limit of %d, this claim needs %d", s.Pool, s.Limit, s.Wanted)
		}
		full = append(full, fmt.Sprintf("'%s' (%d/%d slots)", s.Pool, s.Claimed, s.Limit))
	}
	switch len(full) {
	case 0:
		return ""
	case 1:
		s := pools[0]
		if s.Claimed < s.Limit {
			return fmt.Sprintf("pool '%s' has too few free slots (%d/%d slots, %d wanted)", s.Pool, s.Claimed, s.Limit, s.Wanted)
		}
		return fmt.Sprintf("pool '%s' full (%d/%d slots)", s.Pool, s.Claimed, s.Limit)
	}
	return "pools full: " + strings.Join(full, ", ")
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m)) // once: iterators would grow it
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
