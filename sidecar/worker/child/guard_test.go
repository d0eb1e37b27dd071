package child

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/proc"
)

const sec = time.Second

func TestWhenACommandMustStop(t *testing.T) {
	type look struct {
		now, until time.Duration
		stop       Stop // asked for before the look
		want       proc.Order
	}
	for name, c := range map[string]struct {
		guard guard
		looks []look
		why   Stop
	}{
		"nothing happens while the validity is extended": {
			guard{Guard: proc.Guard{Grace: 10 * sec}},
			[]look{{now: 0, until: 30 * sec}, {now: 10 * sec, until: 40 * sec}, {now: 29 * sec, until: 40 * sec}},
			NotStopped,
		},
		"the validity expires: terminated one grace period before, killed at the end": {
			guard{Guard: proc.Guard{Grace: 10 * sec}},
			[]look{
				{now: 19 * sec, until: 30 * sec},
				{now: 20 * sec, until: 30 * sec, want: proc.Terminate},
				{now: 29 * sec, until: 30 * sec},
				{now: 30 * sec, until: 30 * sec, want: proc.Kill},
				{now: 31 * sec, until: 30 * sec, want: proc.Kill},
			},
			ByExpiry,
		},
		"an extension that comes too late changes nothing": {
			guard{Guard: proc.Guard{Grace: 10 * sec}},
			[]look{{now: 25 * sec, until: 30 * sec, want: proc.Terminate}, {now: 26 * sec, until: 90 * sec}, {now: 30 * sec, until: 90 * sec, want: proc.Kill}},
			ByExpiry,
		},
		"the machine was suspended until the validity had expired": {
			guard{Guard: proc.Guard{Grace: 10 * sec}},
			[]look{{now: 0, until: 30 * sec}, {now: 3600 * sec, until: 30 * sec, want: proc.Kill}},
			ByExpiry,
		},
		"without a grace it is killed at once": {
			guard{},
			[]look{{now: 1 * sec, until: 30 * sec, stop: ByWorker, want: proc.Kill}},
			ByWorker,
		},
		"asked to stop": {
			guard{Guard: proc.Guard{Grace: 10 * sec}},
			[]look{
				{now: 5 * sec, until: 30 * sec, stop: ByWorker, want: proc.Terminate},
				{now: 6 * sec, until: 30 * sec, stop: BySignal},
				{now: 15 * sec, until: 30 * sec, want: proc.Kill},
			},
			ByWorker,
		},
		"asked to stop, and the validity expires within the grace period": {
			guard{Guard: proc.Guard{Grace: 10 * sec}},
			[]look{{now: 15 * sec, until: 30 * sec, stop: ByWorker, want: proc.Terminate}, {now: 20 * sec, until: 20 * sec, want: proc.Kill}},
			ByWorker,
		},
		"a timeout": {
			guard{Guard: proc.Guard{Grace: 10 * sec}, timeoutAt: 60 * sec},
			[]look{{now: 59 * sec, until: 90 * sec}, {now: 60 * sec, until: 90 * sec, want: proc.Terminate}, {now: 70 * sec, until: 99 * sec, want: proc.Kill}},
			ByTimeout,
		},
		"a timeout just before the validity expires": {
			guard{Guard: proc.Guard{Grace: 10 * sec}, timeoutAt: 60 * sec},
			[]look{{now: 61 * sec, until: 72 * sec, want: proc.Terminate}, {now: 71 * sec, until: 72 * sec, want: proc.Kill}},
			ByTimeout,
		},
	} {
		g := c.guard
		for _, l := range c.looks {
			g.Until = l.until
			if l.stop != NotStopped {
				g.stop(l.now, l.stop)
			}
			if got := g.check(l.now); got != l.want {
				t.Errorf("%s: at %s the order is %d, want %d", name, l.now, got, l.want)
			}
		}
		if g.why != c.why {
			t.Errorf("%s: it stops because of %q, want %q", name, g.why, c.why)
		}
	}
}

// A supervisor that checks when the guard says, and at least every proc.CheckEvery, terminates
// the command once and kills it by the end of the validity that was known when the command was
// asked to stop.
func TestACommandIsAlwaysKilledInTime(t *testing.T) {
	duration := func(most time.Duration) *rapid.Generator[time.Duration] {
		return rapid.Map(rapid.Int64Range(0, int64(most/time.Millisecond)), func(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond })
	}
	rapid.Check(t, func(t *rapid.T) {
		g := guard{Guard: proc.Guard{Grace: duration(10*sec).Draw(t, "grace")}, timeoutAt: duration(20*sec).Draw(t, "timeout")}
		g.Until = duration(20*sec).Draw(t, "until")
		stopAt := duration(20*sec).Draw(t, "stop")
		terminated := 0
		for now := time.Duration(0); ; {
			if !g.Stopping() && rapid.Bool().Draw(t, "put off") && g.Until < 30*sec {
				g.Until += duration(2*sec).Draw(t, "by")
			}
			if now >= stopAt {
				g.stop(now, ByWorker)
			}
			was := g.Stopping()
			switch g.check(now) {
			case proc.Terminate:
				if terminated++; terminated > 1 || now >= g.Until {
					t.Fatalf("at %s it was terminated %d times, and is valid until %s", now, terminated, g.Until)
				}
			case proc.Kill:
				if now > g.Until+time.Millisecond || g.why == NotStopped {
					t.Fatalf("at %s it is killed, valid until %s, because of %q", now, g.Until, g.why)
				}
				return
			default:
				if !was && now >= g.Until {
					t.Fatalf("at %s it runs, valid until %s", now, g.Until)
				}
			}
			next := g.next(now)
			if next <= 0 || next > proc.CheckEvery {
				t.Fatalf("the next look is in %s", next)
			}
			now += next
		}
	})
}
