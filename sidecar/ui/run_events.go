package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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

// slotGroup is what the claims of one step came to.
type slotGroup struct {
	// Step is its name; empty of claims that name none.
	Step string
	// Claims is how many there are, and Waiting how many of them had to wait.
	Claims, Waiting int
	// Pools are those that were asked for, the first few.
	Pools  []string
	Events []slotEvent

	// waited and held are the times of all of them together, as far as both ends are
	// known.
	waited, held time.Duration
}

// slotEvent is an event of a claim.
type slotEvent struct {
	Type run.EventType
	// What it means, in a word.
	What, Claim string
	// For is the instance, if it is one.
	For, Pools, Reason, By string
	At                     time.Time
	// After is what the claim has done until then, since the event before: waited 3s.
	After string
	// First reports that it is the first event of its claim.
	First bool

	number, begun int // of the event, and of the first of its claim
}

// slotWords are what events of claims mean.
var slotWords = map[run.EventType]string{
	run.StepSlotWaiting: "waiting", run.StepSlotClaimed: "claimed", run.StepSlotRenewed: "renewed",
	run.StepSlotReleased: "released", run.StepSlotLost: "lost",
}

// poolsNamed bounds the pools that are named of a group.
const poolsNamed = 10

// slotClaim is a claim as far as its events are read.
type slotClaim struct {
	group, begun int
	// since is when it began to wait, or got its slots.
	since   time.Time
	waiting bool
}

// slotGroupsOf groups the events of claims, in the order in which the groups begin; those of a
// claim follow each other. All is how many events there are.
func slotGroupsOf(events []run.LoggedEvent) (groups []slotGroup, all int) {
	byStep := map[string]int{}
	claims := map[[2]string]*slotClaim{}
	for _, e := range events {
		what, ok := slotWords[e.Type]
		if !ok {
			continue
		}
		line, id := e.Metadata["step"], e.Metadata["claim"]
		name, instance := stepOf(line)
		at, known := byStep[name]
		if !known {
			at = len(groups)
			byStep[name] = at
			groups = append(groups, slotGroup{Step: text.Visible(name)})
		}
		g, key := &groups[at], [2]string{line, id}
		c := claims[key]
		if c == nil {
			c = &slotClaim{group: at, begun: all}
			claims[key] = c
			g.Claims++
		}
		s := slotEvent{
			Type: e.Type, What: what, Claim: text.Visible(id), For: text.Visible(instance), At: e.At, Reason: text.Visible(text.Cut(e.Reason, reasonShown)), By: text.Visible(e.By),
			Pools: text.Visible(strings.ReplaceAll(e.Metadata["pools"], ",", ", ")), number: all, begun: c.begun,
		}
		s.After = g.take(c, e)
		if s.Pools != "" && !slices.Contains(g.Pools, s.Pools) && len(g.Pools) < poolsNamed {
			g.Pools = append(g.Pools, s.Pools)
		}
		g.Events = append(g.Events, s)
		all++
	}
	for n := range groups {
		slices.SortStableFunc(groups[n].Events, func(a, b slotEvent) int { return cmp.Compare(a.begun, b.begun) })
	}
	return groups, all
}

// take takes the next event of a claim, and says what the claim did until then.
func (g *slotGroup) take(c *slotClaim, e run.LoggedEvent) string {
	before, waited := c.since, c.waiting
	d := max(0, e.At.Sub(before))
	switch e.Type {
	case run.StepSlotWaiting:
		g.Waiting++
		c.since, c.waiting = e.At, true
		return ""
	case run.StepSlotRenewed:
		if before.IsZero() || waited {
			return "" // events before it are missing
		}
		return "held for " + text.Duration(d) + " so far"
	case run.StepSlotClaimed:
		c.since, c.waiting = e.At, false
		if before.IsZero() || !waited {
			return ""
		}
		g.waited += d
		return "waited " + text.Duration(d)
	}
	c.since, c.waiting = time.Time{}, false
	switch {
	case before.IsZero():
		return ""
	case waited:
		g.waited += d
		return "waited " + text.Duration(d)
	}
	g.held += d
	return "held for " + text.Duration(d)
}

