package ui

import (
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
)

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
	// Gone tells that no event is known at all.
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
