package ui

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
)

// actionsPerPage is how many actions one page has.
const actionsPerPage = 100

// actionsEvery is how often the page of actions is read.
const actionsEvery = 5 * time.Second

// actionsPage is what the page of actions shows.
type actionsPage struct {
	Rows []actionRow
	Bad  []string
	// Older and Newest are addresses, empty if there is nothing there.
	Older, Newest string
}

// actionRow is an action in the list.
type actionRow struct {
	audit.Entry
	What    string // what was asked for, in words
	Link    string // to the object
	Outcome string // in words
}

// verbText writes a verb: set-pool is "set pool".
func verbText(verb string) string { return strings.ReplaceAll(verb, "-", " ") }

// viewActions reads the page of actions.
func (p *Pages) viewActions(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	before := r.URL.Query().Get("before")
	l, err := s.reader(nil).Actions(ctx, before, actionsPerPage)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Actions", Data: actionsOf(l, before, time.Now())}, nil
}

// actionsOf is the page of actions.
func actionsOf(l inspect.ActionList, before string, now time.Time) actionsPage {
	var p actionsPage
	for _, u := range l.Unreadable {
		p.Bad = append(p.Bad, u.Key+": "+u.Reason)
	}
	for _, a := range l.Items {
		row := actionRow{Entry: a, What: verbText(a.Action.Action), Link: objectLink(a.Action), Outcome: string(a.Action.Outcome)}
		if a.Unknown(now) {
			row.Outcome = "unknown"
		}
		p.Rows = append(p.Rows, row)
	}
	if l.Next != "" {
		p.Older = addressOf(actionsPath, url.Values{"before": {l.Next}})
	}
	if before != "" {
		p.Newest = actionsPath
	}
	return p
}

// objectLink is the page of what an action is about; empty if it has none.
func objectLink(a audit.Action) string {
	switch a.Action {
	case audit.CancelRun, audit.RetryRun, audit.CancelStep:
		if run.ValidateID(a.Object) == nil {
			return runLink(a.Object)
		}
	case audit.SetPool, audit.PausePool, audit.ResumePool, audit.DeletePool:
		return poolLink(a.Object)
	}
	return ""
}

// runLink is the page of a run.
func runLink(id string) string { return "/runs/" + url.PathEscape(id) }

// poolLink is the page of pools with one of them expanded.
func poolLink(name string) string {
	return addressOf("/pools", url.Values{"q": {name}, "open": {name}})
}
