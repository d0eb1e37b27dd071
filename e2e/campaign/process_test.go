//go:build linux

package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestItIsKnownWhetherAProcessHasEndedByItself(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ps := &processes{ctx: ctx, net: newRelayed()}
	defer ps.wg.Wait()
	defer cancel()
	start := func(args ...string) *process {
		p := ps.add("h0", args[0], filepath.Join(t.TempDir(), "log"), args...)
		p.want(true)
		return p
	}
	alone, killed := start("true"), start("sleep", "1000")
	if !until(t.Context(), time.Millisecond, func() bool { return alone.byItself() > 0 }) {
		t.Error("the process that ended by itself is not known")
	}
	if !until(t.Context(), time.Millisecond, func() bool { return killed.pid() != 0 }) {
		t.Fatal("the other process does not start")
	}
	killed.want(false)
	killed.gone(t.Context())
	if n := killed.byItself(); n != 0 {
		t.Errorf("the process that was killed has ended by itself %d times", n)
	}
}

func TestALogSaysWhetherItsProcessHasCrashed(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "",
		"[INFO] ready\n[WARN] panic: of a job": "",
		"SIGQUIT: quit\ngoroutine 1:\n":        "",
		"[INFO] ready\npanic: nil map\n\ngoroutine 1:\n":                      "panic: nil map",
		"runtime: stack exceeds\nfatal error: stack overflow\npanic: twice\n": "fatal error: stack overflow",
	} {
		if got, err := crashed(strings.NewReader(text)); got != want || err != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
