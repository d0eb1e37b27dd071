package ui

import (
	"testing"
	"time"
)

func TestTheTimeBetweenIsNeverBelowZero(t *testing.T) {
	for want, times := range map[string][2]time.Time{
		"":     {{}, afterNoon(1)},
		"0s":   {afterNoon(3), afterNoon(1)},
		"2m":   {afterNoon(1), afterNoon(3)},
		"2h1m": {afterNoon(0), afterNoon(121)},
	} {
		if got := took(times[0], times[1]); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := took(afterNoon(1), time.Time{}); got != "" {
		t.Errorf("%s to an end that is not known", got)
	}
}
