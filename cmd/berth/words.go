package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/berthhq/berth/pool"
)

// human writes a duration as people do: in its two largest units, 4m30s or
// 1d2h, and nothing below a second unless that is all there is.
func human(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + human(-d)
	case d < time.Second && d > 0:
		return d.Round(time.Millisecond).String()
	}
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	for i, u := range units {
		if d < u.size {
			continue
		}
		text := strconv.FormatInt(int64(d/u.size), 10) + u.name
		if i+1 < len(units) {
			if rest := d % u.size / units[i+1].size; rest > 0 {
				text += strconv.FormatInt(int64(rest), 10) + units[i+1].name
			}
		}
		return text
	}
	return "0s"
}

// about writes a duration that is not known exactly: in its largest unit, in
// two only where one would say too little.
func about(d time.Duration) string {
	switch {
	case d >= 2*time.Hour:
		return human(d.Round(time.Hour))
	case d >= 10*time.Minute:
		return human(d.Round(time.Minute))
	}
	return human(d.Round(time.Second))
}

// ago tells how long before now a time was.
func ago(now, t time.Time) string {
	switch d := now.Sub(t); {
	case t.IsZero():
		return ""
	case d < time.Second: // or in the future, by a clock that is ahead
		return "now"
	default:
		return about(d) + " ago"
	}
}

// limitText writes a limit.
func limitText(limit int) string {
	switch limit {
	case pool.Unlimited:
		return "unlimited"
	case pool.Closed:
		return "0 (closed)"
	}
	return strconv.Itoa(limit)
}

// reserveText writes a pool's reserve_after.
func reserveText(d time.Duration) string {
	switch d {
	case pool.NeverReserve:
		return "never"
	case 0:
		return "at once"
	}
	return "after " + human(d)
}

// count writes a number with its noun: 1 slot, 2 slots.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// are is the verb of so many.
func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// sortedNames returns the keys of a map in order.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
