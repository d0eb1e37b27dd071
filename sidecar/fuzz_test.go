package sidecar

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

func FuzzDecodeBinding(f *testing.F) {
	for _, b := range []binding{
		{}, byLease, {ttl: time.Minute}, {proc: processID{pid: 7, start: 12, boot: "abcdef01"}},
		{ttl: MaxTTL, proc: processID{pid: 1, boot: "x"}}, {lease: true, proc: processID{pid: 1, start: 1, boot: "x"}},
		{lease: true, asker: "me"}, {proc: processID{pid: 1, boot: "x"}, onlyKill: true, asker: "<\u2028>"},
	} {
		f.Add(b.encode())
	}
	f.Add(`{"v":2}`)
	f.Add(`{"v":1,"ttl":"1ms"}`)
	f.Add(`{"v":1,"pid":1}`)
	f.Add(`{"v":1} {}`)
	f.Fuzz(func(t *testing.T, text string) {
		b, err := decodeBinding(text)
		if err != nil {
			return
		}
		again, err := decodeBinding(b.encode())
		if err != nil || again != b {
			t.Errorf("%q is %+v, and that is %+v, %v", text, b, again, err)
		}
		if b.ttl != 0 && (b.ttl < MinTTL || b.ttl > MaxTTL) || b.proc.pid < 0 {
			t.Errorf("%q is taken as %+v", text, b)
		}
	})
}

func FuzzDecodeBindFile(f *testing.F) {
	f.Add([]byte(`{"v":1,"claim":"mine","fence":7,"bind":"{\"v\":1,\"ttl\":\"lease\"}"}`))
	f.Add([]byte(`{"v":1,"claim":"mine","fence":8,"bind":"{\"v\":1}"}`))
	f.Add([]byte(`{"v":1,"claim":"mine","fence":7,"bind":""}`))
	f.Add([]byte(`{"v":1,"claim":"mi`))
	f.Add([]byte(`{"v":1,"claim":"mine","fence":7,"bind":"{\"v\":1}","lease":9,"sent":12,"ttl":5000000000}`))
	f.Add([]byte(`{"v":1,"claim":"mine","fence":7,"bind":"{\"v\":1}","lease":9}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeBindFile(data, "mine")
		if err != nil {
			return
		}
		if !bytes.Contains(data, []byte("mine")) && !bytes.Contains(data, []byte(`\u`)) {
			t.Errorf("%q is taken as %+v", data, c)
		}
		if c.valid != (validity{}) && c.valid.check() != nil {
			t.Errorf("%q is valid as %+v", data, c.valid)
		}
	})
}

func FuzzDecodeLeases(f *testing.F) {
	f.Add([]byte(`{"v":1,"boot":"abcdef01","leases":[{"lease":7,"sent":12,"ttl":5000000000},{"lease":-8,"sent":-3,"ttl":1000000000}]}`))
	f.Add([]byte(`{"v":2,"boot":"abcdef01","windows":{}}`))
	f.Add([]byte(`{"v":1,"boot":"abcdef01","leases":[{"lease":7,"sent":9223372036854775807,"ttl":1}]}`))
	f.Add([]byte(`{"v":1,"boot":"abcdef01","leases":[{"lease":7,"ttl":0}]} {}`))
	f.Add([]byte(`{"v":1,"leases":[{}]}`))
	f.Add([]byte(`{"v":1,"boot":"ab`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := decodeLeases(data)
		if err != nil {
			return
		}
		for _, l := range v.Leases {
			w := lease.NewWindow(l.Sent, l.TTL)
			if l.Lease == 0 || w.Until() < w.Sent || w.StopAt() > w.Until() {
				t.Errorf("%q is taken as %+v", data, l)
			}
		}
		if again, err := decodeLeases(store.Encode(v)); err != nil || again.Boot != v.Boot || !slices.Equal(again.Leases, v.Leases) {
			t.Errorf("%q is %+v, and that is %+v, %v", data, v, again, err)
		}
	})
}

// FuzzDecodeBody holds the decoder of bodies against package json: what it takes,
// json takes as well and reads the same, and json read back is taken again.
func FuzzDecodeBody(f *testing.F) {
	for _, body := range []string{
		`{"pools":{"db":1}}`, `{"pools":{"db":1,"db":2}}`, `{"pools":{"d\u0062":1,"db":2}}`, `{"Pools":{}}`,
		`{"pools":{"db":1},"wait":"30s","ttl":"0s","pid":1,"only_kill":true,"asker":"me","labels":{"a":"b"},"priority":-3}`,
		`{"labels":{"\ud800":"a","\ud801":"b"}}`, "{\"labels\":{\"\xff\":\"a\",\"\xfe\":\"b\"}}",
		` { "id" : "x" , "pools" : { } } `, `[]`, `{`, ``, `{"wait":1e400}`, `{"pools":{"db":1e2}}`, `{"x":[{"y":[1,{"z":{}}]},"]"]}`,
	} {
		f.Add([]byte(body))
	}
	d := newDecoder[ClaimRequest](false)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := d.decode(body)
		if err != nil {
			if p := problemOf(err); p.Status < 400 || p.Status > 422 || p.Detail == "" {
				t.Errorf("%q is refused with %+v", body, p)
			}
			return
		}
		var want ClaimRequest
		strict := json.NewDecoder(bytes.NewReader(body))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %+v, for json it is %+v, %v", body, got, want, err)
		}
		written, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := d.decode(written); err != nil || !sameRequest(again, got) {
			t.Errorf("%q was written as %s, which is %+v, %v", body, written, again, err)
		}
	})
}

