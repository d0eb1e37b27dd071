package pool

import (
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func wait(mine bool, needs ...RoomNeed) *Waiting { return &Waiting{Needs: needs, Mine: mine} }

func TestAdmit(t *testing.T) {
	one := func(n int) RoomNeed { return RoomNeed{Room: 0, N: n} }
	two := func(n int) RoomNeed { return RoomNeed{Room: 1, N: n} }
	reserving := func(w *Waiting) *Waiting { w.Reserve = true; return w }
	exclusive := func(w *Waiting) *Waiting { w.Exclusive = true; return w }
	yielded := func(w *Waiting) *Waiting { w.Yielded = true; return w }
	for name, tc := range map[string]struct {
		rooms []Room
		line  []*Waiting
		want  Decision
	}{
		"an empty line": {rooms: []Room{{Limit: 1, Open: true}}},
		"first come, first served": {
			rooms: []Room{{Limit: 2, Open: true}},
			line:  []*Waiting{wait(true, one(1)), wait(false, one(1)), wait(true, one(1))},
			want:  Decision{Grants: []int{0}, Fits: []int{1}},
		},
		"others that fit pass one that does not": {
			rooms: []Room{{Limit: 3, Used: 2, Open: true}},
			line:  []*Waiting{wait(true, one(2)), wait(true, one(1))},
			want:  Decision{Grants: []int{1}},
		},
		"but not one that reserves": {
			rooms: []Room{{Limit: 3, Used: 2, Open: true}},
			line:  []*Waiting{reserving(wait(true, one(2))), wait(true, one(1))},
		},
		"a second one that reserves keeps nothing": {
			rooms: []Room{{Limit: 9, Used: 5, Open: true}},
			line:  []*Waiting{reserving(wait(true, one(5))), reserving(wait(true, one(6))), wait(true, one(1))},
		},
		"all or none of several pools": {
			rooms: []Room{{Limit: 1, Open: true}, {Limit: 1, Used: 1, Open: true}},
			line:  []*Waiting{wait(true, one(1), two(1)), wait(true, one(1))},
			want:  Decision{Grants: []int{1}},
		},
		"a reservation keeps room in all its pools": {
			rooms: []Room{{Limit: 1, Open: true}, {Limit: 1, Used: 1, Open: true}},
			line:  []*Waiting{reserving(wait(true, one(1), two(1))), wait(true, one(1))},
		},
		"paused pools grant nothing and reserve nothing": {
			rooms: []Room{{Limit: 1, Open: true}, {Limit: 1}},
			line:  []*Waiting{reserving(wait(true, one(1), two(1))), wait(true, one(1))},
			want:  Decision{Grants: []int{1}},
		},
		"what can never fit keeps nobody": {
			rooms: []Room{{Limit: 2, Used: 1, Open: true}},
			line:  []*Waiting{reserving(wait(true, one(3))), wait(true, one(1))},
			want:  Decision{Grants: []int{1}},
		},
		"a silent head of the line does not block": {
			rooms: []Room{{Limit: 1, Open: true}},
			line:  []*Waiting{yielded(wait(false, one(1))), wait(true, one(1))},
			want:  Decision{Grants: []int{1}},
		},
		"above a lowered limit nobody gets in": {
			rooms: []Room{{Limit: 2, Used: 5, Open: true}},
			line:  []*Waiting{wait(true, one(1))},
		},
		"behind an exclusive one that fits, nobody gets into its pools": {
			rooms: []Room{{Limit: 4, Open: true}, {Limit: 4, Open: true}},
			line:  []*Waiting{exclusive(wait(false, one(2))), wait(true, one(1)), wait(true, two(1)), wait(true, two(1), one(1))},
			want:  Decision{Grants: []int{2}, Fits: []int{0}},
		},
		"one that is exclusive and does not fit keeps nobody": {
			rooms: []Room{{Limit: 4, Used: 3, Open: true}},
			line:  []*Waiting{exclusive(wait(false, one(2))), wait(true, one(1))},
			want:  Decision{Grants: []int{1}},
		},
		"unlimited pools always have room": {
			rooms: []Room{{Limit: Unlimited, Used: 1 << 30, Open: true}},
			line:  []*Waiting{wait(true, one(MaxLimit))},
			want:  Decision{Grants: []int{0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Admit(tc.rooms, tc.line)
			got.Free, got.Reserved = nil, nil // see Space
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func drawRooms(t *rapid.T) []Room {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Room {
		return Room{
			Limit: rapid.IntRange(-1, 12).Draw(t, "limit"),
			Used:  rapid.IntRange(0, 14).Draw(t, "used"),
			Open:  rapid.IntRange(0, 9).Draw(t, "open") > 0,
		}
	}), 1, 4).Draw(t, "rooms")
}

func drawLine(t *rapid.T, rooms int) []*Waiting {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *Waiting {
		w := &Waiting{
			Mine:    rapid.Bool().Draw(t, "mine"),
			Reserve: rapid.Bool().Draw(t, "reserve"),
			Yielded: rapid.IntRange(0, 9).Draw(t, "yielded") == 0,

			Exclusive: rapid.IntRange(0, 4).Draw(t, "exclusive") == 0,
		}
		if !w.Mine {
			w.By = rapid.IntRange(1, 3).Draw(t, "by")
		}
		for r := range rooms {
			if rapid.Bool().Draw(t, "in") {
				w.Needs = append(w.Needs, RoomNeed{Room: r, N: rapid.IntRange(1, 6).Draw(t, "n")})
			}
		}
		if len(w.Needs) == 0 {
			w.Needs = []RoomNeed{{Room: 0, N: 1}}
		}
		return w
	}), 0, 12).Draw(t, "line")
}

// clone copies what Admit is given, to see whether it leaves it alone.
func clone(rooms []Room, line []*Waiting) ([]Room, []*Waiting) {
	l := make([]*Waiting, len(line))
	for i, w := range line {
		c := *w
		c.Needs = slices.Clone(w.Needs)
		l[i] = &c
	}
	return slices.Clone(rooms), l
}

func TestAdmitNeverExceedsALimitAndLeavesItsInputAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rooms := drawRooms(t)
		line := drawLine(t, len(rooms))
		r, l := clone(rooms, line)
		d := Admit(rooms, line)
		if !reflect.DeepEqual(r, rooms) || !reflect.DeepEqual(l, line) {
			t.Fatal("the input was changed")
		}
		for _, i := range merge(d.Grants, d.Fits) {
			for _, n := range line[i].Needs {
				r[n.Room].Used += n.N
			}
			for _, n := range line[i].Needs {
				if room := r[n.Room]; !room.Open || room.Limit != Unlimited && room.Used > room.Limit {
					t.Fatalf("waiter %d of %d takes more than %+v has", i, len(line), rooms[n.Room])
				}
			}
		}
	})
}

func TestAllHostsDecideTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rooms := drawRooms(t)
		line := drawLine(t, len(rooms))
		_, mirrored := clone(rooms, line)
		for _, w := range mirrored {
			w.Mine = !w.Mine // the other host's sight
		}
		a, b := Admit(rooms, line), Admit(rooms, mirrored)
		if !slices.Equal(a.Grants, b.Fits) || !slices.Equal(a.Fits, b.Grants) {
			t.Fatalf("one host decides %+v, the other %+v", a, b)
		}
	})
}

func TestWithoutReservationsNothingThatFitsIsLeftBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rooms := drawRooms(t)
		line := drawLine(t, len(rooms))
		for _, w := range line {
			w.Reserve, w.Yielded, w.Exclusive = false, false, false
		}
		d := Admit(rooms, line)
		in := merge(d.Grants, d.Fits)
		free := make([]int, len(rooms))
		for i, r := range rooms {
			free[i] = r.Limit - r.Used
			if r.Limit == Unlimited {
				free[i] = 1 << 40
			}
		}
		for _, i := range in {
			take(free, line[i])
		}
		for i, w := range line {
			if !slices.Contains(in, i) && possible(rooms, w) && fits(free, w) {
				t.Fatalf("waiter %d still fits", i)
			}
		}
	})
}

func TestNobodyGetsInBehindAnExclusiveOneThatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rooms := drawRooms(t)
		line := drawLine(t, len(rooms))
		closed := map[int]bool{}
		d := Admit(rooms, line)
		for _, i := range merge(d.Grants, d.Fits) {
			for _, n := range line[i].Needs {
				if closed[n.Room] {
					t.Fatalf("waiter %d gets into room %d behind an exclusive one", i, n.Room)
				}
			}
			for _, n := range line[i].Needs {
				closed[n.Room] = closed[n.Room] || line[i].Exclusive
			}
		}
	})
}

// TestTheFirstThatReservesIsNotStarved has claims come and go: whatever comes
// behind it, the first waiter that reserves and can be served is, once those
// who hold now have released.
func TestTheFirstThatReservesIsNotStarved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rooms := drawRooms(t)
		first := drawLine(t, len(rooms))
		if len(first) == 0 {
			return
		}
		w := first[0]
		w.Reserve, w.Yielded, w.Mine = true, false, true
		if !possible(rooms, w) {
			return
		}
		var held []*Waiting // granted in the course of this
		for round := 0; ; round++ {
			line := append([]*Waiting{w}, drawLine(t, len(rooms))...)
			d := Admit(rooms, line)
			for _, i := range merge(d.Grants, d.Fits) {
				if i == 0 {
					return
				}
				held = append(held, line[i])
				for _, n := range line[i].Needs {
					rooms[n.Room].Used += n.N
				}
			}
			// Those who held at the beginning release, one slot a round; those
			// who came in behind hold for ever.
			freed := false
			for r := range rooms {
				came := 0
				for _, h := range held {
					for _, n := range h.Needs {
						if n.Room == r {
							came += n.N
						}
					}
				}
				if rooms[r].Used > came {
					rooms[r].Used--
					freed = true
				}
			}
			if !freed && round > 30 {
				t.Fatalf("the first waiter %+v is passed by %d others for ever; rooms %+v", *w, len(held), rooms)
			}
		}
	})
}

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
