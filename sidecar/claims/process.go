package claims

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrNoProcess tells that a process is gone, or that its number is another
// process' by now.
var ErrNoProcess = errors.New("there is no such process")

// errOtherSpace tells that the number of a process means nothing here.
var errOtherSpace = errors.New("this sidecar runs in another pid namespace than the one that was told the number")

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
