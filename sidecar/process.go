package sidecar

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/server"
)

// errNoProcess tells that a process is gone, or that its number is another
// process' by now.
var errNoProcess = errors.New("there is no such process")

// errOtherSpace tells that the number of a process means nothing here.
var errOtherSpace = errors.New("this sidecar runs in another pid namespace than the one that was told the number")

// checkOwner refuses to bind to a process that is none of the asking user's.
func checkOwner(who server.Peer, local bool, pid int, owner uint32) error {
	switch {
	case !local:
		return problem.Field("pid", "a process can be named over the unix socket only, where the system tells who asks")
	case !who.Known:
		return problem.Field("pid", "this system does not tell who asks")
	case who.UID != 0 && who.UID != owner:
		e := problem.New(problem.Forbidden, "process %d belongs to another user", pid)
		e.Field = "pid"
		return e
	}
	return nil
}

// noProcess is the problem of a pid that nobody has.
func noProcess(pid int, err error) error {
	if errors.Is(err, errNoProcess) {
		return problem.Field("pid", "there is no process %d", pid)
	}
	return problem.Field("pid", "process %d can't be watched: %w", pid, err)
}

// parseStart finds the time of a process' start in /proc/<pid>/stat, in clock
// ticks since the boot: the 22nd field, of which the second, the name, may hold
// anything.
func parseStart(stat []byte) (uint64, error) {
	const fromState, startTime = 3, 22
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, errors.New("/proc/<pid>/stat has no name in it")
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) <= startTime-fromState {
		return 0, fmt.Errorf("/proc/<pid>/stat has %d fields after the name", len(fields))
	}
	return strconv.ParseUint(string(fields[startTime-fromState]), 10, 64)
}

// parseUID finds the real user in /proc/<pid>/status.
func parseUID(status []byte) (uint32, error) {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("Uid:")); ok {
			if ids := bytes.Fields(rest); len(ids) > 0 {
				uid, err := strconv.ParseUint(string(ids[0]), 10, 32)
				return uint32(uid), err
			}
		}
	}
	return 0, errors.New("/proc/<pid>/status names no user")
}

// parseBoot shortens the id of the machine's boot to what tells two apart.
func parseBoot(id []byte) string {
	s := strings.TrimSpace(string(id))
	return s[:min(len(s), 8)]
}
