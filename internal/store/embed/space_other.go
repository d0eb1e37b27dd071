//go:build !linux && !darwin

package embed

import "math"

// freeBytes takes every disk for endless where it can't be asked.
func freeBytes(string) (uint64, error) { return math.MaxUint64, nil }
