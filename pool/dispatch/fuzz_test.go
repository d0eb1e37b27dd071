package dispatch

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/pool/wire"
)

// Nothing that is written below the keys that a dispatcher follows ends its process, or has it send what etcd refuses.
func TestWhateverIsWrittenIsSurvived(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t)
		keys := r.keys
		draw := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(rt, what) }
		at := r.etcd.Revision()
		for range rapid.IntRange(1, 60).Draw(rt, "writes") {
			at++
			name, host := draw("pool", "db", "gpu", "Bad name", ""), draw("host", "a", "b", "d", "%")
			number := rapid.IntRange(0, 3).Draw(rt, "number")
			key := draw("key",
				keys.Spec(name), keys.Number(name, number), keys.Number(name, 999_999), keys.Block(name, number, number), keys.Slots(name)+"x",
				keys.Demand(wire.DemandKey{Pool: name, Host: host, Instance: "i", Name: number}), keys.DemandsAll(name)+"x", keys.Pending(name),
				keys.Pool(name), keys.OffersAll()+"x",
				keys.Offer(wire.OfferKey{Host: host, Instance: "i", Name: number}), keys.Offer(wire.OfferKey{Host: host, Instance: "i", Name: -1}),
				keys.Offer(wire.OfferKey{Host: host, Instance: "i", Name: -1, Advance: name}))
			demands := fmt.Sprintf(`{"v":2,"demands":[{"index":%d,"claim":"c","pools":{"db":%d,"gpu":1},"since":"2026-01-01T00:00:00Z","holder":{"host":"a","instance":"i"}}]}`, number, 1+number*20)
			value := draw("value", "", "?", "{}", `{"v":2}`, `{"v":3}`, `{"v":2,"first":"db"}`, demands,
				`{"v":2,"demands":[{"index":0,"claim":"c","pools":{"db":1},"reserve":true,"pending":["db"],"since":"2026-01-01T00:00:00Z","holder":{"host":"a","instance":"i"}}]}`,
				`{"v":2,"limit":4,"lease_duration":"5m","reserve_after":"1m"}`, `{"v":2,"limit":-1,"lease_duration":"5m","reserve_after":"1m"}`, `{"v":2,"limit":900000,"lease_duration":"5m","reserve_after":"1m"}`,
				`{"v":2,"claim":"c","record":{"pools":{"db":1},"holder":{"host":"a","instance":"i"},"since":"2026-01-01T00:00:00Z"}}`,
				`{"v":2,"claim":"c","demand":{"pool":"db","name":1,"created":3,"index":0},"record":{"pools":{"db":1},"holder":{"host":"a","instance":"i"},"since":"2026-01-01T00:00:00Z"}}`,
				`{"v":2,"claim":"c","runs":[[0,3],[900,901]],"main":"db/0"}`, `{"v":2,"claim":"c","count":7,"main":"db/0"}`)
			ev := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: at, ModRevision: at}}
			if rapid.IntRange(0, 4).Draw(rt, "delete") == 0 {
				ev.Type, ev.Kv.Value = mvccpb.DELETE, nil
			}
			r.d.Events(at, []*mvccpb.Event{ev}, r.now)
			for _, want := range r.d.Wants() {
				r.d.Listed(Listing{Revision: at, Pools: []string{want}, Pages: [][]*mvccpb.KeyValue{{ev.Kv}}}, r.now)
			}
			if txn, ok := r.d.Next(r.now); ok {
				resp, err := r.etcd.Txn(txn)
				if err != nil {
					rt.Fatalf("%v: %v", txn, err)
				}
				resp.Header.Revision = at
				r.d.Answer(resp, nil, r.now)
			}
			r.now += leastPatience / 3
		}
	})
}
