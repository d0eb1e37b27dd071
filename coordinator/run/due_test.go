package run

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTimesAreReadWithTheirZoneOnly(t *testing.T) {
	for text, want := range map[string]string{
		"2026-11-22T15:00:00Z":               "2026-11-22T15:00:00Z",
		"2026-11-22T16:00:00.1239+01:00":     "2026-11-22T15:00:00.123Z",
		"2026-11-22T15:00:00":                "",
		"2026-11-22":                         "",
		"tomorrow":                           "",
		"":                                   "",
		"9999-12-31T23:59:59-01:00":          "", // a year of five digits, which JSON does not have
		"0001-01-01T00:00:00+23:00":          "",
		"2026-11-22T15:00:00Z\n":             "",
		strings.Repeat("9", 200) + "-01-01T": "",
	} {
		got, err := ParseInstant("not_before", text)
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "is not a time with its zone, such as 2026-11-22T15:00:00Z") || len(err.Error()) > 300 {
				t.Errorf("%q is read as %s (%v)", text, got, err)
			}
			continue
		}
		data, _ := json.Marshal(got)
		var again Instant
		if err != nil || string(data) != `"`+want+`"` || json.Unmarshal(data, &again) != nil || again != got {
			t.Errorf("%q is read as %s, and again as %s (%v)", text, data, again, err)
		}
	}
	var wrong *json.UnmarshalTypeError
	for _, text := range []string{`{"not_before": 12}`, `{"not_before": "noon"}`, `{"not_before": {}}`} {
		var s Spec
		if err := json.Unmarshal([]byte(text), &s); !errors.As(err, &wrong) || wrong.Field != "not_before" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzInstant(f *testing.F) {
	f.Add(`"2026-11-22T15:00:00Z"`)
	f.Add(`"9999-12-31T23:59:59-23:59"`)
	f.Fuzz(func(t *testing.T, data string) {
		var i, again Instant
		if json.Unmarshal([]byte(data), &i) != nil {
			return
		}
		written, err := json.Marshal(i)
		if err != nil || json.Unmarshal(written, &again) != nil || i != again {
			t.Errorf("%s is written as %s (%v), and read as %s", data, written, err, again)
		}
	})
}

// A delay that is asked for again is the same, though it is another time.
func TestTheSameDelayIsTheSameSubmission(t *testing.T) {
	now := time.Date(2026, 11, 22, 15, 0, 0, 0, time.UTC)
	asked := Spec{Delay: time.Minute}
	rec, event := queued(asked, now)
	if !rec.NotBefore.Equal(now.Add(time.Minute)) || event.Metadata["not_before"] != "2026-11-22T15:01:00Z" {
		t.Errorf("%+v, %+v", rec, event)
	}
	at := Spec{NotBefore: InstantOf(now.Add(time.Minute))}
	if !rec.sameAs(&asked) || rec.sameAs(&at) || asked.sameAs(&Spec{Delay: 2 * time.Minute}) || at.sameAs(&Spec{}) {
		t.Error("sameAs is wrong about what is the same, or what is not")
	}
	for _, s := range []Spec{{Delay: -1}, {Delay: MaxDelay + 1}, {Delay: 1, NotBefore: at.NotBefore}} {
		if s.ValidateNew() == nil {
			t.Errorf("%+v is not refused", s)
		}
	}
}

func TestUntilSaysHowLongThatIs(t *testing.T) {
	at := InstantOf(time.Date(2026, 11, 22, 15, 0, 0, 0, time.UTC))
	for before, want := range map[time.Duration]string{
		9*time.Minute + 58*time.Second: " (in 9m58s)", time.Millisecond: " (in 1s)", 0: " (now due)", -time.Hour: " (now due)",
	} {
		if got := at.Until(at.Add(-before)); got != "not before 2026-11-22T15:00:00Z"+want {
			t.Errorf("%s before: %s", before, got)
		}
	}
	if got := at.Until(time.Time{}); got != "not before 2026-11-22T15:00:00Z" {
		t.Error(got)
	}
}

// The order of the queue is one order of all runs, whatever they had to wait for.
func TestTheOrderOfTheQueueIsTotal(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) *Run {
		r := &Run{ID: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id"), Created: rapid.Int64Range(1, 3).Draw(t, "created")}
		r.Status, r.Priority = Queued, rapid.IntRange(0, 1).Draw(t, "priority")
		if n := rapid.IntRange(0, 3).Draw(t, "not before"); n > 0 {
			r.NotBefore = InstantOf(time.Unix(int64(n), 0))
			if rapid.Bool().Draw(t, "joined") {
				r.Joined = r.Created + rapid.Int64Range(0, 2).Draw(t, "behind")
			}
		}
		return r
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := gen.Draw(t, "a"), gen.Draw(t, "b"), gen.Draw(t, "c")
		ab, bc, ac := a.Compare(b), b.Compare(c), a.Compare(c)
		switch {
		case ab != -b.Compare(a):
			t.Fatalf("%d, and turned round %d", ab, b.Compare(a))
		case ab <= 0 && bc <= 0 && ac > 0:
			t.Fatalf("a before b before c before a")
		case !a.Deferred() && b.Deferred() && ab >= 0:
			t.Fatal("one whose time has not come stands before one that waits")
		}
	})
}
