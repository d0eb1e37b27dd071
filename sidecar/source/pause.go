package source

import "time"

// maxPause bounds the pause after looks that failed, unless the interval is longer.
const maxPause = 5 * time.Minute

// pause is how long the next look waits: the interval, also after one failure, and twice
// as long after each that follows.
func pause(interval time.Duration, failures int) time.Duration {
	most := max(interval, maxPause)
	for range failures - 1 {
		if interval = 2 * interval; interval >= most {
			return most
		}
	}
	return interval
}
