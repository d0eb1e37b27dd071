package pool

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berthhq/berth/internal/store"
)

// looks returns the prospects of requests of a host, each for so many slots of pool "db".
func (h *rigHost) looks(n ...int) (free []bool) {
	var asked []*Request
	for i, n := range n {
		asked = append(asked, &Request{ID: fmt.Sprint("new-", i), Slots: map[string]int{"db": n}})
	}
	return h.prospects(asked)
}

func (h *rigHost) wantProspects(want ...bool) func(n ...int) {
	return func(n ...int) {
		h.r.t.Helper()
		if got := h.looks(n...); !slices.Equal(got, want) {
			h.r.t.Errorf("the prospects of %v slots are %v, want %v", n, got, want)
		}
	}
}

func TestProspectsAreWhatWouldBeGranted(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	one.wantProspects(true)(1) // only a request finds out
	r.pool("db", 3)
	r.resolve()
	one.wantProspects(true, true, false)(1, 2, 1) // each takes its slots
	one.wantProspects(false, true)(4, 3)
	cl := one.ask("a", 2).got()
	one.wantProspects(true, false)(1, 1)
	one.wantProspects(false)(2)

	// What is released together with other writes is free for what is asked now.
	one.releaseCombined(cl, &combinedRelease{extra: store.Extra{}, reply: make(chan combinedResult, 1)}, r.now)
	one.wantProspects(true)(3)
	r.resolve()
	one.wantProspects(true)(3)

	// A claim without a place would be granted if it had one, and one that waits for slots not.
	places := NewPlaces(0)
	waits := one.ask("b", 3, func(r *Request) { r.Place = places.New() })
	asked := []*Request{one.entries["b"].req}
	if got := one.prospects(asked); !got[0] {
		t.Error("a claim that lacks only a place has no prospect")
	}
	two.ask("c", 1).got()
	if got := one.prospects(asked); got[0] {
		t.Error("a claim has a prospect of slots that another has")
	}
	waits.waits()
	r.sound()
}

// Slots that are reserved for claims that came before are not free.
func TestProspectsLeaveWhatIsReserved(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 3, func(s *Spec) { s.ReserveAfter = 0 })
	one.ask("a", 2).got()
	one.ask("b", 3).waits()
	one.wantProspects(false)(1)
	two.wantProspects(false)(1) // the other instance grants
}
