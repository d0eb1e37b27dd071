package pool

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/admit"
)

// wantCorrupt checks that an error of a decoder names the key.
func wantCorrupt(t *testing.T, key string, err error) {
	t.Helper()
	var c *store.CorruptError
	if !errors.As(err, &c) || c.Key != key || !strings.Contains(err.Error(), key) {
		t.Errorf("the error does not name the key %q: %v", key, err)
	}
}

func FuzzDecodeSpec(f *testing.F) {
	f.Add(encodeSpec(DefaultSpec(), layoutOf(0), 0), int64(7))
	f.Add(encodeSpec(Spec{Limit: Unlimited, LeaseDuration: time.Minute, ReserveAfter: NeverReserve, Paused: true}, layoutOf(Unlimited), 3), int64(9))
	f.Add(encodeSpec(Spec{Limit: 60, LeaseDuration: time.Minute}, spreadOver(60, 50), 3), int64(9))
	f.Add([]byte(`{"v":2}`), int64(1))
	f.Fuzz(func(t *testing.T, data []byte, rev int64) {
		s, l, since, err := decodeSpec("k", data, rev)
		if err != nil {
			wantCorrupt(t, "k", err)
			return
		}
		if err := s.Validate(); err != nil {
			t.Errorf("decoded a spec that is not valid: %v", err)
		}
		again, layoutAgain, sinceAgain, err := decodeSpec("k", encodeSpec(s, l, since), rev)
		if err != nil || again != s || layoutAgain != l || sinceAgain != since {
			t.Errorf("%+v since %d reads back as %+v since %d, %v", s, since, again, sinceAgain, err)
		}
	})
}

func FuzzDecodeSlot(f *testing.F) {
	f.Add([]byte(`{"v":1,"n":2,"claim":"c","record":{"pools":{"a":2},"holder":{"host":"h","instance":"i"},"since":"2026-01-01T00:00:00Z"}}`))
	f.Add([]byte(`{"v":1,"n":1,"claim":"c","main":"a/0/0"}`))
	f.Add([]byte(`{"v":1,"n":1,"claim":"c","main":"a/0/0"} `))
	f.Add([]byte(`{"v":1,"n":1,"claim":"c","record":{},"n":2}`))
	f.Add([]byte(`{"v":1,"n":01,"claim":"\u0063","record":{"pools" : 1 }}`))
	f.Add([]byte(`{"v":7}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if byHand, ok := parseSlot(data); ok {
			if v, err := decodeSlotJSON("k", data); err != nil || !reflect.DeepEqual(v, byHand) {
				t.Errorf("read by hand: %+v; by encoding/json: %+v, %v", byHand, v, err)
			}
		}
		v, err := decodeSlot("k", data)
		if err != nil {
			wantCorrupt(t, "k", err)
			return
		}
		if v.N < 1 || ValidateID(v.Claim) != nil {
			t.Errorf("decoded %+v", v)
		}
		if v.Record != nil {
			r, err := decodeRecord("k", v.Claim, v.Record)
			if err != nil {
				wantCorrupt(t, "k", err)
			} else if _, err := decodeRecord("k", v.Claim, store.Encode(r)); err != nil {
				t.Errorf("the record does not read back: %v", err)
			}
		}
		if _, err := decodeSlot("k", store.Encode(v)); err != nil {
			t.Errorf("does not read back: %v", err)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"pools":{"a":2},"holder":{"host":"h","instance":"i"},"since":"2026-01-01T00:00:00Z","keys":["a/0/0","a/1/0"]}`), "c")
	f.Add([]byte(`{"pools":{"a":2},"keys":["a/00/0"]}`), "c")
	f.Fuzz(func(t *testing.T, data []byte, claim string) {
		r, err := decodeRecord("k", claim, data)
		if err != nil {
			wantCorrupt(t, "k", err)
			return
		}
		if len(r.refs(slotRef{"a", 0, 0})) != max(1, len(r.Keys)) {
			t.Errorf("%d keys are listed, and %d read", len(r.Keys), len(r.refs(slotRef{"a", 0, 0})))
		}
		if _, err := decodeRecord("k", claim, store.Encode(r)); err != nil {
			t.Errorf("does not read back: %v", err)
		}
	})
}

