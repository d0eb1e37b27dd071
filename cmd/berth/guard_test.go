package main

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/lease"
)

func TestGuard_LetsAChildRunWhileItsValidityIsRenewed(t *testing.T) {
	var g guard
	for now := time.Duration(0); now < time.Hour; now += proc.CheckEvery {
		if got := g.check(now, 200*time.Second, 10*time.Second, nil); got != proc.CarryOn {
			t.Fatalf("at %s: order %d", now, got)
		}
	}
}

func TestGuard_StopsAChildWhenItsValidityIsDownToTheGrace(t *testing.T) {
	var g guard
	steps := []struct {
		now, left time.Duration
		want      proc.Order
	}{
		{0, 9 * time.Second, proc.CarryOn},
		{7 * time.Second, 2 * time.Second, proc.CarryOn},
		{8 * time.Second, time.Second, proc.Terminate},
		{8500 * time.Millisecond, 500 * time.Millisecond, proc.CarryOn},
		{8600 * time.Millisecond, 9 * time.Second, proc.CarryOn}, // renewed at last: too late
		{9 * time.Second, 9 * time.Second, proc.Kill},
		{10 * time.Second, 0, proc.Kill}, // until it is gone
	}
	for _, s := range steps {
		if got := g.check(s.now, s.left, time.Second, nil); got != s.want {
			t.Errorf("at %s: order %d, want %d", s.now, got, s.want)
		}
	}
	if !errors.Is(g.why, errNotRenewed) {
		t.Errorf("it stops because of %v", g.why)
	}
}

func TestGuard_GivesAChildOfAnEndedClaimItsGraceWhileItIsValid(t *testing.T) {
	ended := errors.New("revoked")
	for name, tc := range map[string]struct {
		left, killAfter time.Duration
	}{
		"long":  {left: 200 * time.Second, killAfter: 10 * time.Second},
		"short": {left: 11 * time.Second, killAfter: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var g guard
			g.check(0, tc.left, 10*time.Second, nil)
			if got := g.check(time.Millisecond, 0, 0, ended); got != proc.Terminate {
				t.Fatalf("order %d", got)
			}
			if got := g.check(tc.killAfter, 0, 0, ended); got != proc.CarryOn {
				t.Errorf("killed early: order %d", got)
			}
			if got := g.check(tc.killAfter+time.Millisecond, 0, 0, ended); got != proc.Kill {
				t.Errorf("not killed: order %d", got)
			}
		})
	}
}

// A lease of a cluster that was replaced is not valid before its claim has ended.
func TestGuard_GivesTheTimeToStopToAClaimThatEndsBeforeItsTime(t *testing.T) {
	var g guard
	g.check(0, 20*time.Second, 5*time.Second, nil)
	now := 100 * time.Millisecond
	if got := g.check(now, 0, 0, nil); got != proc.CarryOn {
		t.Errorf("order %d before it is known why", got)
	}
	now += time.Millisecond
	if got := g.check(now, 0, 0, errors.New("lost")); got != proc.Terminate {
		t.Errorf("order %d, want it to stop", got)
	}
	if got := g.check(now+5*time.Second-1, 0, 0, errors.New("lost")); got != proc.CarryOn {
		t.Errorf("order %d within the time to stop", got)
	}
	if got := g.check(now+5*time.Second, 0, 0, errors.New("lost")); got != proc.Kill {
		t.Errorf("order %d after the time to stop", got)
	}
}

func TestGuard_KillsAtOnceAfterASuspendThatWasTooLong(t *testing.T) {
	var g guard
	g.check(0, 200*time.Second, 10*time.Second, nil)
	if got := g.check(time.Hour, 0, 10*time.Second, nil); got != proc.Kill {
		t.Errorf("order %d", got)
	}
	g = guard{}
	g.check(0, 200*time.Second, 10*time.Second, nil)
	if got := g.check(time.Hour, 0, 0, errors.New("lost")); got != proc.Kill {
		t.Errorf("order %d of a claim known to be lost", got)
	}
}

// Whichever renewals succeed, however long their answers take, and however long
// the machine sleeps between two checks that are not close to the end: the child
// is killed before the lease can end.
func TestGuard_KillsBeforeTheLeaseCanEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := time.Duration(rapid.Int64Range(int64(minExecLease), int64(10*time.Minute)).Draw(t, "ttl"))
		grace := lease.StopGrace(ttl)
		window := lease.NewWindow(0, ttl)
		renewals := rapid.SliceOfN(rapid.Int64Range(0, int64(2*ttl)), 0, 20).Draw(t, "renewals sent")
		took := time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "answers take"))
		slices.Sort(renewals)
		var g guard
		now := time.Duration(0)
		for g.check(now, window.Remaining(now), grace, nil) != proc.Kill {
			now += proc.CheckEvery
			for len(renewals) > 0 && time.Duration(renewals[0])+took <= now {
				if sent := time.Duration(renewals[0]); g.why == nil && window.Valid(now) {
					window = lease.NewWindow(sent, ttl)
				}
				renewals = renewals[1:]
			}
			if now >= window.Sent+window.TTL {
				t.Fatalf("not killed when the lease could have ended, at %s", now)
			}
		}
		if now < grace {
			t.Fatalf("killed at %s, long before its validity has ended", now)
		}
	})
}
