package list

import (
	"slices"
	"testing"

	"github.com/berthhq/berth/pool"
)

func TestProspectsAreWhatWouldBeGranted(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 3)
	own := Own{Host: "one", Instance: "i"}
	want := func(what string, asked []int, want ...bool) {
		t.Helper()
		var requests []*pool.Request
		for i, n := range asked {
			requests = append(requests, &pool.Request{ID: string(rune('m' + i)), Slots: db(n)})
		}
		if got := w.state().By(own).Prospects(requests, nil); !slices.Equal(got, want) {
			t.Errorf("%s: the prospects of %v slots are %v, want %v", what, asked, got, want)
		}
	}
	want("free", []int{1, 2, 1}, true, true, false) // each takes its slots
	want("free", []int{4, 3}, false, true)
	w.hold("a", "one", db(2))
	want("after a claim", []int{1, 1}, true, false)
	want("after a claim", []int{2}, false)
	freed := w.state().By(own).Prospects([]*pool.Request{{ID: "x", Slots: db(3)}}, db(2))
	if !freed[0] {
		t.Error("slots of a claim that is being released are not free")
	}
	w.waits("w", "two", db(1))
	want("behind one that fits", []int{1}, false)
	w.passed("two")
	want("behind one that is passed", []int{1}, true)

	// One that waits keeps its place.
	w.waits("v", "one", db(1), priority(1))
	own.Waiting = []OwnDemand{{Demand: w.demands[w.keys.Demands("db", "one", "i")+"3"].list[0], Created: w.rev}}
	got := w.state().By(own).Prospects([]*pool.Request{{ID: "n", Slots: db(1), Priority: 1}, {ID: "v", Slots: db(1), Priority: 1}}, nil)
	if !slices.Equal(got, []bool{false, true}) {
		t.Errorf("the prospects are %v", got)
	}
	// As does a step that was published before.
	got = w.state().By(own).Prospects([]*pool.Request{{ID: "n", Slots: db(1), Priority: 1, Since: 1}, {ID: "v", Slots: db(1), Priority: 1}}, nil)
	if !slices.Equal(got, []bool{true, false}) {
		t.Errorf("the prospects of a step are %v", got)
	}
	w.spec("other", 9)
	w.waits("wide", "three", map[string]int{"db": 2}, priority(2), reserves)
	want("behind one that reserves", []int{1}, false)
	if got := w.state().By(own).Prospects([]*pool.Request{{ID: "n", Slots: map[string]int{"none": 1}}, {ID: "o", Slots: map[string]int{"other": 9}}}, nil); !slices.Equal(got, []bool{false, true}) {
		t.Errorf("the prospects in other pools are %v", got)
	}
}
