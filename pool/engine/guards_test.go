package engine

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// The guards of an instance that is gone are deleted, those of all its parts, and those of one that lives are not. An instance
// whose guards are deleted all the same, as it was not seen, goes on with all its parts.
func TestGuardsOfInstancesThatAreGoneAreDeleted(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		guards := func(host string) int { return r.left(r.keys.GuardsAll() + host + "/") }
		one, two := r.start("one"), r.start("two")
		exchange := func() {
			held := one.take("held", 1)
			waits := two.ask("waits", 1) // two dispatches
			one.release(held)
			two.release(waits.got())
		}
		exchange()
		if guards("two") != 3 {
			t.Fatalf("%d guards", guards("two"))
		}
		time.Sleep(2 * sweepEvery)
		if n := guards("one") + guards("two"); n > 0 {
			t.Errorf("%d guards are left of instances that nobody sees", n)
		}
		r.must(store.Commit(r.Context(), r.root, nil, store.Put(r.keys.Hosts()+"two/i", nil, 0)))
		exchange()
		one.end()
		seen := guards("two")
		time.Sleep(2 * sweepEvery)
		if guards("one") != 0 || guards("two") != seen {
			t.Errorf("%d and %d guards are left", guards("one"), guards("two"))
		}
	})
}
