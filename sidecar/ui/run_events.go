package ui

import (
	"slices"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
)

// eventsShown is how many events are on a page.
const eventsShown = 200

// eventsTab is what has happened to a run, the latest first.
type eventsTab struct {
	Rows []eventRow
	All  int
	// Newer and Older lead to the others, if there are others.
	Newer, Older string
}

// eventRow is something that has happened.
type eventRow struct {
	Type   run.EventType
	At     time.Time
	By     string
	Reason string
	More   []pair
}

// eventsTabOf makes the tab of a run's events, which are in order.
func eventsTabOf(events []run.LoggedEvent, q runQuery) *eventsTab {
	t := &eventsTab{All: len(events)}
	end := len(events)
	if q.before != (run.Place{}) {
		end, _ = slices.BinarySearchFunc(events, q.before, func(e run.LoggedEvent, p run.Place) int {
			if e.Revision < p.Revision || e.Revision == p.Revision && e.ID < p.ID {
				return -1
			}
			return 1
		})
		t.Newer = onTab(q.run, tabEvents).href()
	}
	begin := max(0, end-eventsShown)
	for _, e := range slices.Backward(events[begin:end]) {
		t.Rows = append(t.Rows, eventRow{e.Type, e.At, text.Visible(e.By), text.Visible(text.Cut(e.Reason, reasonShown)), pairsOf(e.Metadata)})
	}
	if begin > 0 {
		older := onTab(q.run, tabEvents)
		older.before = events[begin].Place()
		t.Older = older.href()
	}
	return t
}
