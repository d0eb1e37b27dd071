package berth_test

import (
	"testing"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// guarded is what holders change. It remembers the largest fencing token that it has received, and refuses
// smaller ones.
type guarded struct{ fence int64 }

func (g *guarded) write(fence int64) bool {
	if fence < g.fence {
		return false
	}
	g.fence = fence
	return true
}

func TestFencingTokensProtectWhatAPoolOfOneSlotGuards(t *testing.T) {
	c := open(t, embedtest.New(t))
	defer closeNow(t, c)
	for name, limit := range map[string]int{"db": 2, "part-1": 1, "part-2": 1} {
		if err := c.SetPool(t.Context(), name, limit, short); err != nil {
			t.Fatal(err)
		}
	}
	claim := func(slots berth.Slots) *berth.Claim {
		t.Helper()
		cl, err := c.Claim(t.Context(), slots)
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}
	release := func(cl *berth.Claim) {
		t.Helper()
		if err := cl.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	// Two holders of a pool of two slots are valid at the same time: one token for both would refuse the first.
	var whole guarded
	first, second := claim(berth.Slots{"db": 1, "part-1": 1}), claim(berth.Slots{"db": 1, "part-2": 1})
	if whole.write(second.Fence()); whole.write(first.Fence()) || first.Context().Err() != nil {
		t.Errorf("claims with the tokens %d and %d are held at the same time; the first one is %v", first.Fence(), second.Fence(), first.Context().Err())
	}

	// With a token for each part, which a pool of one slot guards, no valid holder is refused.
	parts := map[string]*guarded{"part-1": {}, "part-2": {}}
	for range 2 {
		if !parts["part-2"].write(second.Fence()) || !parts["part-1"].write(first.Fence()) {
			t.Error("a part refuses its holder")
		}
	}
	release(first)
	next := claim(berth.Slots{"part-1": 1}) // it needs no slot of db
	if !parts["part-1"].write(next.Fence()) || parts["part-1"].write(first.Fence()) {
		t.Errorf("a part takes the token %d of its former holder after %d", first.Fence(), next.Fence())
	}
	release(next)
	release(second)
}
