package run

import "sync"

const (
	// sparePerRun is how many events of a run one journal writes besides those that its
	// step instances have: with those it stays at some 500, however many have failed.
	sparePerRun = 20
	// spareRuns bounds the runs that are counted.
	spareRuns = 4096
)

// spares counts the events that runs have besides.
type spares struct {
	mu   sync.Mutex // guards what follows
	used map[string]int
}

// Spare tells whether a run has room for one event more than its step instances have, and
// takes it.
func (j *Journal) Spare(run string) bool {
	s := &j.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	used, known := s.used[run]
	switch {
	case used == sparePerRun:
		return false
	case s.used == nil || !known && len(s.used) == spareRuns:
		s.used = map[string]int{} // of runs that have ended, for the most part
	}
	s.used[run] = used + 1
	return true
}
