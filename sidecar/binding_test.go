package sidecar

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/server"
)

func TestABindingIsWrittenAndRead(t *testing.T) {
	for want, b := range map[string]binding{
		`{"v":1}`:               {},
		`{"v":1,"ttl":"lease"}`: byLease,
		`{"v":1,"ttl":"1m30s"}`: {ttl: 90 * time.Second},
		`{"v":1,"ttl":"1h0m0s","pid":7,"start":99,"boot":"abcdef01"}`: {
			ttl: time.Hour, proc: processID{pid: 7, start: 99, boot: "abcdef01"},
		},
		`{"v":1,"ttl":"lease","asker":"me"}`: {lease: true, asker: "me"},
		`{"v":1,"pid":7,"start":99,"boot":"x","only_kill":true,"asker":"me"}`: {
			proc: processID{pid: 7, start: 99, boot: "x"}, onlyKill: true, asker: "me",
		},
	} {
		if got := b.encode(); got != want {
			t.Errorf("%+v is written as %s, want %s", b, got, want)
		}
		if got, err := decodeBinding(want); err != nil || got != b {
			t.Errorf("%s is read as %+v, %v", want, got, err)
		}
	}
	for _, bad := range []string{
		"", "null", "{}", `{"v":2}`, `{"v":1,"x":1}`, `{"v":1,"ttl":"0s"}`, `{"v":1,"ttl":"1000h"}`, `{"v":1,"ttl":"-1"}`,
		`{"v":1,"pid":-1,"boot":"x"}`, `{"v":1,"pid":1}`, `{"v":1,"boot":"x"}`, `{"v":1,"start":1}`, `{"v":1}{}`,
		`{"v":1,"only_kill":true}`,
	} {
		if b, err := decodeBinding(bad); err == nil {
			t.Errorf("%q is taken as %+v", bad, b)
		}
	}
}

func TestARenewalChangesWhatItNames(t *testing.T) {
	lease, minute, second := byLease, 60*time.Second, time.Second
	proc := processID{pid: 7, start: 99, boot: "x"}
	for what, test := range map[string]struct {
		from binding
		by   RenewRequest
		want binding
	}{
		"nothing":                {lease, RenewRequest{}, lease},
		"a ttl":                  {lease, RenewRequest{TTL: DurationOf(minute)}, binding{ttl: minute}},
		"no ttl":                 {binding{ttl: minute}, RenewRequest{TTL: DurationOf(0)}, binding{}},
		"a process":              {binding{ttl: minute}, RenewRequest{PID: 8}, binding{proc: processID{pid: 8}}},
		"a process and a ttl":    {lease, RenewRequest{PID: 8, TTL: DurationOf(second)}, binding{ttl: second, proc: processID{pid: 8}}},
		"a ttl beside a process": {binding{proc: proc}, RenewRequest{TTL: DurationOf(minute)}, binding{ttl: minute, proc: proc}},
		"another process":        {binding{ttl: minute, proc: proc}, RenewRequest{PID: 8}, binding{proc: processID{pid: 8}}},
		"one that is told":       {binding{proc: proc, onlyKill: true}, RenewRequest{PID: 8}, binding{proc: processID{pid: 8}}},
		"one that is killed":     {lease, RenewRequest{PID: 8, OnlyKill: true}, binding{proc: processID{pid: 8}, onlyKill: true}},
		"what is killed":         {binding{proc: proc, onlyKill: true}, RenewRequest{TTL: DurationOf(minute)}, binding{ttl: minute, proc: proc, onlyKill: true}},
		"an asker's process":     {binding{lease: true, asker: "me"}, RenewRequest{PID: 8}, binding{proc: processID{pid: 8}, asker: "me"}},
	} {
		got, err := test.from.renewed(test.by)
		if d := cmp.Diff(test.want, got, cmp.AllowUnexported(binding{}, processID{})); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", what, err, d)
		}
	}
}

