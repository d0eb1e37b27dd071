package main

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

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
	return "after " + text.Duration(d)
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