func FuzzParseOrder(f *testing.F) {
	f.Add("1000-0000000000000007-c+0000000a")
	f.Add("1000-000000000000000g-c+0000000a")
	f.Add("1000-;000000000000000-c+0000000a")
	f.Fuzz(func(t *testing.T, s string) {
		if o, err := ParseOrder(s); err == nil && o.String() != s {
			t.Errorf("%q reads as that of %q", s, o)
		}
	})
}

func FuzzDecodeWaiter(f *testing.F) {
	f.Add([]byte(`{"v":1,"pools":{"a":2},"holder":{"host":"h","instance":"i"},"queued":"2026-01-01T00:00:00Z"}`), "1000-0000000000000007-c+0000000a")
	f.Add([]byte(`{"v":1,"pools":{"a":2},"holder":{"host":"h","instance":"i"},"reserve":true,"sole":true,"conditional":true,"queued":"2026-01-01T00:00:00Z","lease":7587894312}`), "1000-0000000000000007-c+0000000a")
	f.Add([]byte(`{"v":1,"pools":{"a":2},"holder":{"host":"h","instance":"i"},"queued":"2026-01-01T00:00:00Z","lease":-1}`), "1000-0000000000000007-c+0000000a")
	f.Add([]byte(`{"v":1,"pools":{"a":2},"conditional":"yes"}`), "1000-0000000000000007-c+0000000a")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		o, err := ParseOrder(text)
		if err != nil {
			return
		}
		v, err := decodeWaiter("k", data, o)
		if err != nil {
			wantCorrupt(t, "k", err)
			return
		}
		again, err := decodeWaiter("k", store.Encode(v), o)
		if err != nil {
			t.Errorf("does not read back: %v", err)
		}
		if again.Conditional != v.Conditional || again.Lease != v.Lease || again.Sole != v.Sole || again.Reserve != v.Reserve {
			t.Errorf("%+v reads back as %+v", v, again)
		}
	})
}

func FuzzDecodeNotice(f *testing.F) {
	f.Add([]byte(`{"v":1,"order":"1000-0000000000000007-c+0000000a","slots":[{"key":"a/0/0","n":1},{"key":"b/3/12","n":4}],"since":"2026-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"v":1,"order":"1000-0000000000000007-c+0000000a","slots":[{"key":"a/0/0","n":1}],"since":"2026-01-01T00:00:00Z","conditional":true}`))
	f.Add([]byte(`{"v":1,"order":"1000-0000000000000007-c+0000000a","slots":[]}`))
	f.Add([]byte(`{"v":1,"order":"1000-0000000000000007-c+0000000a","slots":[{"key":"a/00/0","n":1}]}`))
	f.Add([]byte(`{"v":1,"order":"1000-0000000000000007-c+0000000a","slots":[{"key":"a/0/0","n":0}]}`))
	f.Add([]byte(`{"v":1,"order":"c","slots":[{"key":"a/0/0","n":1}]}`))
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := decodeNotice("k", data)
		if err != nil {
			wantCorrupt(t, "k", err)
			return
		}
		if n.key != "k" || len(n.slots) == 0 || len(n.slots) > MaxKeys {
			t.Errorf("decoded %+v", n)
		}
		v := noticeValue{V: store.Now, Order: n.order.String(), Since: n.since, Conditional: n.conditional}
		for _, s := range n.slots {
			if s.n < 1 || s.n > MaxLimit || s.ref.pool == "" || s.ref.group < 0 || s.ref.index < 0 {
				t.Errorf("decoded slot %+v", s)
			}
			v.Slots = append(v.Slots, noticeSlot{s.ref.String(), s.n})
		}
		again, err := decodeNotice("k", store.Encode(v))
		if err != nil || again.order != n.order || again.conditional != n.conditional || !again.since.Equal(n.since) || !slices.Equal(again.slots, n.slots) {
			t.Errorf("%+v reads back as %+v, %v", n, again, err)
		}
	})
}

