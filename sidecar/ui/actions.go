package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
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

// actionsPerPage is how many actions one page has.
const actionsPerPage = 100

// keepAction writes an action. It is kept as long as the events of runs are.
func keepAction(ctx context.Context, s *Session, id string, a Action) error {
	_, err := store.Change(ctx, "the action was not recorded", func(ctx context.Context) (int64, error) {
		put, err := s.Runs.Journal.Keep(ctx, s.Runs.Keys.Action(id), a.Encode())
		if err != nil {
			return 0, err
		}
		rev, err := store.Commit(ctx, s.Runs.Backend, nil, put)
		if errors.Is(err, store.ErrLeaseNotFound) {
			s.Runs.Journal.Forget()
		}
		return rev, err
	})
	return err
}

// ActionOp is what records an action that is done by the transaction that it goes with, for
// operators who act from elsewhere than the pages.
func ActionOp(ctx context.Context, s run.Store, a Action) (*pb.RequestOp, error) {
	a.At = a.At.UTC().Truncate(time.Millisecond)
	a.EndedAt, a.Outcome = a.At, Done
	return s.Journal.Keep(ctx, s.Keys.Action(newActionID()), a.Encode())
}

// newActionID returns an id that is larger than those before.
func newActionID() string { return ulid.Make().String() }

// actionList are some actions, the newest first.
type actionList struct {
	Actions []LoggedAction
	// Bad are those that can't be read: each names its key.
	Bad []string
	// Before is the id of the last one, if there are older ones.
	Before string
}

// readActions reads the newest actions that are older than that of an id, or of all if it is
// empty.
func readActions(ctx context.Context, s *Session, before string) (actionList, error) {
	prefix := s.Runs.Keys.Actions()
	end := store.RangeEnd(prefix)
	if before != "" {
		if !isActionID(before) {
			return actionList{}, problem.Field("before", "%q is no id of an action", problem.Clip(before))
		}
		end = []byte(s.Runs.Keys.Action(before))
	}
	resp, err := s.Runs.Backend.Range(ctx, &pb.RangeRequest{
		Key: []byte(prefix), RangeEnd: end, Limit: actionsPerPage + 1,
		SortOrder: pb.RangeRequest_DESCEND, SortTarget: pb.RangeRequest_KEY,
	})
	if err != nil {
		return actionList{}, store.Problem("the actions could not be read", err)
	}
	var l actionList
	for i, kv := range resp.Kvs {
		if i == actionsPerPage {
			l.Before = string(resp.Kvs[i-1].Key[len(prefix):])
			break
		}
		a, err := DecodeAction(s.Runs.Keys, kv)
		if err != nil {
			l.Bad = append(l.Bad, err.Error())
			continue
		}
		l.Actions = append(l.Actions, a)
	}
	return l, nil
}

// unknownAfter is the age at which an action that was asked for has no outcome any more: it takes
// less to do one.
const unknownAfter = 2 * actionTimeout

// Unknown tells that nobody knows what came of an action.
func (a LoggedAction) Unknown(now time.Time) bool {
	return a.Outcome == Asked && now.Sub(a.At) > unknownAfter
}

// Action is what somebody has asked for on the pages, as it is kept in etcd. It is written before
// anything is done, and again with what came of it.
type Action struct {
	// Who asked for it, and From which address.
	Who  string `json:"who"`
	From string `json:"from,omitempty"`
	// At is when it was asked for, and EndedAt when its outcome was known.
	At      time.Time `json:"at"`
	EndedAt time.Time `json:"ended_at,omitzero"`
	// Action is what is to be done, in a word: one of the names of deeds. Object is what
	// with: a run, a pool or a claim. Detail says more, as it was asked for.
	Action string `json:"action"`
	Object string `json:"object"`
	Detail string `json:"detail,omitempty"`
	// Outcome is what came of it, and Result says so in a sentence.
	Outcome Outcome `json:"outcome"`
	Result  string  `json:"result,omitempty"`
}

// Outcome is what came of an action.
type Outcome string

// The outcomes.
const (
	// Asked: it was to be done. If that stays, nobody knows what came of it: the server
	// has ended, or lost etcd, on the way.
	Asked Outcome = "asked"
	Done  Outcome = "done"
	// Failed: it was refused, or it is not known whether it was done. The result says
	// which.
	Failed Outcome = "failed"
)

// outcomes are all of them.
var outcomes = []Outcome{Asked, Done, Failed}

const (
	// maxActionText bounds each text of an action, in bytes.
	maxActionText = 1024
)

// actionValue is how an action stands in etcd.
type actionValue struct {
	store.V
	Action
}

// Encode writes an action. Texts that are too long are cut.
func (a Action) Encode() []byte {
	for _, s := range []*string{&a.Who, &a.From, &a.Action, &a.Object, &a.Detail, &a.Result} {
		*s = text.CutWithin(strings.ToValidUTF8(*s, "\uFFFD"), maxActionText)
	}
	return store.Encode(actionValue{store.Now, a})
}

// LoggedAction is an action with its id, which is also when it was asked for.
type LoggedAction struct {
	Action
	ID string
}

// DecodeAction reads the action of a key. Its error is a [*store.CorruptError].
func DecodeAction(keys store.Keys, kv *mvccpb.KeyValue) (LoggedAction, error) {
	key := string(kv.Key)
	id, ok := strings.CutPrefix(key, keys.Actions())
	if !ok || !isActionID(id) {
		return LoggedAction{}, &store.CorruptError{Key: key, Reason: errors.New("it is no key of an action")}
	}
	var v actionValue
	if err := store.Decode(key, kv.Value, &v); err != nil {
		return LoggedAction{}, err
	}
	if err := v.Action.check(); err != nil {
		return LoggedAction{}, &store.CorruptError{Key: key, Reason: err}
	}
	return LoggedAction{Action: v.Action, ID: id}, nil
}

// isActionID tells whether a text is spelled as ids of actions are.
func isActionID(id string) bool {
	parsed, err := ulid.ParseStrict(id)
	return err == nil && parsed.String() == id
}

func (a Action) check() error {
	switch {
	case a.Who == "":
		return errors.New("who: it is not said")
	case a.At.IsZero():
		return errors.New("at: it is not said")
	case a.Action == "" || a.Object == "":
		return errors.New("action, object: they are not said")
	case !slices.Contains(outcomes, a.Outcome):
		return fmt.Errorf("outcome: %q is none", problem.Clip(string(a.Outcome)))
	case (a.Outcome == Asked) != a.EndedAt.IsZero():
		return errors.New("ended_at: it does not go with the outcome")
	}
	for _, text := range []string{a.Who, a.From, a.Action, a.Object, a.Detail, a.Result} {
		if len(text) > maxActionText {
			return fmt.Errorf("a text is %d bytes long: allowed are %d", len(text), maxActionText)
		}
	}
	return nil
}
