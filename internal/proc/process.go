package proc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

var (
	// ErrNoProcess means that a process has ended, even if its number is in use again.
	ErrNoProcess = errors.New("there is no such process")
	// ErrOtherUser means that a process may not be signaled for a user any more.
	ErrOtherUser = errors.New("the process has become another user's")
	// ErrOtherNamespace means that a process number is of another pid namespace.
	ErrOtherNamespace = errors.New("the process is in another pid namespace than berth")
	// ErrOtherProc means that the numbers in /proc are those of another pid namespace.
	ErrOtherProc = errors.New("/proc is that of another pid namespace than berth's: mount the one of its own")
	// ErrHidden means that a process lives and /proc does not show it to this user.
	ErrHidden = errors.New("/proc hides the process from the user of berth, as with its option hidepid")
)

// ID identifies a process.
type ID struct {
	PID int `json:"pid,omitempty"`
	// Start is when it was started, in clock ticks since the boot: see [lease.BootTicks].
	Start uint64 `json:"start,omitempty"`
	// Boot identifies the boot of the machine.
	Boot string `json:"boot,omitempty"`
	// Namespace is the inode of the pid namespace in which PID is its number.
	Namespace uint64 `json:"pid_namespace,omitempty"`
	// Init is set if the program that identified the process is the first of that
	// namespace: all others of the namespace end with it.
	Init bool `json:"init,omitempty"`
}

// Same reports whether both are the same process. Starts that were read in different
// time namespaces may differ by a tick.
func (id ID) Same(other ID) bool {
	return id.PID == other.PID && id.Boot == other.Boot && id.Namespace == other.Namespace && sameStart(id.Start, other.Start)
}

func sameStart(a, b uint64) bool { return a <= b+1 && b <= a+1 }

// ClockTick is the unit of times in /proc/<pid>/stat: USER_HZ is 100 wherever Go runs.
const ClockTick = 10 * time.Millisecond

// Stat holds some fields of /proc/<pid>/stat.
type Stat struct {
	PID     int
	State   byte
	Parent  int
	Session int
	Start   uint64 // as in [ID]
	// CPU is the processor time of all its threads, user and system.
	CPU time.Duration
}

// Ended reports whether the process has ended. It may not be reaped yet.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// parseStat reads pid (name) state parent group session …, where the name may contain
// any characters. The 14th and 15th fields are the processor time, and the 22nd is the start.
func parseStat(text []byte) (s Stat, err error) {
	const state, parent, session, user, system, start = 3, 4, 6, 14, 15, 22
	first, _, _ := bytes.Cut(text, []byte(" "))
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return Stat{}, errors.New("/proc/<pid>/stat has no name in it")
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) <= start-state || len(fields[0]) != 1 {
		return Stat{}, fmt.Errorf("/proc/<pid>/stat has %d fields after the name", len(fields))
	}
	number := func(text []byte) int {
		n, e := strconv.Atoi(string(text))
		err = errors.Join(err, e)
		return n
	}
	s = Stat{PID: number(first), State: fields[0][0], Parent: number(fields[parent-state]), Session: number(fields[session-state])}
	s.CPU = time.Duration(number(fields[user-state])+number(fields[system-state])) * ClockTick
	var e error
	s.Start, e = strconv.ParseUint(string(fields[start-state]), 10, 64)
	return s, errors.Join(err, e)
}

// LeftOf returns the processes among all that are left of a session whose leader has
// ended. There are none if the leader's number is another process' by now.
func (id ID) LeftOf(all []Stat) []Stat {
	var left []Stat
	for _, p := range all {
		if p.PID == id.PID && !sameStart(p.Start, id.Start) {
			return nil
		}
		if p.Session == id.PID && p.PID != id.PID && p.Start+1 >= id.Start && !p.Ended() {
			left = append(left, p)
		}
	}
	return left
}

// Owner holds the users of a process.
type Owner struct{ Real, Saved uint32 }

// Allows reports whether kill(2) lets the user with that uid signal the process.
func (o Owner) Allows(uid uint32) bool { return uid == 0 || uid == o.Real || uid == o.Saved }

// parseOwner reads /proc/<pid>/status, where Uid is followed by the real, the effective,
// the saved and the file system user.
func parseOwner(status []byte) (Owner, error) {
	const realUser, savedUser = 0, 2
	for line := range bytes.Lines(status) {
		rest, ok := bytes.CutPrefix(line, []byte("Uid:"))
		ids := bytes.Fields(rest)
		if !ok || len(ids) <= savedUser {
			continue
		}
		r, err := strconv.ParseUint(string(ids[realUser]), 10, 32)
		s, e := strconv.ParseUint(string(ids[savedUser]), 10, 32)
		return Owner{Real: uint32(r), Saved: uint32(s)}, errors.Join(err, e)
	}
	return Owner{}, errors.New("/proc/<pid>/status names no user")
}

// parseBoot shortens a boot id to eight characters, which are enough to tell two apart.
func parseBoot(id []byte) string {
	s := strings.TrimSpace(string(id))
	return s[:min(len(s), 8)]
}

// parseNamespaces reads /proc/<pid>/status, where NSpid is followed by the numbers of the process in
// its pid namespaces, from that of the reader to its own.
func parseNamespaces(status []byte) []string {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			return strings.Fields(string(rest))
		}
	}
	return nil
}
