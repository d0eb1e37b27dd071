package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
)

var keys = Keys{store.NewKeys("/b/")}

// Keys are sorted as what they name, and a slot key is never within the range of another run or of an area.
func TestKeysAreSorted(t *testing.T) {
	in := []string{
		keys.Number("db", 0), keys.Number("db", 9), keys.Number("db", 10), keys.Number("db", 999_999),
		keys.Block("db", 0, 64), keys.Block("db", 1, 0), keys.Block("db", 10, 262_080), keys.Block("db", 49, 7),
	}
	if !slices.IsSorted(in) {
		t.Errorf("not sorted: %q", in)
	}
	for _, tc := range []struct {
		run  slots.Run
		want int
	}{{slots.Run{To: 1}, 1}, {slots.Run{To: 10}, 2}, {slots.Run{From: 9, To: 11}, 2}, {slots.Run{From: 11, To: slots.MaxNumbersOfPool}, 1}, {slots.Run{To: slots.MaxNumbersOfPool}, 4}} {
		from, to := keys.Numbers("db", tc.run)
		if n := len(slices.DeleteFunc(slices.Clone(in), func(k string) bool { return k < from || k >= to })); n != tc.want {
			t.Errorf("%v has %d keys, want %d", tc.run, n, tc.want)
		}
	}
	if area := keys.Area("db", 1); strings.HasPrefix(keys.Block("db", 10, 1), area) || !strings.HasPrefix(keys.Block("db", 1, 1), area) {
		t.Errorf("%s is the prefix of another area", area)
	}
}

func drawRef(t *rapid.T) Ref {
	r := Ref{Pool: rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,62}`).Draw(t, "pool"), Area: rapid.IntRange(-1, slots.MaxAreas-1).Draw(t, "area")}
	r.Number = rapid.IntRange(0, slots.MaxNumbersOfPool-1).Draw(t, "number")
	return r
}

func TestRefsAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawRef(t), drawRef(t)
		if got, err := ParseRef(a.String()); got != a || err != nil {
			t.Errorf("%s: %v, %v", a, got, err)
		}
		if got, err := keys.Ref(a.Key(keys)); got != a || err != nil {
			t.Errorf("%s: %v, %v", a.Key(keys), got, err)
		}
		if (a.Key(keys) == b.Key(keys)) != (a.Compare(b) == 0) {
			t.Errorf("%v and %v", a, b)
		}
		if b.Pool = a.Pool; a.IsBlock() == b.IsBlock() && !a.IsBlock() && (a.Key(keys) < b.Key(keys)) != (a.Compare(b) < 0) {
			t.Errorf("%v and %v are sorted otherwise", a, b)
		}
	})
}

// FuzzRef reads keys and the names of keys. What is read is spelled as it was.
func FuzzRef(f *testing.F) {
	for _, s := range []string{"/b/pools/db/slots/000005", "/b/pools/db/slots/b/07/64", "/b/pools/db/spec", "db/5", "db/b/7/64", "db/b/07/64", "db/05", "db/-1", "/b/pools//slots/000005"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := keys.Ref(s); err == nil && r.Key(keys) != s {
			t.Errorf("%q is read as %q", s, r.Key(keys))
		}
		if r, err := ParseRef(s); err == nil && r.String() != s {
			t.Errorf("%q is read as %q", s, r)
		}
	})
}

// drawTaken draws what a claim takes: numbers in some pools, blocks in others.
func drawTaken(t *rapid.T) map[string]slots.Held {
	all := map[string]slots.Held{}
	for i := range rapid.IntRange(1, 3).Draw(t, "pools") {
		var h slots.Held
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			h.Numbers = rapid.SliceOfNDistinct(rapid.IntRange(0, 999_999), 1, 4, rapid.ID).Draw(t, "numbers")
		case 1:
			h.Blocks = []slots.Block{{Name: rapid.IntRange(0, 100).Draw(t, "name"), Count: rapid.IntRange(1, pool.MaxLimit).Draw(t, "count")}}
		default:
			for area := range rapid.IntRange(1, 3).Draw(t, "areas") {
				b := slots.Block{Area: area, Name: 64}
				for end := 0; len(b.Runs) < 1+area; {
					r := slots.Run{From: end + rapid.IntRange(0, 9).Draw(t, "gap")}
					r.To = r.From + rapid.IntRange(1, 99).Draw(t, "length")
					b.Runs, b.Count, end = append(b.Runs, r), b.Count+r.Len(), r.To
				}
				h.Blocks = append(h.Blocks, b)
			}
		}
		all[fmt.Sprint("pool-", i)] = h
	}
	return all
}

func TestClaimsAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		taken := drawTaken(t)
		needs := map[string]int{}
		for name, h := range taken {
			needs[name] = h.Slots()
		}
		req := &pool.Request{
			ID: "a.b-c", Slots: needs, Priority: rapid.IntRange(-5, 5).Draw(t, "priority"),
			Holder: pool.Holder{Host: "one", Instance: "i", PID: 3, ClaimedBy: "user:alice", Labels: map[string]string{"k\"<": rapid.StringMatching(`[a-zé"\\<&]{0,9}`).Draw(t, "label")}},
		}
		since := time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.FixedZone("", 3600))
		admitted := rapid.Int64Range(0, 9).Draw(t, "admitted")
		var demand DemandRef
		if rapid.Bool().Draw(t, "waited") {
			demand = DemandRef{Pool: "pool-0", Name: rapid.IntRange(0, 9).Draw(t, "name"), Created: rapid.Int64Range(1, 1<<40).Draw(t, "created"), Index: rapid.IntRange(0, 63).Draw(t, "index")}
		}
		puts := Spell(req).Puts(taken, Written{since, admitted, store.Fence(admitted), demand})
		var refs []Ref
		got := map[string]slots.Held{}
		for i, p := range puts {
			refs = append(refs, p.Ref)
			ref, s, err := keys.DecodeSlot(p.Key(keys), p.Value, 7)
			if err != nil || ref != p.Ref || s.Claim != req.ID || (s.Record != nil) != (i == 0) || i > 0 && s.Main != puts[0].Ref || i == 0 && s.Demand != demand {
				t.Fatalf("%s: %+v, %v", p.Value, s, err)
			}
			h := got[ref.Pool]
			if ref.IsBlock() {
				s.Block.Created = 0
				h.Blocks = append(h.Blocks, s.Block)
			} else {
				h.Numbers = append(h.Numbers, ref.Number)
			}
			got[ref.Pool] = h
		}
		if diff := cmp.Diff(taken, got); diff != "" {
			t.Errorf("(-written +read):\n%s", diff)
		}
		_, main, _ := keys.DecodeSlot(puts[0].Key(keys), puts[0].Value, 7)
		record, err := main.Decode("key")
		if err != nil {
			t.Fatal(err)
		}
		listed, err := record.Refs(puts[0].Ref)
		if err != nil || !slices.Equal(listed, refs) {
			t.Errorf("its keys are %v, %v, want %v", listed, err, refs)
		}
		want := &Record{Pools: needs, Priority: req.Priority, Holder: req.Holder, Since: since.UTC().Truncate(time.Millisecond), Admitted: admitted, Fence: store.Fence(admitted), Keys: record.Keys}
		if diff := cmp.Diff(want, record); diff != "" {
			t.Errorf("(-written +read):\n%s", diff)
		}
	})
}

