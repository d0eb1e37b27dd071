//go:build !linux

package proc

// AdoptsOrphans is false: elsewhere only the first process of the machine adopts orphans.
func AdoptsOrphans() bool { return false }

// ReapOrphans is not called.
func ReapOrphans() {}
