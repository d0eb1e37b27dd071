package ui

import (
	"context"
	"errors"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

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
