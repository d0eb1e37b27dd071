package pool

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

// Values that are spelled by hand are what encoding/json would write.
func TestValuesAreSpelledAsJSONHasThem(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(), rapid.Just(""), rapid.Just(`<"\&>`), rapid.Just(`{"v":1,"path":"C:\\ ~"}`))
	ref := rapid.Custom(func(t *rapid.T) string {
		return slotRef{"db", rapid.IntRange(0, 60).Draw(t, "group"), rapid.IntRange(0, 200_000).Draw(t, "index")}.String()
	})
	rapid.Check(t, func(t *rapid.T) {
		r := record{
			Pools:    map[string]int{"db": 1, "gpu": rapid.IntRange(1, 99).Draw(t, "n")},
			Priority: rapid.IntRange(-5, 5).Draw(t, "priority"),
			Holder: Holder{
				Host: "one", Instance: text.Draw(t, "instance"), Run: text.Draw(t, "run"), Step: text.Draw(t, "step"), ClaimedBy: text.Draw(t, "by"), Bind: text.Draw(t, "bind"),
				PID: rapid.IntRange(0, 3).Draw(t, "pid"), Labels: rapid.MapOf(text, text).Draw(t, "labels"),
			},
			Admitted: rapid.Int64Range(0, 1<<60).Draw(t, "admitted"),
			Granted:  rapid.Int64Range(0, 1<<40).Draw(t, "granted"),
			Fence:    store.Fence(rapid.Int64Range(0, 1<<52).Draw(t, "fence")),
			Keys:     rapid.SliceOf(ref).Draw(t, "keys"),
		}
		since := stampOf(time.UnixMicro(rapid.Int64Range(0, 1<<52).Draw(t, "since")))
		r.Since = since.at
		n := rapid.IntRange(1, MaxLimit).Draw(t, "slots")

		claim := spell(&Request{Slots: r.Pools, Holder: r.Holder}, needsOf(r.Pools))
		want := store.Encode(slotValue{V: store.Now, N: n, Claim: "a.b-c_1", Record: store.Encode(&r)})
		got := encodeMain(n, "a.b-c_1", claim, &r, since)
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Fatalf("main key (-json +by hand):\n%s", d)
		}
		if v, ok := parseSlot(got); !ok || v.N != n || v.Claim != "a.b-c_1" {
			t.Fatalf("%s reads as %+v, %v", got, v, ok)
		}
		main := ref.Draw(t, "main")
		want = store.Encode(slotValue{V: store.Now, N: n, Claim: "a.b-c_1", Main: main})
		got = encodeOther(n, "a.b-c_1", main)
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Fatalf("other key (-json +by hand):\n%s", d)
		}
		if v, ok := parseSlot(got); !ok || v.N != n || v.Main != main {
			t.Fatalf("%s reads as %+v, %v", got, v, ok)
		}
		req := &Request{ID: "a", Slots: r.Pools, Holder: r.Holder, Sole: rapid.Bool().Draw(t, "sole"), Bridge: true}
		if rapid.Bool().Draw(t, "conditional") {
			req.Extra.If = []*pb.Compare{store.ModEquals("x", 1)}
		}
		w := waiterValue{
			V: store.Now, Pools: r.Pools, Holder: r.Holder, Queued: since.at,
			Reserve: rapid.Bool().Draw(t, "reserve"), Sole: req.Sole, Conditional: len(req.Extra.If) > 0, Lease: 7,
		}
		got = encodeWaiter(&entry{req: req, spelled: claim, reserve: w.Reserve, arrived: w.Queued, holding: holding{lease: 7}})
		if d := cmp.Diff(string(store.Encode(w)), string(got)); d != "" {
			t.Fatalf("waiter (-json +by hand):\n%s", d)
		}
	})
}
