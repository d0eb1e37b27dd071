//go:build unix && !linux

package main

import "syscall"

// childAttributes give the child a group of its own. This system can't have it
// killed when this process dies.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// hasEnded and endedNow do not know.
func hasEnded(int) bool { return false }
func endedNow(int) bool { return false }

// parentOf does not know either.
func parentOf(int) int { return 0 }