func FuzzDecodeDispatcher(f *testing.F) {
	f.Add([]byte(`{"v":1,"host":"h","instance":"i"}`))
	f.Add([]byte(`{"v":1,"host":"h/x","instance":"i"}`))
	f.Add([]byte(`{"v":1,"host":"","instance":"i"}`))
	f.Add([]byte(`{"v":1,"host":"h"}`))
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		by, err := decodeDispatcher("k", data)
		if err != nil {
			wantCorrupt(t, "k", err)
			return
		}
		again, err := decodeDispatcher("k", store.Encode(dispatcherValue{V: store.Now, Host: by.host, Instance: by.instance}))
		if err != nil || again != by || by.host == "" || by.instance == "" || strings.Contains(by.host+by.instance, "/") {
			t.Errorf("%+v reads back as %+v, %v", by, again, err)
		}
	})
}

func FuzzParseSlotRef(f *testing.F) {
	f.Add("a/0/0")
	f.Add("a/01/0")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := parseSlotRef(s); err == nil && r.String() != s {
			t.Errorf("%q reads as %q", s, r)
		}
	})
}

func TestLayoutsShareALimitOut(t *testing.T) {
	for limit, want := range map[int]struct{ groups, per int }{
		1: {1, 1}, 4: {4, 1}, 50: {50, 1}, 51: {26, 2}, 100: {50, 2}, 500: {50, 10}, 1000: {50, 20}, MaxLimit: {50, 20000},
	} {
		l := layoutOf(limit)
		if l.groups != want.groups || l.perGroup != want.per {
			t.Errorf("limit %d is %d groups of %d, want %d of %d", limit, l.groups, l.perGroup, want.groups, want.per)
		}
	}
	for limit := range 3000 {
		l := layoutOf(limit)
		sum := 0
		for g := range l.groups {
			if c := l.capacity(g); c < 1 || c > l.perGroup {
				t.Fatalf("limit %d: group %d has a capacity of %d", limit, g, c)
			}
			sum += l.capacity(g)
		}
		if sum != limit || l.groups > MaxGroups || l.capacity(l.groups) != 0 {
			t.Fatalf("limit %d is shared out over %d groups as %d", limit, l.groups, sum)
		}
	}
	if l := layoutOf(Unlimited); l.groups != MaxGroups || l.capacity(0) != admit.UnlimitedCapacity {
		t.Errorf("unlimited: %+v", l)
	}
}

func TestALimitThatIsRaisedTakesNothingFromAnyGroup(t *testing.T) {
	for _, tc := range []struct{ from, to, groups int }{
		{40, 60, 50}, {60, 40, 30}, {1, 2, 2}, {100, 101, 50}, {100, 150, 50}, {500, 600, 50}, {40, Unlimited, 50}, {Unlimited, 40, 40}, {Closed, 60, 30}, {60, Closed, 0},
	} {
		if l := layoutOf(tc.from).change(tc.to); l.groups != tc.groups {
			t.Errorf("from %d to %d there are %d groups, want %d", tc.from, tc.to, l.groups, tc.groups)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		limits := rapid.OneOf(rapid.IntRange(1, 300), rapid.IntRange(1, 3000), rapid.IntRange(1, MaxLimit))
		l := layoutOf(limits.Draw(t, "limit"))
		for range 6 {
			limit := limits.Draw(t, "limit")
			next := l.change(limit)
			sum := 0
			for g := range next.groups {
				if c := next.capacity(g); c < 1 {
					t.Fatalf("group %d of %+v has a capacity of %d", g, next, c)
				}
				sum += next.capacity(g)
			}
			if sum != limit || next.groups > MaxGroups || next.capacity(next.groups) != 0 {
				t.Fatalf("limit %d is shared out over %d groups as %d", limit, next.groups, sum)
			}
			most := 0
			if limit < l.limit { // not every limit can be spread so that each group has what it had, or less
				most = l.limit - limit + l.perGroup - 1
			}
			if taken := l.taken(next); taken > most {
				t.Fatalf("from %+v to %+v, groups lose %d slots, want %d at most", l, next, taken, most)
			}
			value := encodeSpec(Spec{Limit: limit, LeaseDuration: time.Minute}, next, 0)
			if _, read, _, err := decodeSpec("k", value, 1); err != nil || read != next {
				t.Fatalf("%s reads as %+v, %v, and was %+v", value, read, err, next)
			}
			l = next
		}
	})
}

