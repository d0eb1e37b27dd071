package lograte

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatFailsTryAfterTryIsLoggedWhenItsReasonChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries Tries
		for _, c := range []struct {
			after time.Duration
			err   string
			want  bool
		}{
			{0, "leases end in 9.8s", true},
			{time.Second, "leases end in 8.8s", false},
			{time.Second, "no answer", true},
			{time.Second, "leases end in 6.7s", true},
			{Repeat - time.Second, "leases end in 6.7s", false},
			{time.Second, "leases end in 6.7s", true},
			{Repeat - 1, "leases end in 6.7s", false},
		} {
			time.Sleep(c.after)
			if got := tries.Allow(errors.New(c.err)); got != c.want {
				t.Errorf("%q after %s: %t", c.err, c.after, got)
			}
		}
	})
}
