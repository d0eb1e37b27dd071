package child

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const sec = time.Second

func TestWhenACommandMustStop(t *testing.T) {
	type look struct {
		now, until time.Duration
		stop       Stop // asked for before the look
		want       order
	}
	for name, c := range map[string]struct {
		guard guard
		looks []look
		why   Stop
	}{
		"while trust is put off nothing happens": {
			guard{grace: 10 * sec},
			[]look{{now: 0, until: 30 * sec}, {now: 10 * sec, until: 40 * sec}, {now: 29 * sec, until: 40 * sec}},
			NotStopped,
		},
		"trust runs out: told the grace before, killed at its end": {
			guard{grace: 10 * sec},
			[]look{
				{now: 19 * sec, until: 30 * sec},
				{now: 20 * sec, until: 30 * sec, want: terminate},
				{now: 29 * sec, until: 30 * sec},
				{now: 30 * sec, until: 30 * sec, want: kill},
				{now: 31 * sec, until: 30 * sec, want: kill},
			},
			ByTrust,
		},
		"trust that comes too late changes nothing": {
			guard{grace: 10 * sec},
			[]look{{now: 25 * sec, until: 30 * sec, want: terminate}, {now: 26 * sec, until: 90 * sec}, {now: 30 * sec, until: 90 * sec, want: kill}},
			ByTrust,
		},
		"the machine was suspended until trust had ended": {
			guard{grace: 10 * sec},
			[]look{{now: 0, until: 30 * sec}, {now: 3600 * sec, until: 30 * sec, want: kill}},
			ByTrust,
		},
		"without a grace it is killed at once": {
			guard{},
			[]look{{now: 1 * sec, until: 30 * sec, stop: ByWorker, want: kill}},
			ByWorker,
		},
		"asked to stop": {
			guard{grace: 10 * sec},
			[]look{
				{now: 5 * sec, until: 30 * sec, stop: ByWorker, want: terminate},
				{now: 6 * sec, until: 30 * sec, stop: BySignal},
				{now: 15 * sec, until: 30 * sec, want: kill},
			},
			ByWorker,
		},
		"asked to stop, and trust ends within the grace": {
			guard{grace: 10 * sec},
			[]look{{now: 15 * sec, until: 30 * sec, stop: ByWorker, want: terminate}, {now: 20 * sec, until: 20 * sec, want: kill}},
			ByWorker,
		},
		"a timeout": {
			guard{grace: 10 * sec, timeoutAt: 60 * sec},
			[]look{{now: 59 * sec, until: 90 * sec}, {now: 60 * sec, until: 90 * sec, want: terminate}, {now: 70 * sec, until: 99 * sec, want: kill}},
			ByTimeout,
		},
		"a timeout just before trust ends": {
			guard{grace: 10 * sec, timeoutAt: 60 * sec},
			[]look{{now: 61 * sec, until: 72 * sec, want: terminate}, {now: 71 * sec, until: 72 * sec, want: kill}},
			ByTimeout,
		},
	} {
		g := c.guard
		for _, l := range c.looks {
			if l.stop != NotStopped {
				g.stop(l.now, l.until, l.stop)
			}
			if got := g.look(l.now, l.until); got != l.want {
				t.Errorf("%s: at %s the order is %d, want %d", name, l.now, got, l.want)
			}
		}
		if g.why != c.why {
			t.Errorf("%s: it stops because of %q, want %q", name, g.why, c.why)
		}
	}
}

// Whoever looks when the guard says, and at the latest every lookEvery, has told the
// command once and has it killed by the end of trust as it was known when it was
// told to stop.
func TestACommandIsAlwaysKilledInTime(t *testing.T) {
	duration := func(most time.Duration) *rapid.Generator[time.Duration] {
		return rapid.Map(rapid.Int64Range(0, int64(most/time.Millisecond)), func(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond })
	}
	rapid.Check(t, func(t *rapid.T) {
		g := guard{grace: duration(10*sec).Draw(t, "grace"), timeoutAt: duration(20*sec).Draw(t, "timeout")}
		until := duration(20*sec).Draw(t, "until")
		stopAt := duration(20*sec).Draw(t, "stop")
		told := 0
		for now := time.Duration(0); ; {
			if !g.stopping && rapid.Bool().Draw(t, "put off") && until < 30*sec {
				until += duration(2*sec).Draw(t, "by")
			}
			if now >= stopAt {
				g.stop(now, until, ByWorker)
			}
			was := g.stopping
			switch g.look(now, until) {
			case terminate:
				if told++; told > 1 || now >= until {
					t.Fatalf("at %s it was told %d times, and is trusted until %s", now, told, until)
				}
			case kill:
				if now > until+time.Millisecond || g.why == NotStopped {
					t.Fatalf("at %s it is killed, trusted until %s, because of %q", now, until, g.why)
				}
				return
			default:
				if !was && now >= until {
					t.Fatalf("at %s it runs, trusted until %s", now, until)
				}
			}
			next := g.next(now, until)
			if next <= 0 || next > lookEvery {
				t.Fatalf("the next look is in %s", next)
			}
			now += next
		}
	})
}