func TestALimitThatCanNotBeSpreadIsRefused(t *testing.T) {
	for _, value := range []string{`"limit":60,"groups":51`, `"limit":4,"groups":5`, `"limit":60,"groups":-1`, `"limit":-1,"groups":50`, `"limit":0,"groups":1`} {
		_, _, _, err := decodeSpec("k", []byte(`{"v":1,`+value+`,"lease_duration":"1m","reserve_after":"0s"}`), 1)
		wantCorrupt(t, "k", err)
	}
}

// A group above its capacity has every claim compare the whole pool, so that claims of
// different hosts conflict, until it has drained.
func TestAfterALimitWasRaisedClaimsCompareGroupsStill(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	backend := storetest.NewBackend(r.etcd)
	defer backend.Close()
	limit := func(n int) {
		t.Helper()
		key := r.keys.Spec("db")
		spec, next := StoredSpec{}, DefaultSpec()
		resp, err := backend.Range(t.Context(), &pb.RangeRequest{Key: []byte(key)})
		if err == nil && len(resp.Kvs) > 0 {
			spec, err = DecodeSpec(key, resp.Kvs[0].Value, resp.Kvs[0].ModRevision)
			next = spec.Spec
		}
		if err != nil {
			t.Fatal(err)
		}
		next.Limit = n
		r.txn(store.Put(key, spec.Encode(next), 0))
		r.resolve()
	}
	limit(40)
	for n := range 40 {
		h.ask(fmt.Sprint("a", n), 1).got()
	}
	limit(60)
	h.calls = nil
	for n := range 20 {
		h.ask(fmt.Sprint("b", n), 1).got()
	}
	for _, c := range h.calls {
		for _, cmp := range c.txn.Compare {
			if string(cmp.Key) == r.keys.Slots("db") {
				t.Fatal("a claim compares the whole pool")
			}
		}
	}
	r.wantUsed(60)
	r.sound()
	h.ask("late", 1, noWait).refused(problem.NoCapacity)
}

func TestSpecsOutOfRangeNameTheField(t *testing.T) {
	ok := DefaultSpec()
	for field, change := range map[string][]func(*Spec){
		"limit": {
			func(s *Spec) { s.Limit = -2 },
			func(s *Spec) { s.Limit = MaxLimit + 1 },
		},
		"lease_duration": {
			func(s *Spec) { s.LeaseDuration = 0 },
			func(s *Spec) { s.LeaseDuration = -time.Minute },
			func(s *Spec) { s.LeaseDuration = MinLeaseDuration - 1 },
			func(s *Spec) { s.LeaseDuration = 1000 * time.Hour },
			func(s *Spec) { s.LeaseDuration = 5500 * time.Millisecond },
		},
		"reserve_after": {
			func(s *Spec) { s.ReserveAfter = -2 },
			func(s *Spec) { s.ReserveAfter = 1000 * time.Hour },
		},
	} {
		for i, f := range change {
			s := ok
			f(&s)
			var p *problem.Error
			if err := s.Validate(); !errors.As(err, &p) || p.Field != field || p.Code != problem.Invalid {
				t.Errorf("%s %d: %v", field, i, err)
			}
		}
	}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
}

