package ui

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/berthhq/berth/coordinator/run"
)

// actionsEvery is how often the page of actions looks.
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
	LoggedAction
	What    string // what was asked for, in words
	Link    string // to the object
	Outcome string // in words
}

// words of what deeds ask for.
var deedWords = map[string]string{
	"cancel": "cancel a run", "pause": "pause a pool", "resume": "resume a pool",
	"limit": "change a limit", "release": "release a claim",
	"worker-drain": "drain a worker", "worker-stop": "stop a worker", "worker-resume": "resume a worker",
}

// viewActions shows what was asked for on the pages.
func (p *Pages) viewActions(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	before := r.URL.Query().Get("before")
	l, err := readActions(ctx, s, before)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Actions", Data: actionsOf(l, before, time.Now())}, nil
}

// actionsOf is the page of actions.
func actionsOf(l actionList, before string, now time.Time) actionsPage {
	p := actionsPage{Bad: l.Bad}
	for _, a := range l.Actions {
		row := actionRow{LoggedAction: a, What: deedWords[a.Action.Action], Link: objectLink(a.Action), Outcome: string(a.Action.Outcome)}
		if row.What == "" {
			row.What = a.Action.Action // of a newer berth
		}
		if a.Unknown(now) {
			row.Outcome = "unknown"
		}
		p.Rows = append(p.Rows, row)
	}
	if l.Before != "" {
		p.Older = addressOf(actionsPath, url.Values{"before": {l.Before}})
	}
	if before != "" {
		p.Newest = actionsPath
	}
	return p
}

// objectLink is the page of what an action is about; empty if it has none.
func objectLink(a Action) string {
	switch a.Action {
	case "cancel":
		if run.ValidateID(a.Object) == nil {
			return runLink(a.Object)
		}
	case "pause", "resume", "limit":
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
