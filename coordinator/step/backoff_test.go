package step

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPauses(t *testing.T) {
	for _, c := range []struct {
		backoff time.Duration
		attempt int
		want    time.Duration
	}{
		{0, 2, 0}, {0, 100, 0}, {-time.Second, 3, 0},
		{time.Second, 0, 0}, {time.Second, 1, 0},
		{time.Second, 2, time.Second}, {time.Second, 3, 2 * time.Second}, {time.Second, 4, 4 * time.Second},
		{time.Second, 10, 256 * time.Second}, {time.Second, 11, MaxBackoff}, {time.Second, 101, MaxBackoff},
		{MaxBackoff, 2, MaxBackoff}, {MaxBackoff, 3, MaxBackoff}, {time.Hour, 2, MaxBackoff},
		{1, 1 << 30, MaxBackoff},
	} {
		if got := Pause(c.backoff, c.attempt); got != c.want {
			t.Errorf("%s before attempt %d: %s, want %s", c.backoff, c.attempt, got, c.want)
		}
	}
}

func TestPausesDoubleUpToTheirBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Shape{Backoff: Duration(rapid.Int64Range(1, int64(MaxBackoff)).Draw(t, "backoff"))}
		attempt := rapid.IntRange(2, MaxRetries+1).Draw(t, "attempt")
		if now, next := s.Pause(attempt), s.Pause(attempt+1); next != min(2*now, MaxBackoff) {
			t.Errorf("%s, then %s", now, next)
		}
	})
}
