package step

import "time"

// Pause is how long an instance waits before an attempt, of which the first is 1:
// not at all before the first, backoff before the second, and twice as long before
// each that follows, at most [MaxBackoff].
func Pause(backoff time.Duration, attempt int) time.Duration {
	if attempt < 2 || backoff <= 0 {
		return 0
	}
	pause := min(backoff, MaxBackoff)
	for range attempt - 2 {
		if pause = 2 * pause; pause >= MaxBackoff {
			return MaxBackoff
		}
	}
	return pause
}