func TestWhatCannotBeASlotIsRefused(t *testing.T) {
	number, block := keys.Number("db", 5), keys.Block("db", 1, 64)
	const record = `,"record":{"pools":{"db":1},"holder":{"host":"one","instance":"i"},"since":"2026-01-02T03:04:05Z"}}`
	for _, tc := range []struct{ key, value, want string }{
		{keys.Spec("db"), `{"v":2,"claim":"a"` + record, "is not one of a slot"},
		{number, `{"v":1,"claim":"a"` + record, "it has version 1, and this berth reads version 2 only"},
		{number, `{"v":2,"claim":"a b"` + record, "id"},
		{number, `{"v":2,"claim":"a"}`, "either a record or the main key"},
		{number, `{"v":2,"claim":"a","main":"db/6"` + record, "either a record or the main key"},
		{number, `{"v":2,"claim":"a","main":"db"}`, `main: "db" does not name a slot`},
		{number, `{"v":2,"claim":"a","count":1` + record, "neither runs nor a count"},
		{number, `{"v":2,"claim":"a","n":1` + record, "unknown field"},
		{number, `{"v":2,"claim":"a","demand":{"pool":"gpu","name":1,"created":2,"index":0}` + record, "demand must name one of the pool"},
		{number, `{"v":2,"claim":"a","demand":{"pool":"db","name":1,"created":0,"index":0}` + record, "demand must name one of the pool"},
		{number, `{"v":2,"claim":"a","main":"db/6","demand":{"pool":"db","name":1,"created":2,"index":0}}`, "in the main key"},
		{block, `{"v":2,"claim":"a"` + record, "count must be from 1 to 1000000, and not 0"},
		{block, `{"v":2,"claim":"a","count":-1` + record, "count must be from 1 to 1000000, and not -1"},
		{block, `{"v":2,"claim":"a","count":1,"runs":[[0,1]]` + record, "a block must have a count, or 1 to 64 runs"},
		{block, `{"v":2,"claim":"a","runs":[[0,1]` + strings.Repeat(",[1,2]", 64) + `]` + record, "a block must have a count, or 1 to 64 runs"},
		{block, `{"v":2,"claim":"a","runs":[[0,2],[1,3]]` + record, "and not [1,3]"},
		{block, `{"v":2,"claim":"a","runs":[[3,3]]` + record, "and not [3,3]"},
		{block, `{"v":2,"claim":"a","runs":[[3,1000001]]` + record, "and not [3,1000001]"},
	} {
		if _, _, err := keys.DecodeSlot(tc.key, []byte(tc.value), 7); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.key) {
			t.Errorf("%s: %v, want %s", tc.value, err, tc.want)
		}
	}
	for value, want := range map[string]string{
		`{"pools":{"db":0},"holder":{},"since":"2026-01-02T03:04:05Z"}`:               "pools",
		`{"pools":{"db":1},"holder":{},"since":"2026-01-02T03:04:05Z","admitted":-1}`: "admitted and fence must be 0 or more",
		`{"pools":{"db":1},"holder":{},"since":"now"}`:                                "parsing time",
		`{"pools":{"db":1},"holder":{},"other":1}`:                                    "unknown field",
	} {
		s := Slot{Claim: "a", Record: []byte(value)}
		if _, err := s.Decode("key-1"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "key-1") {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
	main := Ref{"db", -1, 5}
	for want, listed := range map[string][]string{
		"db/5 is not one of them": {"db/6", "db/7"}, `"db" does not name a slot`: {"db/5", "db"}, "at most 1664": slices.Repeat([]string{"db/5"}, MaxClaimKeys+1),
	} {
		r := Record{Keys: listed}
		if _, err := r.Refs(main); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// FuzzDecodeSlot reads values of slot keys and blocks. What is read is within its bounds, and its record can be shown.
func FuzzDecodeSlot(f *testing.F) {
	req := &pool.Request{ID: "a", Slots: map[string]int{"db": 9}, Holder: pool.Holder{Host: "one", Instance: "i"}}
	for _, h := range []slots.Held{{Numbers: []int{1, 2}}, {Blocks: []slots.Block{{Count: 9}}}, {Blocks: []slots.Block{{Runs: []slots.Run{{From: 1, To: 10}}}}}} {
		for _, p := range Spell(req).Puts(map[string]slots.Held{"db": h}, Written{Since: time.Unix(1, 0)}) {
			f.Add(p.IsBlock(), p.Value)
		}
	}
	f.Fuzz(func(t *testing.T, block bool, data []byte) {
		key := keys.Number("db", 5)
		if block {
			key = keys.Block("db", 1, 64)
		}
		ref, s, err := keys.DecodeSlot(key, data, 7)
		if err != nil {
			var corrupt *store.CorruptError
			if !errors.As(err, &corrupt) {
				t.Errorf("%v", err)
			}
			return
		}
		if n := s.Block.Count; block && (n < 1 || n > pool.MaxLimit) || !block && n != 0 {
			t.Errorf("%s holds %d", data, n)
		}
		if s.Record == nil {
			return
		}
		if r, err := s.Decode(key); err == nil {
			_, _ = r.Refs(ref)
			if r.Fences(7) < 0 {
				t.Errorf("%s has a fencing token below 0", data)
			}
		}
	})
}

func TestSpecsAreReadAsWritten(t *testing.T) {
	s := pool.Spec{Limit: 3, LeaseDuration: 20 * time.Second, ReserveAfter: pool.NeverReserve, Paused: true}
	for since, want := range map[int64]int64{0: 9, 4: 4, 9: 9} {
		got, claims, err := DecodeSpec("k", EncodeSpec(s, since), 9)
		if diff := cmp.Diff(s, got); diff != "" || err != nil || claims != (slots.Spec{Limit: 3, Revision: 9, Since: want}) {
			t.Errorf("%+v, %v, %s", claims, err, diff)
		}
	}
	for value, want := range map[string]string{
		string(EncodeSpec(s, 10)): "limit_since must be a revision up to 9, and not 10",
		`{"v":1,"limit":3,"lease_duration":"20s","reserve_after":"1m"}`:            "it has version 1, and this berth reads version 2 only",
		`{"v":2,"limit":3,"lease_duration":"20s","reserve_after":"1m","groups":2}`: "unknown field",
		`{"v":2,"limit":3,"lease_duration":"x","reserve_after":"1m"}`:              "lease_duration",
		`{"v":2,"limit":3,"lease_duration":"20s","reserve_after":"x"}`:             "reserve_after",
		`{"v":2,"limit":-2,"lease_duration":"20s","reserve_after":"1m"}`:           "limit",
	} {
		if _, _, err := DecodeSpec("the-key", []byte(value), 9); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "the-key") {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
}

// FuzzDecodeSpec reads values of specs. What is read is valid, and is written as it was read.
func FuzzDecodeSpec(f *testing.F) {
	f.Add(EncodeSpec(pool.DefaultSpec(), 0), int64(5))
	f.Add([]byte(`{"v":2,"limit":-1,"lease_duration":"1h","reserve_after":"-1","limit_since":3}`), int64(4))
	f.Fuzz(func(t *testing.T, data []byte, revision int64) {
		s, claims, err := DecodeSpec("k", data, revision)
		if err != nil {
			return
		}
		if s.Validate() != nil || claims.Since > revision {
			t.Errorf("%s is read as %+v, %+v", data, s, claims)
		}
		if again, _, err := DecodeSpec("k", EncodeSpec(s, max(0, claims.Since)), revision); err != nil || again != s {
			t.Errorf("%+v is written and read as %+v, %v", s, again, err)
		}
	})
}
