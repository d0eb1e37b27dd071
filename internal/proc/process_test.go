package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestWhatProcSaysIsRead(t *testing.T) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Skip("there is no /proc")
	}
	if s, err := parseStat(stat); err != nil || s.PID != os.Getpid() || s.Parent != os.Getppid() || s.Start == 0 || s.Ended() {
		t.Errorf("%+v, %v", s, err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	if o, err := parseOwner(status); err != nil || strconv.Itoa(int(o.Real)) != strconv.Itoa(os.Getuid()) {
		t.Errorf("%+v, %v", o, err)
	}
	o, err := parseOwner([]byte("Name:\tx\nUid:\t1000\t1001\t1002\t1003\nGid:\t1\t1\t1\t1\n"))
	if err != nil || o != (Owner{Real: 1000, Saved: 1002}) {
		t.Errorf("%+v, %v", o, err)
	}
	for uid, want := range map[uint32]bool{0: true, 1000: true, 1001: false, 1002: true, 1003: false} {
		if o.Allows(uid) != want {
			t.Errorf("user %d may signal it: %t", uid, !want)
		}
	}
}

func TestAStatIsReadBehindTheName(t *testing.T) {
	s, err := parseStat([]byte("42 (a b) ) S 7 8 9 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 1 0 12345 1 1\n"))
	if want := (Stat{PID: 42, State: 'S', Parent: 7, Session: 9, Start: 12345, CPU: 70 * time.Millisecond}); err != nil || s != want {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAVanishedSupervisorsNumberMayBeAnothersByNow(t *testing.T) {
	r := ID{PID: 100, Start: 50}
	ours := []Stat{
		{PID: 101, State: 'S', Session: 100, Start: 50}, {PID: 102, State: 'R', Session: 100, Start: 60},
	}
	others := []Stat{
		{PID: 1, State: 'S', Session: 1, Start: 1}, {PID: 103, State: 'S', Session: 100, Start: 40},
		{PID: 104, State: 'Z', Session: 100, Start: 60}, {PID: 105, State: 'S', Session: 200, Start: 60},
	}
	all := append(append([]Stat{}, others...), ours...)
	for name, leader := range map[string][]Stat{"is gone": nil, "is not reaped": {{PID: 100, State: 'Z', Session: 100, Start: 50}},
		"is read in another time namespace": {{PID: 100, State: 'Z', Session: 100, Start: 51}},
	} {
		if left := r.LeftOf(append(leader, all...)); fmt.Sprint(left) != fmt.Sprint(ours) {
			t.Errorf("the supervisor %s: left are %v", name, left)
		}
	}
	if left := r.LeftOf(append(all, Stat{PID: 100, State: 'S', Session: 100, Start: 70})); left != nil {
		t.Errorf("with a new process of that number %v are left", left)
	}
}

func FuzzParseProc(f *testing.F) {
	f.Add([]byte("1 (a) b) c) S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0"))
	f.Add([]byte("Name:\tx\nUid:\t1000\t0\t0\t0\n"))
	f.Add([]byte(")"))
	f.Add([]byte("Uid:"))
	f.Add([]byte("42 (a b) ) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"))
	f.Add([]byte("42 (x) Z 1 42"))
	f.Add([]byte("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, statErr := parseStat(data)
		_, uidErr := parseOwner(data)
		if statErr == nil && (!bytes.Contains(data, []byte{')'}) || !bytes.Contains(data, []byte{s.State}) || len(bytes.Fields(data)) < 20) || uidErr == nil && !bytes.Contains(data, []byte("Uid:")) {
			t.Errorf("%q is taken", data)
		}
		if boot := parseBoot(data); len(boot) > 8 || strings.Contains(boot, "\n") && len(strings.TrimSpace(boot)) == 0 {
			t.Errorf("a boot called %q", boot)
		}
	})
}

func TestParseNamespaces(t *testing.T) {
	for status, want := range map[string]int{
		"Name:\tsh\nNSpid:\t4711\nThreads:\t1\n": 1,
		"Name:\tsh\nNSpid:\t4711\t7\n":           2,
		"Name:\tNSpid:\n":                        0,
	} {
		if got := parseNamespaces([]byte(status)); len(got) != want {
			t.Errorf("%q: %q", status, got)
		}
	}
}
