package claims

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

func TestABindingIsWrittenAndRead(t *testing.T) {
	for want, b := range map[string]Binding{
		`{"v":1}`:               {},
		`{"v":1,"ttl":"lease"}`: byLease,
		`{"v":1,"ttl":"1m30s"}`: {ttl: 90 * time.Second},
		`{"v":1,"ttl":"1h0m0s","pid":7,"start":99,"boot":"abcdef01","uid":1000}`: {
			uid: 1000, ttl: time.Hour, proc: proc.ID{PID: 7, Start: 99, Boot: "abcdef01"},
		},
		`{"v":1,"ttl":"lease","client_token_hash":"` + hashOf("me") + `"}`: {lease: true, tokenHash: hashOf("me")},
		`{"v":1,"pid":7,"start":99,"boot":"x","uid":0,"only_kill":true,"client_token_hash":"` + hashOf("me") + `"}`: {
			proc: proc.ID{PID: 7, Start: 99, Boot: "x"}, onlyKill: true, tokenHash: hashOf("me"),
		},
	} {
		if got := b.Encode(); got != want {
			t.Errorf("%+v is written as %s, want %s", b, got, want)
		}
		if got, err := decodeBinding(want); err != nil || got != b {
			t.Errorf("%s is read as %+v, %v", want, got, err)
		}
	}
	for _, bad := range []string{
		"", "null", "{}", `{"v":2}`, `{"v":1,"x":1}`, `{"v":1,"ttl":"0s"}`, `{"v":1,"ttl":"1000h"}`, `{"v":1,"ttl":"-1"}`,
		`{"v":1,"pid":-1,"boot":"x"}`, `{"v":1,"pid":1}`, `{"v":1,"boot":"x"}`, `{"v":1,"start":1}`, `{"v":1}{}`,
		`{"v":1,"only_kill":true}`, `{"v":1,"uid":0}`, `{"v":1,"pid":7,"boot":"x"}`, `{"v":1,"pid":7,"boot":"x","uid":-1}`,
	} {
		if b, err := decodeBinding(bad); err == nil {
			t.Errorf("%q is taken as %+v", bad, b)
		}
	}
}

func TestTheTextOfAClientTokenIsNotRecorded(t *testing.T) {
	b, err := BindingOf(Life{ClientToken: "secret"})
	if err != nil || strings.Contains(b.Encode(), "secret") {
		t.Errorf("%s, %v", b.Encode(), err)
	}
	if other, _ := BindingOf(Life{ClientToken: "Secret"}); other == b {
		t.Error("another token has the same binding")
	}
}

func TestARenewalChangesWhatItNames(t *testing.T) {
	lease, minute, second := byLease, 60*time.Second, time.Second
	process := proc.ID{PID: 7, Start: 99, Boot: "x"}
	for what, test := range map[string]struct {
		from Binding
		by   Life
		want Binding
	}{
		"nothing":                       {lease, Life{}, lease},
		"a ttl":                         {lease, Life{TTL: &minute}, Binding{ttl: minute}},
		"no ttl":                        {Binding{ttl: minute}, Life{TTL: new(time.Duration)}, Binding{}},
		"a process":                     {Binding{ttl: minute}, Life{PID: 8, UID: 9}, Binding{proc: proc.ID{PID: 8}, uid: 9}},
		"a process and a ttl":           {lease, Life{PID: 8, TTL: &second}, Binding{ttl: second, proc: proc.ID{PID: 8}}},
		"a ttl added to a process":      {Binding{proc: process, uid: 9}, Life{TTL: &minute, UID: 10}, Binding{ttl: minute, proc: process, uid: 9}},
		"another process":               {Binding{ttl: minute, proc: process}, Life{PID: 8}, Binding{proc: proc.ID{PID: 8}}},
		"one that is terminated":        {Binding{proc: process, onlyKill: true}, Life{PID: 8}, Binding{proc: proc.ID{PID: 8}}},
		"one that is killed":            {lease, Life{PID: 8, OnlyKill: true}, Binding{proc: proc.ID{PID: 8}, onlyKill: true}},
		"what is killed":                {Binding{proc: process, onlyKill: true}, Life{TTL: &minute}, Binding{ttl: minute, proc: process, onlyKill: true}},
		"a process with a client token": {Binding{lease: true, tokenHash: "me"}, Life{PID: 8}, Binding{proc: proc.ID{PID: 8}, tokenHash: "me"}},
	} {
		got, err := test.from.renewed(test.by)
		if d := cmp.Diff(test.want, got, cmp.AllowUnexported(Binding{}, proc.ID{})); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", what, err, d)
		}
	}
}