func TestRequestsOutOfRangeNameTheField(t *testing.T) {
	many := map[string]int{}
	for i := range 200 {
		many["p"+strings.Repeat("x", i%60)+string(rune('a'+i/60))] = 1
	}
	labels := map[string]string{}
	for i := range MaxLabels + 1 {
		labels[strings.Repeat("l", i+1)] = ""
	}
	for name, tc := range map[string]struct {
		field string
		req   Request
	}{
		"no id":              {"id", Request{Slots: map[string]int{"a": 1}}},
		"an overlong id":     {"id", Request{ID: strings.Repeat("x", 257), Slots: map[string]int{"a": 1}}},
		"an id with a path":  {"id", Request{ID: "a/b", Slots: map[string]int{"a": 1}}},
		"no pools":           {"pools", Request{ID: "c"}},
		"200 pools":          {"pools", Request{ID: "c", Slots: many}},
		"no slots":           {"pools.a", Request{ID: "c", Slots: map[string]int{"a": 0}}},
		"negative slots":     {"pools.a", Request{ID: "c", Slots: map[string]int{"a": -1}}},
		"far too many":       {"pools.a", Request{ID: "c", Slots: map[string]int{"a": MaxLimit + 1}}},
		"an upper-case pool": {"pool", Request{ID: "c", Slots: map[string]int{"A": 1}}},
		"a pool with a path": {"pool", Request{ID: "c", Slots: map[string]int{"a/b": 1}}},
		"a long pool":        {"pool", Request{ID: "c", Slots: map[string]int{strings.Repeat("a", 64): 1}}},
		"priority":           {"priority", Request{ID: "c", Slots: map[string]int{"a": 1}, Priority: 1001}},
		"a negative wait":    {"wait", Request{ID: "c", Slots: map[string]int{"a": 1}, Wait: -1}},
		"a negative pid":     {"pid", Request{ID: "c", Slots: map[string]int{"a": 1}, Holder: Holder{PID: -1}}},
		"too many labels":    {"labels", Request{ID: "c", Slots: map[string]int{"a": 1}, Holder: Holder{Labels: labels}}},
		"a nameless label":   {"labels", Request{ID: "c", Slots: map[string]int{"a": 1}, Holder: Holder{Labels: map[string]string{"": "x"}}}},
		"a long run":         {"run_id", Request{ID: "c", Slots: map[string]int{"a": 1}, Holder: Holder{Run: strings.Repeat("r", 257)}}},
		"a long step":        {"step_key", Request{ID: "c", Slots: map[string]int{"a": 1}, Holder: Holder{Step: strings.Repeat("r", 257)}}},
		"a long label":       {"labels.ci", Request{ID: "c", Slots: map[string]int{"a": 1}, Holder: Holder{Labels: map[string]string{"ci": strings.Repeat("r", 513)}}}},
		"a long label's key": {"labels", Request{ID: "c", Slots: map[string]int{"a": 1}, Holder: Holder{Labels: map[string]string{strings.Repeat("r", 513): ""}}}},
		"a long identity":    {"claimed_by", Request{ID: "c", Slots: map[string]int{"a": 1}, Holder: Holder{ClaimedBy: strings.Repeat("i", 257)}}},
	} {
		t.Run(name, func(t *testing.T) {
			var p *problem.Error
			if err := tc.req.Validate(); !errors.As(err, &p) || p.Field != tc.field {
				t.Errorf("want a problem of field %q, got %v", tc.field, err)
			}
		})
	}
}