// sameRequest compares what can be told apart: empty sets are as good as none.
func sameRequest(a, b ClaimRequest) bool {
	for _, r := range []*ClaimRequest{&a, &b} {
		if len(r.Pools) == 0 {
			r.Pools = nil
		}
		if len(r.Labels) == 0 {
			r.Labels = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

func FuzzParseCursor(f *testing.F) {
	f.Add(cursor{Fence: 7, ID: "a"}.String())
	f.Add(cursor{Waiting: true, Priority: -1, Since: 12, ID: "b"}.String())
	f.Add("!")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCursor(text)
		if err != nil {
			return
		}
		if again, err := parseCursor(c.String()); err != nil || again.compare(c) != 0 {
			t.Errorf("%q is %+v, and that is %+v, %v", text, c, again, err)
		}
	})
}

func FuzzParseRunCursor(f *testing.F) {
	f.Add(runCursor{ID: "a"}.String())
	f.Add(runCursor{Queue: true, Priority: -1, Created: 12, ID: "b"}.String())
	f.Add("!")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseRunCursor(text)
		if err != nil || text == "" {
			return
		}
		if again, err := parseRunCursor(c.String()); err != nil || again != c || c.ID == "" {
			t.Errorf("%q is %+v, and that is %+v, %v", text, c, again, err)
		}
	})
}

// FuzzDecodeLimits holds the decoder of bodies with lists of objects against
// package json.
func FuzzDecodeLimits(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"max_concurrent_runs":-1,"tags":null}`, `{"tags":[]}`, `{"tags":[{"key":"a","limit":1}]}`,
		`{"tags":[{"key":"a","value":"b","per_unique_value":true,"limit":1},{}]}`, `{"tags":[[{"key":1}]]}`,
		`{"tags":[{"key":"a","limit":1,"Limit":2}]}`, `{"tags":{"key":"a"}}`, `{"tags":[{"key":"a","key":"b","limit":0}]}`,
	} {
		f.Add([]byte(body))
	}
	d := newDecoder[LimitsChange](false)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := d.decode(body)
		if err != nil {
			if p := problemOf(err); p.Status < 400 || p.Status > 422 || p.Detail == "" {
				t.Errorf("%q is refused with %+v", body, p)
			}
			return
		}
		var want LimitsChange
		strict := json.NewDecoder(bytes.NewReader(body))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %+v, for json it is %+v, %v", body, got, want, err)
		}
	})
}

func FuzzParseProc(f *testing.F) {
	f.Add([]byte("1 (a) b) c) S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0"))
	f.Add([]byte("Name:\tx\nUid:\t1000\t0\t0\t0\n"))
	f.Add([]byte(")"))
	f.Add([]byte("Uid:"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, startErr := parseStart(data)
		_, uidErr := parseUID(data)
		if startErr == nil && !bytes.Contains(data, []byte(")")) || uidErr == nil && !bytes.Contains(data, []byte("Uid:")) {
			t.Errorf("%q is taken", data)
		}
		if boot := parseBoot(data); len(boot) > 8 || strings.Contains(boot, "\n") && len(strings.TrimSpace(boot)) == 0 {
			t.Errorf("a boot called %q", boot)
		}
	})
}
