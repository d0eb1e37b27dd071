package pool

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func BenchmarkDecodeSlot(b *testing.B) {
	v := slotValue{V: store.Now, N: 1, Claim: "01JD0000000000000000000000", Record: store.Encode(&record{
		Pools:  map[string]int{"db": 1},
		Holder: Holder{Host: "host-1", Instance: "sidecar", Run: "run-17", PID: 4711}, Since: time.Unix(1, 0).UTC(),
	})}
	data := store.Encode(v)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeSlot("k", data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeSlot(b *testing.B) {
	e := newEntry(&Request{
		ID: "01JD0000000000000000000000", Slots: map[string]int{"db": 1},
		Holder: Holder{Run: "run-17", PID: 4711},
	}, "host-1", "sidecar")
	since := stampOf(time.Unix(1, 0))
	b.ReportAllocs()
	for b.Loop() {
		encodeMain(1, e.req.ID, e.spelled, &record{}, since)
	}
}
