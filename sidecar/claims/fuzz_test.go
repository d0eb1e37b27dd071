package claims

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

func FuzzDecodeBinding(f *testing.F) {
	for _, b := range []Binding{
		{}, byLease, {ttl: time.Minute}, {proc: proc.ID{PID: 7, Start: 12, Boot: "abcdef01"}},
		{ttl: MaxTTL, proc: proc.ID{PID: 1, Boot: "x"}}, {lease: true, proc: proc.ID{PID: 1, Start: 1, Boot: "x"}},
		{lease: true, tokenHash: hashOf("me")}, {proc: proc.ID{PID: 1, Boot: "x"}, onlyKill: true, tokenHash: "<\u2028>"},
	} {
		f.Add(b.Encode())
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
		again, err := decodeBinding(b.Encode())
		if err != nil || again != b {
			t.Errorf("%q is %+v, and that is %+v, %v", text, b, again, err)
		}
		if b.ttl != 0 && (b.ttl < MinTTL || b.ttl > MaxTTL) || b.proc.PID < 0 {
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
