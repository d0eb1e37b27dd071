package audit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
)

// TestOneIdentityFillsEtcdWithNoActions has an owner act on what is its own again and again, as one that
// cancels a run that has ended.
func TestOneIdentityFillsEtcdWithNoActions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		refused := 0
		l := Log{Backend: b, Keys: actionKeys, Bounds: &Bounds{Refused: func() { refused++ }}}
		act := func(by access.Identity) error {
			return l.Do(t.Context(), Caller{Identity: by, From: "desk"}, CancelRun, "r", "", func(context.Context) (Effect, error) { return Effect{}, errFailed })
		}
		ann, bob := access.Identity{Kind: access.User, Name: "ann"}, access.Identity{Kind: access.User, Name: "bob"}
		for n := range 2 * MaxActions {
			err := act(ann)
			if n < MaxActions && !errors.Is(err, errFailed) || n >= MaxActions && problem.CodeOf(err) != problem.TooManyRequests {
				t.Fatalf("action %d: %v", n, err)
			}
		}
		if n := len(outcomesIn(t, b)); n != MaxActions || refused != MaxActions {
			t.Errorf("%d actions are recorded and %d refused, want %d", n, refused, MaxActions)
		}
		for _, other := range []access.Identity{bob, {Kind: access.User, Name: "root", Grants: access.AllGrants}} {
			if err := act(other); !errors.Is(err, errFailed) {
				t.Errorf("%s: %v", other, err)
			}
		}
		time.Sleep(ActionsWindow)
		if err := act(ann); !errors.Is(err, errFailed) {
			t.Errorf("later: %v", err)
		}
	})
}

var errFailed = errors.New("by design")
