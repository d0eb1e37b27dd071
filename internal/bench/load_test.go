package bench

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestFiguresAreThoseOfTheWindow(t *testing.T) {
	cycles := []cycle{
		{requested: ms(0), granted: ms(5), releasing: ms(12), released: ms(13)},   // granted too early
		{requested: ms(8), granted: ms(14), releasing: ms(20), released: ms(21)},  // all within
		{requested: ms(21), granted: ms(25), releasing: ms(40), released: ms(42)}, // released too late
	}
	got, err := analyze(cycles, window{ms(10), ms(30)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := Outcome{
		PerSecond: 100,
		Claim:     []time.Duration{ms(6), ms(4)},
		Release:   []time.Duration{ms(1), ms(1)},
		held:      []time.Duration{ms(6), ms(15)},
		transfer:  []time.Duration{ms(2), ms(5)},
		inUse:     (2 + 6 + 5) / 20.0,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Outcome{}, Usage{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestTheLongestTimeWithoutASlotIsFound(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	w := window{begin: ms(10), end: ms(100)}
	for name, c := range map[string]struct {
		cycles []cycle
		want   int
	}{
		"never one":      {nil, 90},
		"always one":     {[]cycle{{granted: ms(0), releasing: ms(60)}, {granted: ms(50), releasing: ms(120)}}, 0},
		"at the end":     {[]cycle{{granted: ms(70), releasing: ms(120)}}, 60},
		"in the middle":  {[]cycle{{granted: ms(60), releasing: ms(99)}, {granted: ms(5), releasing: ms(30)}}, 30},
		"one within one": {[]cycle{{granted: ms(0), releasing: ms(80)}, {granted: ms(20), releasing: ms(30)}}, 20},
		"one was cut":    {[]cycle{{granted: ms(0), releasing: ms(100)}, {requested: ms(20), cut: true}}, 0},
	} {
		if got := w.withoutSlot(c.cycles); got != ms(c.want) {
			t.Errorf("%s: %s, want %s", name, got, ms(c.want))
		}
	}
}

func TestClientsOfAnUnevenCaseAreOnTheirHosts(t *testing.T) {
	c, counts := unevenCase(GoAPI), map[int]int{}
	for client := range c.Clients {
		counts[c.host(client)]++
	}
	for host, n := range unevenClients {
		if counts[host] != n {
			t.Errorf("host %d has %d clients, want %d", host, counts[host], n)
		}
	}
}

func TestWhatIsKeptIsNotReleased(t *testing.T) {
	cycles := []cycle{{requested: ms(0), granted: ms(3), kept: true}, {requested: ms(4), granted: ms(12), kept: true}}
	got, err := analyze(cycles, window{0, ms(10)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := Outcome{PerSecond: 100, Claim: []time.Duration{ms(3)}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Outcome{}, Usage{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := analyze(cycles, window{ms(20), ms(30)}, 0); !errors.Is(err, errNone) {
		t.Errorf("nothing was granted in the window: %v", err)
	}
}

func TestMoreGrantsThanSlotsAreNoticed(t *testing.T) {
	cycles := []cycle{
		{requested: ms(0), granted: ms(1), releasing: ms(9), released: ms(10)},
		{requested: ms(0), granted: ms(8), releasing: ms(12), released: ms(13)},
	}
	if _, err := analyze(cycles, window{0, ms(20)}, 1); !errors.Is(err, errOverfull) {
		t.Errorf("two claims of one slot: %v", err)
	}
	if _, err := analyze(cycles, window{0, ms(20)}, 2); err != nil {
		t.Errorf("two claims of two slots: %v", err)
	}
}

// simulated makes the cycles of a pool that hands each slot over with a delay of
// its own.
func simulated(t *rapid.T, slots int) (cycles []cycle, delays []time.Duration) {
	for slot := range slots {
		at := ms(slot)
		for range rapid.IntRange(1, 20).Draw(t, "claims") {
			c := cycle{requested: 0, granted: at, releasing: at + ms(rapid.IntRange(0, 9).Draw(t, "hold"))}
			c.released = c.releasing + ms(1)
			delay := ms(rapid.IntRange(0, 9).Draw(t, "delay"))
			at = c.releasing + delay
			cycles, delays = append(cycles, c), append(delays, delay)
		}
		delays = delays[:len(delays)-1] // no client takes the slot after the last
	}
	return cycles, delays
}

func TestTransfersOfOneSlotAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cycles, delays := simulated(t, 1)
		got, err := transfers(cycles, window{0, time.Hour}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, delays) {
			t.Errorf("got %v, want %v", got, delays)
		}
	})
}

func TestNoTransferOfALegalRunIsNegative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 5).Draw(t, "slots")
		cycles, _ := simulated(t, slots)
		got, err := transfers(cycles, window{0, time.Hour}, slots)
		if err != nil || len(got) != max(0, len(cycles)-slots) {
			t.Errorf("%d of %d claims have a transfer: %v", len(got), len(cycles), err)
		}
	})
}
