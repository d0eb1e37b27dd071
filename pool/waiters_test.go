package pool

import (
	"testing"

	"pgregory.net/rapid"
)

func TestOrderSortsAsItsTextDoes(t *testing.T) {
	draw := rapid.Custom(func(t *rapid.T) Order {
		return Order{
			Priority: rapid.IntRange(MinPriority, MaxPriority).Draw(t, "priority"),
			Since:    rapid.Int64Range(0, 1<<62).Draw(t, "since"),
			Claim:    rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,20}`).Draw(t, "claim"),
			By:       rapid.Uint32().Draw(t, "by"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		byText := 0
		switch {
		case a.String() < b.String():
			byText = -1
		case a.String() > b.String():
			byText = 1
		}
		if a.Compare(b) != byText {
			t.Fatalf("%q and %q", a, b)
		}
		if got, err := ParseOrder(a.String()); err != nil || got != a {
			t.Fatalf("%q reads as %+v, %v", a, got, err)
		}
	})
}
