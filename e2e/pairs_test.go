package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// Slots are a map and have no order; what there is instead of one is who is
// scarce: half of the users want much of the one pool and little of the other.
func TestTwoPoolsWantedInOppositeOrderAreHadByAll(t *testing.T) {
	const users, rounds = 10, 6
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "a", 3)
	spec(t, hosts, "b", 3, reserveAfter(0))

	var answers answers
	var wg sync.WaitGroup
	for i, c := range hosts {
		for u := range users {
			wg.Go(func() {
				wants := []instance.Slots{{"a": 3, "b": 1}, {"b": 3, "a": 1}, {"a": 1}, {"b": 2}, {"a": 2, "b": 2}}
				for r := range rounds {
					id := fmt.Sprintf("h%d-u%d-r%d", i, u, r)
					cl, err := c.Claim(t.Context(), wants[(i+u+r)%len(wants)], instance.WithID(id))
					if err != nil {
						t.Errorf("claim %s: %v", id, err)
						return
					}
					answers.note(cl)
					if err := cl.Release(t.Context()); err != nil {
						t.Errorf("release %s: %v", id, err)
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	closedWithin(t, "everybody had their turn", done)
	answers.judge(w)
	if n := answers.count(); n != 3*users*rounds {
		t.Errorf("%d claims of %d", n, 3*users*rounds)
	}
	w.look(func(h *History) {
		if h.Held() > 0 || len(h.Waiting()) > 0 {
			t.Errorf("%d claims and %d waiters are left", h.Held(), len(h.Waiting()))
		}
	})
}
