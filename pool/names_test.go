package pool

import (
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

func TestNamesThatAreRefused(t *testing.T) {
	for _, tc := range []struct {
		what      string
		validate  func(string) error
		well, bad []string
	}{
		{
			"the name of a pool", ValidateName,
			[]string{"a", "0", "db.main", "task.x_y-z", strings.Repeat("a", maxPoolName)},
			[]string{"", "A", ".a", "-a", "a b", "a/b", "ä", "a\x00", strings.Repeat("a", maxPoolName+1)},
		},
		{
			"the id of a claim", ValidateID,
			[]string{"a", "A.b_c-1", strings.Repeat("a", MaxID)},
			[]string{"", "_a", "a/b", "a b", "a\n", "é", strings.Repeat("a", MaxID+1)},
		},
		{
			"what names a claim", ValidateClaim,
			[]string{"a", "host/sidecar/A"},
			[]string{"", "a/b", "host/sidecar/", "Host/sidecar/a", "host/sidecar/a/b", "/sidecar/a"},
		},
		{
			"a line", func(s string) error { return ValidateLine("f", s) },
			[]string{"", "any text, also ä"},
			[]string{"a\nb", "\x1b[2J", "a\u202eb", "\xff", "a\u2028"},
		},
		{
			"a limit", func(s string) error { _, err := ParseLimit(s); return err },
			[]string{"-1", "0", "1", "1000000"},
			[]string{"", "-2", "1000001", "+1", "0x1", "1e3", "two", " 1", "-9223372036854775809"},
		},
		{
			"reserve_after", func(s string) error { _, err := ParseReserveAfter(s); return err },
			[]string{"-1", "0s", "1m30s"},
			[]string{"", "1", "soon"},
		},
	} {
		for _, s := range tc.well {
			if err := tc.validate(s); err != nil {
				t.Errorf("%s: %q is refused: %v", tc.what, s, err)
			}
		}
		for _, s := range tc.bad {
			if err := tc.validate(s); problem.CodeOf(err) != problem.Invalid {
				t.Errorf("%s: %q: %v", tc.what, s, err)
			}
		}
	}
}

func TestTimesToReserveAreReadAsTheyAreWritten(t *testing.T) {
	for _, d := range []time.Duration{NeverReserve, 0, time.Second, time.Hour} {
		if got, err := ParseReserveAfter(FormatReserveAfter(d)); got != d || err != nil {
			t.Errorf("%s is written %q, and read as %s, %v", d, FormatReserveAfter(d), got, err)
		}
	}
}

func TestRequestsForTheSameClaim(t *testing.T) {
	request := func(change func(*Request)) *Request {
		r := &Request{ID: "a", Slots: map[string]int{"db": 1}, Priority: 1, Holder: Holder{
			Host: "h", Instance: "i", ClaimedBy: "user:alice", Run: "r", Step: "s", PID: 7, Labels: map[string]string{"k": "v"}, Bind: "pid",
		}}
		change(r)
		return r
	}
	same := request(func(*Request) {})
	for name, change := range map[string]func(*Request){
		"another wait":     func(r *Request) { r.Wait = time.Minute },
		"another instance": func(r *Request) { r.Holder.Instance = "j" },
	} {
		if !same.SameAs(request(change)) {
			t.Errorf("%s is another claim", name)
		}
	}
	for name, change := range map[string]func(*Request){
		"slots":    func(r *Request) { r.Slots = map[string]int{"db": 2} },
		"priority": func(r *Request) { r.Priority = 2 },
		"identity": func(r *Request) { r.Holder.ClaimedBy = "user:bob" },
		"run":      func(r *Request) { r.Holder.Run = "x" },
		"step":     func(r *Request) { r.Holder.Step = "x" },
		"pid":      func(r *Request) { r.Holder.PID = 8 },
		"labels":   func(r *Request) { r.Holder.Labels = nil },
		"bind":     func(r *Request) { r.Holder.Bind = "ttl" },
	} {
		if same.SameAs(request(change)) {
			t.Errorf("another %s is the same claim", name)
		}
	}
}

func TestPlacesAreBounded(t *testing.T) {
	all := NewPlaces(1)
	first, second := all.New(), all.New()
	for range 2 { // taken once
		if !first.Take() {
			t.Error("a place is not taken by the one that has it")
		}
	}
	if second.Take() || all.Free() != 0 || second.Available() || !first.Available() {
		t.Error("one place was taken by two")
	}
	second.Force()
	first.Give()
	if all.Free() != 0 || first.Take() {
		t.Error("a place that was taken by force counts")
	}
	second.Give()
	if all.Free() != 1 || !first.Take() {
		t.Error("a place that was given back can be taken")
	}
	if none := (*Place)(nil); !none.Take() || !none.Available() || none.Taken() {
		t.Error("no place is no bound")
	}
}
