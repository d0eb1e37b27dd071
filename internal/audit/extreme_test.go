package audit

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// unread is a source that no verb reaches.
type unread struct{ Source }

// FuzzPoolChange asks for changes that can be any: what is not valid is refused before it is put into
// words, and a caller without the role is refused whatever it asks for.
func FuzzPoolChange(f *testing.F) {
	for _, n := range []int64{math.MinInt64, math.MinInt64 + 1, -2, -1, 0, 1, math.MaxInt64} {
		f.Add("db", n, n, n)
	}
	f.Add("NO \u202e name", int64(1), int64(time.Minute), int64(-1))
	f.Fuzz(func(t *testing.T, name string, limit, lease, reserve int64) {
		whole, ch := int(limit), pool.Change{LeaseDuration: (*time.Duration)(&lease), ReserveAfter: (*time.Duration)(&reserve)}
		ch.Limit = &whole
		_ = changeText(ch) // whatever it says
		_ = SpecText(pool.Spec{Limit: whole, LeaseDuration: time.Duration(lease), ReserveAfter: time.Duration(reserve)})
		ctx := context.Background()
		none := PoolOperator{By: Caller{Identity: access.Identity{Kind: access.User, Name: "ann"}}, Source: unread{}}
		if _, err := none.ChangePool(ctx, name, ch); problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("a caller without the role: %v", err)
		}
		if ch.Validate() == nil && pool.ValidateName(name) == nil {
			return
		}
		all := PoolOperator{By: Caller{Identity: access.Identity{Kind: access.User, Name: "bob", Grants: access.AllGrants}}, Source: unread{}}
		for _, change := range []func(context.Context, string, pool.Change) (pool.Put, error){all.ChangePool, all.SetPool} {
			if _, err := change(ctx, name, ch); problem.CodeOf(err) != problem.Invalid {
				t.Errorf("%q %d %d %d: %v", name, limit, lease, reserve, err)
			}
		}
	})
}
