package coordinator

import (
	"context"
	"errors"
	"testing"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool/registry"
)

func TestACoordinatorDoesNotUseDataOfAnotherLayout(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.put(fl.keys.Spec("db"), `{"v":1,"limit":2,"lease_duration":"5m","reserve_after":"0s"}`)
		before, by := fl.revision(), fl.root.Peer()
		defer by.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := New(Config{Backend: by, Keys: fl.keys, Host: "one"}).Run(ctx)
		if !errors.Is(err, registry.ErrOldLayout) || problem.CodeOf(err) != problem.Precondition {
			t.Errorf("it has ended with %v", err)
		}
		if fl.revision() != before {
			t.Error("it has put something")
		}
	})
}
