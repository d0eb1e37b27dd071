package main

import (
	"context"
	"testing"
	"time"
)

// A server that stops while its cluster has no leader would check for one forever.
func TestWhatIsCheckedForEndsWithTheServer(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	if !checkUntil(ended, time.Hour, func() bool { return true }) {
		t.Error("what holds is not found")
	}
	cancel()
	for _, holds := range []bool{true, false} {
		if checkUntil(ended, time.Hour, func() bool { return holds }) {
			t.Errorf("after the end, a condition that is %v holds", holds)
		}
	}
}