func TestAProcessIsBoundByItsOwnUserOnly(t *testing.T) {
	for what, test := range map[string]struct {
		who   server.Peer
		tcp   bool
		owner uint32
		want  problem.Code
	}{
		"its own user":         {server.Peer{Known: true, UID: 1000}, false, 1000, ""},
		"root":                 {server.Peer{Known: true}, false, 1000, ""},
		"another user":         {server.Peer{Known: true, UID: 1001}, false, 1000, problem.Forbidden},
		"a user for root's":    {server.Peer{Known: true, UID: 1001}, false, 0, problem.Forbidden},
		"nobody knows":         {server.Peer{}, false, 1000, problem.Invalid},
		"nobody knows, root's": {server.Peer{}, false, 0, problem.Invalid},
		"over TCP":             {server.Peer{}, true, 1000, problem.Invalid},
	} {
		err := checkOwner(test.who, !test.tcp, 12345, test.owner)
		if (err == nil) != (test.want == "") || err != nil && problem.CodeOf(err) != test.want {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestWhatProcSaysIsRead(t *testing.T) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Skip("there is no /proc")
	}
	start, err := parseStart(stat)
	if err != nil || start == 0 {
		t.Errorf("start %d, %v", start, err)
	}
	odd := "42 (a) S (b) c\n) R 1 2 3 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0 0"
	if got, err := parseStart([]byte(odd)); err != nil || got != 777 {
		t.Errorf("%d, %v", got, err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	if uid, err := parseUID(status); err != nil || strconv.Itoa(int(uid)) != strconv.Itoa(os.Getuid()) {
		t.Errorf("uid %d, %v", uid, err)
	}
}

func TestStateFilesAreOfOneClaimAndItsFence(t *testing.T) {
	f := newBindFiles(t.TempDir(), "sidecar", nil)
	b := binding{ttl: time.Minute}
	if err := f.save("mine", 7, b, validity{}); err != nil {
		t.Fatal(err)
	}
	if err := f.save("mine", 8, byLease, validity{}); err != nil { // replaces it
		t.Fatal(err)
	}
	if _, ok := f.load("mine", 7); ok {
		t.Error("that of a later claim was taken")
	}
	if got, ok := f.load("mine", 8); !ok || got != byLease {
		t.Errorf("%+v, %t", got, ok)
	}
	if _, ok := f.load("other", 8); ok {
		t.Error("there is one for another claim")
	}
	if err := f.save("kept", 1, b, validity{}); err != nil {
		t.Fatal(err)
	}
	f.sweep(func(id string) bool { return id == "kept" })
	left, err := os.ReadDir(f.dir)
	if err != nil || len(left) != 1 || left[0].Name() != "kept.json" {
		t.Errorf("left: %v, %v", left, err)
	}
	f.remove("kept")
	f.remove("kept")
	if _, ok := f.load("kept", 1); ok {
		t.Error("a removed one is there")
	}
	none := newBindFiles("", "sidecar", nil)
	if err := none.save("mine", 1, b, validity{}); err != nil {
		t.Error(err)
	}
}

func TestWhatHasEndedIsRememberedForAWhile(t *testing.T) {
	l := newEndedLog()
	why := problem.New(problem.ClaimLost, "lost")
	l.add("a", 1, why, 0)
	if got := l.why("a", keepEnded-1); got != why {
		t.Errorf("%v", got)
	}
	if got := l.why("a", keepEnded); got != nil {
		t.Errorf("for ever: %v", got)
	}
	for i := range maxEnded + 100 {
		l.add(strconv.Itoa(i), 1, why, time.Duration(i))
	}
	if len(l.byID) != maxEnded || len(l.order) != maxEnded || l.why("99", 200) != nil || l.why("100", 200) == nil {
		t.Errorf("%d are kept, in a list of %d", len(l.byID), len(l.order))
	}
	l.forget("100")
	if l.why("100", 200) != nil {
		t.Error("what was forgotten is there")
	}
	l.add("late", 1, why, 2*keepEnded)
	if len(l.byID) != 1 {
		t.Errorf("%d are kept that nobody asks for", len(l.byID))
	}
}
