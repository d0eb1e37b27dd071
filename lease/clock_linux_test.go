package lease

import (
	"testing"
	"time"
)

func TestTheTimeNamespacesPartOfTheBootClockIsRead(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic       -5000         0\nboottime        86400 500000000\n": 24*time.Hour + 500*time.Millisecond,
		"monotonic           1         0\nboottime           -2 750000000\n": -1250 * time.Millisecond,
		"": 0, "boottime": 0, "boottime x 0": 0, "boottime 1": 0, "monotonic 3 0\n": 0,
	} {
		if got := parseBootOffset(text); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}

func TestAProcessHasOneStartInAllTimeNamespaces(t *testing.T) {
	const started = 123456789 * time.Millisecond // no whole tick
	for _, offset := range []time.Duration{0, 24 * time.Hour, -20 * time.Hour, 5 * time.Millisecond, 86400*time.Second + 7654321, -1250 * time.Millisecond} {
		reported := uint64((started + offset) / clockTick) // as the kernel does
		got, want := bootTicks(reported, offset), uint64(started/clockTick)
		if got > want+1 || got+1 < want || offset%clockTick == 0 && got != want {
			t.Errorf("%s ahead it was started at %d, want %d", offset, got, want)
		}
	}
	if bootTicks(3, time.Hour) != 0 {
		t.Error("a process was started before the boot")
	}
}

func TestTheBootClockIsThatOfTheMachine(t *testing.T) {
	a := BootClock().Now()
	if a <= 0 {
		t.Errorf("the machine is up for %s", a)
	}
	if b := BootClock().Now(); b < a {
		t.Errorf("%s was before %s", a, b)
	}
}
