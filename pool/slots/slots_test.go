package slots

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Each number is in one area, and areas and slot groups are as many as they may be.
func TestEachNumberHasAnArea(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, MaxNumbersOfPool).Draw(t, "limit")
		l := layoutOf(limit)
		if l.areas() > MaxAreas || ceil(limit, l.group) > MaxGroups {
			t.Errorf("%d areas, %d groups", l.areas(), ceil(limit, l.group))
		}
		end := 0
		for a := range l.areas() {
			r := l.numbers(a)
			if r.From != end || r.Len() < 1 || a < l.areas()-1 && r.Len() < MinArea || l.areaOf(r.From) != a || l.areaOf(r.To-1) != a {
				t.Errorf("area %d has %v after %d", a, r, end)
			}
			end = r.To
		}
		if first := l.first(rapid.Uint32().Draw(t, "hash")); end != limit || first >= limit {
			t.Errorf("the areas end at %d of %d, the search begins at %d", end, limit, first)
		}
	})
}

// The tries end at the largest number that, with what is held at or above it, is at most the limit.
func TestTheCeilingIsTheHighestThatLeavesTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 40).Draw(t, "limit")
		held := rapid.SliceOfNDistinct(rapid.IntRange(0, 80), 0, 60, rapid.ID).Draw(t, "held")
		counts := rapid.IntRange(0, 50).Draw(t, "counts")
		above := func(from int) (n int) {
			for _, number := range held {
				if number >= from {
					n++
				}
			}
			return n + counts
		}
		want := limit
		for want > 0 && want+above(want) > limit {
			want--
		}
		c, tries := ceilingOf(limit), 0
		for ; !c.known; tries++ {
			c.counted(above(c.try))
		}
		if c.try != want || tries > limit+1 {
			t.Errorf("the ceiling is %d after %d tries, want %d", c.try, tries, want)
		}
	})
}

func TestWhoTakesBlocks(t *testing.T) {
	for _, tc := range []struct {
		needs map[string]int
		want  []string
	}{
		{map[string]int{"a": 32, "b": 32}, nil},
		{map[string]int{"a": 33, "b": 1}, []string{"a"}},
		{map[string]int{"a": 32, "b": 32, "c": 1}, []string{"a"}},
		{map[string]int{"a": 20, "b": 21, "c": 22, "d": 23}, []string{"d"}},
		{map[string]int{"a": 100, "b": 32, "c": 32, "d": 32}, []string{"a", "b"}},
		{map[string]int{"a": 16, "b": 16, "c": 16, "d": 16, "e": 16, "f": 16}, []string{"a", "b"}},
	} {
		var got []string
		for pool := range ByBlocks(tc.needs) {
			got = append(got, pool)
		}
		slices.Sort(got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.needs, got, tc.want)
		}
	}
}

// read returns a pool of which everything was read.
func read(hash uint32, limit int, numbers []int, blocks ...Block) *Pool {
	p := New(hash)
	p.Read(Reading{Revision: 9, Spec: Spec{Limit: limit, Revision: 3, Since: 3}, Numbers: numbers, Blocks: blocks, To: MaxNumbersOfPool})
	return p
}

func numbersOf(h Held) []int { return slices.Collect(h.all()) }

// take takes n slots, which must be there.
func take(t *testing.T, p *Pool, n int, blocks bool) Held {
	t.Helper()
	h, ok := p.Take(n, blocks)
	if !ok {
		t.Fatalf("%d slots are not found", n)
	}
	return h
}

func TestWhichNumbersAreTaken(t *testing.T) {
	p := read(2, 100, []int{4, 6}, Block{Runs: []Run{{8, 10}}, Count: 2, Created: 5})
	first := take(t, p, 3, false)
	if got := numbersOf(first); !slices.Equal(got, []int{5, 7, 10}) {
		t.Errorf("from its first number on, those that nobody has: %v", got)
	}
	held := p.Took(first, 11)
	if got := numbersOf(take(t, p, 2, false)); !slices.Equal(got, []int{11, 12}) {
		t.Errorf("those that are tried, or held by this instance, are not taken: %v", got)
	}
	p.Freed(held)
	if got := numbersOf(take(t, p, 4, false)); !slices.Equal(got, []int{10, 7, 5, 13}) {
		t.Errorf("what it has released last is taken first: %v", got)
	}
	lost := take(t, p, 2, false)
	p.Lost(lost)
	if got := numbersOf(take(t, p, 2, false)); !slices.Equal(got, []int{16, 17}) {
		t.Errorf("what it could not have is avoided: %v", got)
	}
}

