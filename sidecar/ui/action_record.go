package ui

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

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
