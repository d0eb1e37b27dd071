package child

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/berthhq/berth/internal/store"
)

// stat is what /proc/<pid>/stat tells of a process.
type stat struct {
	pid     int
	state   byte
	parent  int
	session int
	start   uint64 // in clock ticks since the machine's boot: see [lease.BootTicks]
}

// ended tells whether the process has ended, and waits to be reaped perhaps.
func (s stat) ended() bool { return s.state == 'Z' || s.state == 'X' }

// parseStat reads the fields of a stat: pid (name) state parent group session …, of
// which the name may hold anything. The 22nd is the time of the start.
func parseStat(text []byte) (s stat, err error) {
	const state, parent, session, start = 3, 4, 6, 22
	first, _, _ := bytes.Cut(text, []byte(" "))
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return stat{}, errors.New("/proc/<pid>/stat has no name in it")
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) <= start-state || len(fields[0]) != 1 {
		return stat{}, fmt.Errorf("/proc/<pid>/stat has %d fields after the name", len(fields))
	}
	number := func(text []byte) int {
		n, e := strconv.Atoi(string(text))
		err = errors.Join(err, e)
		return n
	}
	s = stat{pid: number(first), state: fields[0][0], parent: number(fields[parent-state]), session: number(fields[session-state])}
	var e error
	s.start, e = strconv.ParseUint(string(fields[start-state]), 10, 64)
	return s, errors.Join(err, e)
}

// running is running.json: which process the supervisor is. Its number is that of
// the session as well. The boot and the namespace say where the number means it.
type running struct {
	store.V
	PID       int    `json:"pid"`
	Start     uint64 `json:"start"`
	Boot      string `json:"boot"`
	Namespace string `json:"namespace"`
}

func decodeRunning(data []byte) (running, error) {
	var r running
	if err := store.Decode(runningName, data, &r); err != nil {
		return running{}, fileError(err)
	}
	if r.PID <= 0 || r.Boot == "" || r.Namespace == "" {
		return running{}, &FileError{Name: runningName, Reason: errors.New("pid, boot, namespace: they are missing")}
	}
	return r, nil
}

// leftOf returns those of all processes that are left of a vanished supervisor's
// session. There are none if its number is another process' by now.
func (r running) leftOf(all []stat) []stat {
	var left []stat
	for _, p := range all {
		// A start that was read in another time namespace may differ by a tick.
		if p.pid == r.PID && (p.start > r.Start+1 || p.start+1 < r.Start) {
			return nil
		}
		if p.session == r.PID && p.pid != r.PID && p.start+1 >= r.Start && !p.ended() {
			left = append(left, p)
		}
	}
	return left
}