// Numbers that were seen longest ago are taken when there are no others.
func TestNumbersThatOthersHaveReleasedLastComeLast(t *testing.T) {
	p := read(0, 4, []int{0, 1})
	p.Age(seenFor)
	p.Read(Reading{Revision: 9, Spec: p.spec, Numbers: []int{2}, From: 2, To: 3})
	if got := numbersOf(take(t, p, 2, false)); !slices.Equal(got, []int{3, 0}) {
		t.Errorf("it takes %v", got)
	}
	if h, ok := p.Take(2, false); ok {
		t.Errorf("what was just seen is taken: %v", h)
	}
	p.Age(2 * seenFor)
	p.Age(3 * seenFor)
	if got := numbersOf(take(t, p, 2, false)); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("a minute later it takes %v", got)
	}
}

func TestBlocksTakeFewRuns(t *testing.T) {
	var every []int // second number of the first area is in use
	for n := 0; n < MinArea; n += 2 {
		every = append(every, n)
	}
	p := read(0, 600, every)
	h := take(t, p, 300, true)
	want := []Block{
		{Area: 0, Runs: h.Blocks[0].Runs, Count: MaxRuns},
		{Area: 1, Runs: []Run{{256, 256 + 300 - MaxRuns}}, Count: 300 - MaxRuns},
	}
	if diff := cmp.Diff(want, h.Blocks); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
	if _, ok := p.Take(600-128-300+1, true); ok {
		t.Error("it takes more than there is")
	}
	if h := take(t, read(0, 600, nil), 600, true); h.Compares() != 1+1+1 {
		t.Errorf("%d compares for three whole areas", h.Compares())
	}
}

// Where an area has enough numbers, but not in so few runs as a block may have, a claim takes several blocks of it.
func TestSeveralBlocksOfAnArea(t *testing.T) {
	var every []int
	for n := 0; n < MinArea; n += 2 {
		every = append(every, n)
	}
	e := NewExact()
	e.SetSpec(Spec{Revision: 1, Limit: MinArea})
	for _, n := range every {
		e.Add(n)
	}
	chosen, ok := e.Choose(MinArea/2, true, 7, 5)
	if !ok || len(chosen.Areas) != 1 {
		t.Fatalf("%+v", chosen)
	}
	for what, h := range map[string]Held{"direct": take(t, read(0, MinArea, every), 100, true), "offered": chosen} {
		names := map[int]bool{}
		for _, b := range h.Blocks {
			if names[b.Name] = true; b.Area != 0 || len(b.Runs) > MaxRuns {
				t.Errorf("%s: %+v", what, b)
			}
		}
		if len(names) != 2 || len(h.Blocks) != 2 || h.Repeats() {
			t.Errorf("%s: %d blocks, %v", what, len(h.Blocks), names)
		}
	}
}

// A claim that would need too many compares is not tried.
func TestTooManyComparesAreNotTried(t *testing.T) {
	var every []int
	for n := 0; n < 600; n += 2 {
		every = append(every, n)
	}
	p := read(0, 600, every)
	if h, ok := p.Take(130, true); ok {
		t.Errorf("%d compares", h.Compares())
	}
	if h := take(t, p, 100, true); h.Compares() != 1+1+100 {
		t.Errorf("%d compares", h.Compares())
	}
}

func TestPoolsWithoutALimitCount(t *testing.T) {
	p := read(3, Unlimited, nil, Block{Name: 192, Count: 7, Created: 2})
	h := take(t, p, 5000, true)
	if want := []Block{{Name: 193, Count: 5000}}; !cmp.Equal(h.Blocks, want) || h.Compares() != 2 || len(h.Areas) > 0 {
		t.Errorf("%+v", h)
	}
	held := p.Took(h, 12)
	if next := take(t, p, 1, false); next.Blocks[0].Name != 194 {
		t.Errorf("%+v", next)
	}
	p.Freed(held)
	if next := take(t, p, 1, false); next.Blocks[0].Name != 193 {
		t.Errorf("%+v", next)
	}
}