// Summary says what the claims of a group came to.
func (g *slotGroup) Summary() string {
	parts := []string{plural(g.Claims, "claim", "claims")}
	if g.Waiting > 0 {
		s := fmt.Sprintf("%d had to wait", g.Waiting)
		if g.waited > 0 {
			s += ", " + text.Duration(g.waited) + " in all"
		}
		parts = append(parts, s)
	}
	if g.held > 0 {
		parts = append(parts, "slots held for "+text.Duration(g.held)+" in all")
	}
	return strings.Join(parts, "; ")
}

// concurrencyTab is what a run and its claims have waited for.
type concurrencyTab struct {
	// Queue is how the run came into the queue and out of it, and QueuedSince since when
	// it is there, zero if it is not.
	Queue       []queueEvent
	QueuedSince time.Time
	// Groups are the events of claims that carry the run, by step.
	Groups []slotGroup
	// Shown and All are how many of those events are shown, and how many are known.
	Shown, All int
	// Gone reports that no event is known.
	Gone bool
}

// queueEvent is one that brings a run into the queue, or takes it out.
type queueEvent struct {
	Type run.EventType
	At   time.Time
	// Waited is how long it had been in the queue, if it leaves it.
	Waited string
	Reason string
	More   []pair
	By     string
}

// concurrencyOf makes the tab of a run's events, which are in order.
func concurrencyOf(events []run.LoggedEvent) *concurrencyTab {
	t := &concurrencyTab{Gone: len(events) == 0}
	t.Queue, t.QueuedSince = queueEventsOf(events)
	t.Groups, t.All = slotGroupsOf(events)
	t.Shown = t.clip()
	return t
}

// queueEventsOf are those of the queue, with how long the run was in it each time, and
// since when it is there, if it is.
func queueEventsOf(events []run.LoggedEvent) (all []queueEvent, since time.Time) {
	for _, e := range events {
		q := queueEvent{Type: e.Type, At: e.At, Reason: text.Visible(text.Cut(e.Reason, reasonShown)), More: pairsOf(e.Metadata), By: text.Visible(e.By)}
		switch e.Type {
		case run.RunQueued, run.RunRequeued:
			since = e.At
		case run.RunLost, run.RunLaunchFailed:
			if since = e.At; e.Metadata["retry"] == "" {
				since = time.Time{} // it has failed
			}
		case run.RunDequeued, run.RunCanceled:
			if since.IsZero() && e.Type == run.RunCanceled {
				continue // it was not in the queue
			}
			q.Waited, since = took(since, e.At), time.Time{}
		default:
			continue
		}
		all = append(all, q)
	}
	return all, since
}

// slotsShown bounds the events of slots on the page.
const slotsShown = 500

// clip leaves the oldest events of slots out if there are too many, and returns how many
// are left. What groups say of all of them stays.
func (t *concurrencyTab) clip() (shown int) {
	over := t.All - slotsShown
	for n := range t.Groups {
		g := &t.Groups[n]
		some := g.Events[:0]
		for _, e := range g.Events {
			if e.number >= over {
				e.First = len(some) == 0 || some[len(some)-1].begun != e.begun
				some = append(some, e)
			}
		}
		g.Events = some
		shown += len(some)
	}
	return shown
}

// stepOf takes what a claim is for apart: a step, and an instance of it as in
// extract[3]. What is no instance is a step of its own.
func stepOf(text string) (name, instance string) {
	name, rest, ok := strings.Cut(text, "[")
	index, closed := strings.CutSuffix(rest, "]")
	if !ok || !closed || index == "" || strings.Trim(index, "0123456789") != "" {
		return text, ""
	}
	return name, text
}
