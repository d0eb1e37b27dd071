package worker

import "time"

// help is in which lists a worker takes what others come first for: once it has had too
// little of its own there for a turn, and until it has had enough for [longTurn]. So
// workers that go at one pace leave each other alone, and one that is faster waits once. A
// list is a class that needs slots, by name, or with no name all that needs none.
type help struct {
	short map[string]time.Time // since when it has too little
	until map[string]time.Time
}

func newHelp() *help {
	return &help{short: map[string]time.Time{}, until: map[string]time.Time{}}
}

// gives tells whether the worker helps in a list.
func (h *help) gives(list string, now time.Time, turn time.Duration) bool {
	since, short := h.short[list]
	return now.Before(h.until[list]) || short && now.Sub(since) >= turn
}

// note takes which lists had too little of the worker's own, of all when it had room.
func (h *help) note(short map[string]bool, now time.Time, turn time.Duration) {
	for list := range h.short {
		if !short[list] {
			delete(h.short, list)
		}
	}
	for list := range short {
		if h.gives(list, now, turn) {
			h.until[list] = now.Add(longTurn)
		}
		if _, already := h.short[list]; !already {
			h.short[list] = now
		}
	}
	for list, until := range h.until {
		if !now.Before(until) {
			delete(h.until, list)
		}
	}
}
