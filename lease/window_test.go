package lease

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// ttls are those that pools may have: from 5 s on, whole seconds.
func ttls() *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.IntRange(5, 24*3600), func(n int) time.Duration { return time.Duration(n) * time.Second })
}

func TestAWindowEndsBeforeItsLeaseCan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := ttls().Draw(t, "ttl")
		sent := time.Duration(rapid.Int64Range(0, 1<<55).Draw(t, "sent"))
		w := NewWindow(sent, ttl)
		lives := sent + ttl

		if w.Until() > lives-500*time.Millisecond || w.Until() > lives-ttl/50 {
			t.Fatalf("validity ends %s before the lease, which is too late", lives-w.Until())
		}
		// A holder is signaled at the first check of the clock from StopAt on,
		// and killed a grace later; both looks may be a tick late.
		grace := StopGrace(ttl)
		if grace > ttl/6 {
			t.Fatalf("grace %s is more than a sixth of %s", grace, ttl)
		}
		if killed := w.StopAt() + tickEvery + grace; killed >= lives {
			t.Fatalf("a holder is killed %s after its lease can end", killed-lives)
		}
		if w.StopAt() <= sent+renewAfter(ttl) {
			t.Fatal("holders are stopped before the first renewal is due")
		}
	})
}

func TestValidityIsTheRemainingTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := NewWindow(time.Hour, ttls().Draw(t, "ttl"))
		now := time.Hour + time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "now"))
		if w.Valid(now) != (w.Remaining(now) > 0) {
			t.Fatalf("trusted %v with %s left", w.Valid(now), w.Remaining(now))
		}
		if w.Valid(now) && now+w.Remaining(now) != w.Until() {
			t.Fatalf("%s left at %s, but validity ends at %s", w.Remaining(now), now, w.Until())
		}
	})
}

func TestASlowAnswerNeverLengthensAWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := ttls().Draw(t, "ttl")
		b := newBook()
		b.granted(0, grant{duration: ttl}, 1, NewWindow(0, ttl))
		sent := ttl / 3
		// Any time, or one around the end of the window before.
		latency := rapid.OneOf(
			rapid.Int64Range(0, int64(ttl)),
			rapid.Map(rapid.Int64Range(-3, 3), func(n int64) int64 { return int64(NewWindow(-sent, ttl).Until()) + n }),
		).Draw(t, "latency")
		answered := sent + time.Duration(latency)
		b.renewed(answered, renewal{id: 1, sent: sent}, ttl)

		w, ok := b.validity(answered, 1)
		switch {
		case ok && answered >= NewWindow(0, ttl).Until():
			t.Fatal("a success after the end of validity restored it")
		case ok && w.Until() != sent+ttl-Margin(ttl):
			t.Fatalf("valid until %s", w.Until())
		case !ok && answered < NewWindow(0, ttl).Until():
			t.Fatal("a success in time did not renew")
		}
	})
}

func TestTheFiguresOfCommonDurations(t *testing.T) {
	for _, c := range []struct{ ttl, margin, grace, quiet, exec string }{
		{"5s", "500ms", "833.333333ms", "2.833333334s", "2.000000001s"},
		{"10s", "500ms", "1.666666666s", "6.166666667s", "4.500000001s"},
		{"1m", "1.2s", "10s", "38.8s", "28.8s"},
		{"5m", "6s", "10s", "3m14s", "3m4s"},
	} {
		ttl, _ := time.ParseDuration(c.ttl)
		got := []string{
			Margin(ttl).String(), StopGrace(ttl).String(),
			Survives(ttl, 0).String(), Survives(ttl, StopGrace(ttl)).String(),
		}
		for i, want := range []string{c.margin, c.grace, c.quiet, c.exec} {
			if got[i] != want {
				t.Errorf("%s: figure %d is %s, want %s", c.ttl, i, got[i], want)
			}
		}
	}
	if got := Survives(time.Second, time.Minute); got != 0 {
		t.Errorf("a grace longer than the lease survives %s", got)
	}
}

func TestTheBootClockRunsAndNeverGoesBack(t *testing.T) {
	c := BootClock()
	begun := c.Now()
	if begun <= 0 {
		t.Fatalf("the clock says %s", begun)
	}
	var latest atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for c.Now() < begun+20*ReadingAge {
				before := latest.Load()
				now := int64(c.Now())
				if now < before {
					t.Errorf("the clock went from %s back to %s", time.Duration(before), time.Duration(now))
					return
				}
				for before < now && !latest.CompareAndSwap(before, now) {
					before = latest.Load()
				}
			}
		})
	}
	all.Wait()
}