// Nothing is tried before the ceiling is known: more than one reading may be needed for that.
func TestTheCeilingIsCounted(t *testing.T) {
	p := New(0)
	if _, ok := p.Missing(); ok || p.Ready() {
		t.Error("something is known of a pool of which nothing was read")
	}
	r := Reading{Revision: 9, Spec: Spec{Limit: 10, Revision: 8, Since: 8}, Numbers: []int{0, 1}, To: 2}
	for _, step := range []struct{ from, count int }{{10, 3}, {7, 4}, {6, 4}} {
		p.Read(r)
		from, ok := p.Missing()
		if !ok || from != step.from {
			t.Fatalf("it wants to know how many are held from %d on, %v; want %d", from, ok, step.from)
		}
		r.Counted, r.CountFrom, r.Count = true, from, step.count
	}
	if p.Read(r); !p.Ready() {
		t.Fatal("the ceiling is not known")
	}
	if got := numbersOf(take(t, p, 4, false)); !slices.Equal(got, []int{2, 3, 4, 5}) {
		t.Errorf("it takes %v", got)
	}
	p.Forget()
	if _, ok := p.Take(1, false); ok || p.Ready() {
		t.Error("what was forgotten is used")
	}
	r.Counted, r.Revision = false, 7
	if p.Read(r); p.Ready() || p.current {
		t.Error("what was known is replaced by what is older")
	}
	held := p.Took(Held{Numbers: []int{9}}, 20)
	p.Restored()
	if p.Read(Reading{Revision: 3, Spec: Spec{Limit: 10, Revision: 2, Since: 2}, To: MaxNumbersOfPool}); !p.Ready() {
		t.Error("what is read after a restore does not count")
	}
	if got := numbersOf(take(t, p, 5, false)); slices.Contains(got, held.Numbers[0]) {
		t.Errorf("it takes what it holds: %v", got)
	}
}

func TestSetsOfNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s, other set
		want := map[int]bool{}
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			n := rapid.IntRange(0, 300).Draw(t, "number")
			r := Run{n, n + rapid.IntRange(0, 150).Draw(t, "length")}
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				s.add(n)
				want[n] = true
			case 1:
				s.remove(n)
				delete(want, n)
			case 2:
				s.removeRun(r)
				for n := r.From; n < r.To; n++ {
					delete(want, n)
				}
			default:
				s.addRun(r)
				for n := r.From; n < r.To; n++ {
					want[n] = true
				}
			}
		}
		from := rapid.IntRange(0, 300).Draw(t, "from")
		first := from
		for want[first] && first < 400 {
			first++
		}
		if got := firstIn(Run{from, 400}, []set{s, other}); got != first {
			t.Errorf("the first free number from %d on is %d, want %d", from, got, first)
		}
		s.removeRun(Run{0, math.MaxInt})
		if got := firstIn(Run{0, 1}, []set{s}); got != 0 {
			t.Error("a number is left")
		}
	})
}

// What a claim holds can be taken over if its numbers are below the ceiling.
func TestWhatIsAboveTheCeilingIsNotTakenOver(t *testing.T) {
	low, high := Held{Numbers: []int{4}}, Held{Numbers: []int{4, 5}}
	count, runs := Held{Blocks: []Block{{Count: 3}}}, Held{Blocks: []Block{{Runs: []Run{{0, 5}}, Count: 5}}}
	limited, none := read(0, 6, []int{0, 6}), read(0, Unlimited, nil)
	for name, tc := range map[string]struct {
		p    *Pool
		h    Held
		want bool
	}{
		"below": {limited, low, true}, "at it": {limited, high, false}, "a count": {limited, count, false}, "a block": {limited, runs, true},
		"a count without a limit": {none, count, true}, "numbers without a limit": {none, high, true}, "nothing is known": {New(0), low, false},
	} {
		if got := tc.p.Below(tc.h); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhatIsGivenUpIsFree(t *testing.T) {
	p := read(0, 2, nil)
	h := take(t, p, 2, false)
	if _, ok := p.Take(1, false); ok {
		t.Error("what is tried is taken")
	}
	p.Abandon(h)
	held := p.Took(take(t, p, 2, false), 10)
	p.Vanished(held)
	if h, ok := p.Take(1, false); ok {
		t.Errorf("what others may have is taken: %v", h)
	}
	p.Read(Reading{Revision: 11, Spec: p.Spec(), To: MaxNumbersOfPool})
	take(t, p, 2, false)
}
