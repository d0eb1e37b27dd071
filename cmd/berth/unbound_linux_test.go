package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/lease"
)

// unboundHeld is a claim that can't be bound to its command.
type unboundHeld struct {
	validHeld
	late bool // it is found out after the command has ended
}

func (h unboundHeld) bind(_ context.Context, pid int) error {
	for h.late {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
	}
	return errors.New("no such process")
}

func TestAClaimThatCannotBeBoundToAnEndedCommandIsNotReported(t *testing.T) {
	t.Parallel()
	for late, script := range map[bool]string{true: "exit 0", false: "trap 'exit 0' TERM; while :; do sleep 0.05; done"} {
		cmd, err := findCommand([]string{"sh", "-c", script})
		if err != nil {
			t.Fatal(err)
		}
		signals, said := make(chan os.Signal, 32), 0
		j := &job{held: unboundHeld{late: late}, clock: lease.BootClock(), signals: signals, say: func(string, ...any) {
			said++
			signals <- unix.SIGTERM
		}}
		if result, err := j.run(cmd, os.Environ()); err != nil || said != map[bool]int{true: 0, false: 1}[late] {
			t.Errorf("with a late error %t: said %d times, %v, %v", late, said, result, err)
		}
	}
}