func TestStateFilesAreOfOneClaimAndItsFence(t *testing.T) {
	f := NewFiles(t.TempDir(), "sidecar", bindFolder, nil)
	b := Binding{ttl: time.Minute}
	if err := f.save("mine", 7, b, validity{}); err != nil {
		t.Fatal(err)
	}
	if err := f.save("mine", 8, byLease, validity{}); err != nil { // replaces it
		t.Fatal(err)
	}
	if _, ok, _ := f.load("mine", 7); ok {
		t.Error("that of a later claim was taken")
	}
	if got, ok, err := f.load("mine", 8); !ok || got != byLease || err != nil {
		t.Errorf("%+v, %t, %v", got, ok, err)
	}
	if _, ok, err := f.load("other", 8); ok || err != nil {
		t.Error("there is one for another claim")
	}
	if err := f.save("kept", 1, b, validity{}); err != nil {
		t.Fatal(err)
	}
	f.Sweep(func(id string) bool { return id == "kept" })
	left, err := os.ReadDir(f.dir)
	if err != nil || len(left) != 1 || left[0].Name() != "kept.json" {
		t.Errorf("left: %v, %v", left, err)
	}
	f.Remove("kept")
	f.Remove("kept")
	if _, ok, _ := f.load("kept", 1); ok {
		t.Error("a removed one is there")
	}
	none := NewFiles("", "sidecar", bindFolder, nil)
	if err := none.save("mine", 1, b, validity{}); err != nil {
		t.Error(err)
	}
}

// A file name has 255 bytes at most.
func TestAClaimWithTheLongestIDHasAStateFile(t *testing.T) {
	f := NewFiles(t.TempDir(), "sidecar", bindFolder, nil)
	long := []string{strings.Repeat("x", pool.MaxID), strings.Repeat("x", pool.MaxID-1) + "y", strings.Repeat("x", 250), strings.Repeat("x", 251)}
	for i, id := range long {
		if err := f.save(id, store.Fence(i+1), Binding{ttl: time.Minute}, validity{}); err != nil {
			t.Fatal(err)
		}
	}
	f.Sweep(func(id string) bool { return id != long[0] })
	if ids, err := f.ids(); err != nil || !slices.Equal(ids, slices.Sorted(slices.Values(long[1:]))) {
		t.Errorf("%v, %v", ids, err)
	}
	for i, id := range long {
		if _, ok, err := f.load(id, store.Fence(i+1)); ok != (i > 0) || err != nil {
			t.Errorf("%d: %t, %v", i, ok, err)
		}
		f.Remove(id)
	}
	if left, err := os.ReadDir(f.dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestWhatHasEndedIsRememberedForAWhile(t *testing.T) {
	l := NewEndedLog()
	why := problem.New(problem.ClaimLost, "lost")
	l.Add("a", 1, "", why, 0)
	if got := l.Why("a", keepEnded-1); got != why {
		t.Errorf("%v", got)
	}
	if got := l.Why("a", keepEnded); got != nil {
		t.Errorf("for ever: %v", got)
	}
	for i := range maxEnded + 100 {
		l.Add(strconv.Itoa(i), 1, "", why, time.Duration(i))
	}
	if len(l.byID) != maxEnded || len(l.order) != maxEnded || l.Why("99", 200) != nil || l.Why("100", 200) == nil {
		t.Errorf("%d are kept, in a list of %d", len(l.byID), len(l.order))
	}
	l.forget("100", pool.Holder{})
	if l.Why("100", 200) != nil {
		t.Error("what was forgotten is there")
	}
	l.Add("late", 1, "", why, 2*keepEnded)
	if len(l.byID) != 1 {
		t.Errorf("%d unused ones are kept", len(l.byID))
	}
}

// A client that requests one id again and again finds out why its last request has failed.
func TestAnIDThatEndsAgainAndAgainKeepsItsLastReason(t *testing.T) {
	l := NewEndedLog()
	var why *problem.Error
	for i := range 2 * maxEnded {
		l.forget("a", pool.Holder{})
		why = problem.New(problem.ClaimTimeout, "%d", i)
		l.Add("a", 0, "", why, 0)
		if got := l.Why("a", 1); got != why {
			t.Fatalf("%d: %v", i, got)
		}
	}
	for i := range maxEnded - 1 {
		l.Add(strconv.Itoa(i), 1, "", why, 1)
	}
	if l.Why("a", 1) != why || len(l.byID) != maxEnded {
		t.Errorf("%v; %d are kept", l.Why("a", 1), len(l.byID))
	}
}

func TestAnIdentityRemovesNoRecordOfTheEndOfAnothersClaim(t *testing.T) {
	l := NewEndedLog()
	why := problem.New(problem.ClaimLost, "lost")
	of := func(by string) pool.Holder { return pool.Holder{ClaimedBy: by} }
	l.add(&endedClaim{id: "a", why: why, holder: of("user:mine")}, 0)
	for i := range 2 * maxEnded {
		other := &endedClaim{id: strconv.Itoa(i), why: why, holder: of("user:other")}
		if i%2 == 0 {
			other.id = "a"
		}
		l.add(other, 1)
	}
	mine := l.last("a", 1, func(e *endedClaim) bool { return e.holder.ClaimedBy == "user:mine" })
	if mine == nil || mine.why != why || len(l.order) > maxEnded/2+1 || l.counts["user:other"] > maxEnded/2 {
		t.Errorf("%v is left of mine, with %d entries", mine, len(l.order))
	}
}