func TestIDsOf256BytesAndLabelsOf512AreTakenAndLongerOnesAreRefusedWithTheirLength(t *testing.T) {
	id, label := strings.Repeat("x", MaxID), strings.Repeat("é", MaxLabel/2)
	r := Request{ID: id, Slots: map[string]int{"a": 1}, Holder: Holder{Run: id, Step: id, Labels: map[string]string{label: label, "ci": label}}}
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
	o := Order{Priority: 1, Since: 1, Claim: id, By: hash("host/instance")}
	if back, ok := parseOrder(o.String()); !ok || back != o {
		t.Errorf("%+v, %t", back, ok)
	}
	many := map[string]string{}
	for i := range 17 {
		many[string(rune('a'+i))] = strings.Repeat("x", 511)
	}
	for want, change := range map[string]func(*Request){
		"id: it has 300 bytes: use at most 256":                   func(r *Request) { r.ID = strings.Repeat("x", 300) },
		"run_id: it has 257 bytes: use at most 256":               func(r *Request) { r.Holder.Run = id + "x" },
		"step_key: it has 257 bytes: use at most 256":             func(r *Request) { r.Holder.Step = id + "x" },
		"labels.ci: it has 513 bytes: use at most 512":            func(r *Request) { r.Holder.Labels = map[string]string{"ci": label + "x"} },
		"labels: together they have 8704 bytes: use at most 8192": func(r *Request) { r.Holder.Labels = many },
	} {
		long := r
		change(&long)
		if err := long.Validate(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := ValidateClaim("host/instance/" + id); err != nil {
		t.Error(err)
	}
}

func TestAnIdentityWithTheLongestNameCanClaim(t *testing.T) {
	r := Request{ID: "c", Slots: map[string]int{"a": 1}, Holder: Holder{ClaimedBy: "token:" + strings.Repeat("x", access.MaxName)}}
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
}

// garbling texts do something to a terminal, or to the order in which a line is read.
var garbling = []string{"a\x1b[2Jb", "a\nb", "a\x00", "a\u009bb", "a\u202eb", "\u2066a", "a\u200f", "a\u061cb", "a\u2028b", "a\xffb"}

func TestTextsThatWouldGarbleAListAreRefused(t *testing.T) {
	for _, text := range garbling {
		for field, holder := range map[string]Holder{
			"run_id": {Run: text}, "step_key": {Step: text}, "labels": {Labels: map[string]string{text: "x"}}, "labels.team": {Labels: map[string]string{"team": text}},
		} {
			r := Request{ID: "c", Slots: map[string]int{"db": 1}, Holder: holder}
			var p *problem.Error
			if err := r.Validate(); !errors.As(err, &p) || p.Field != field || strings.ContainsAny(p.Message, "\x1b\n\x00\u202e") {
				t.Errorf("%q as %s: %v", text, field, err)
			}
		}
	}
	for _, text := range []string{"", "nightly 7", "größe", "東京　駅", "می\u200cخواهم", "👩\u200d👧", "שלום", "a\u00a0b"} {
		r := Request{ID: "c", Slots: map[string]int{"db": 1}, Holder: Holder{Run: text, Labels: map[string]string{"team": text}}}
		if err := r.Validate(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// An upgrade must not close a pool because of what an older berth has let in.
func TestClaimsWithTextsThatAreRefusedNowCanBeRead(t *testing.T) {
	holder := `{"host":"h","instance":"i","run":"a\u001b[2J\u202e","labels":{"a\n":"b\u0007"}}`
	if _, err := decodeWaiter("k", []byte(`{"v":1,"pools":{"a":2},"holder":`+holder+`,"queued":"2026-01-01T00:00:00Z"}`), Order{Claim: "c"}); err != nil {
		t.Error(err)
	}
	if _, err := decodeRecord("k", "c", []byte(`{"pools":{"a":2},"holder":`+holder+`,"since":"2026-01-01T00:00:00Z"}`)); err != nil {
		t.Error(err)
	}
}
