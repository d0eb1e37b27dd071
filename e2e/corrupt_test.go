package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// write puts a key as no berth would, or deletes it.
func write(t testing.TB, b store.Backend, key, value string) {
	t.Helper()
	op := store.Put(key, []byte(value), 0)
	if value == "" {
		op = store.Delete(key)
	}
	if _, err := b.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{op}}); err != nil {
		t.Fatal(err)
	}
}

// A value that can't be read closes its pool and no other, until it is repaired. A slot key holds its number whatever its value
// is: claims go on with the other slots.
func TestAPoolWithAValueThatCantBeReadGrantsNothingAndOthersGoOn(t *testing.T) {
	slot, block := numberKey(keys, "bad", 7), keys.Slots("bad")+"b/00/0"
	for name, c := range map[string]struct {
		key, value string
		says       string
		refuses    bool // what waits is granted nothing
	}{
		"a slot that is no JSON":      {slot, "{", slot, false},
		"a slot of a newer berth":     {slot, `{"v":3,"what":"ever"}`, "version 3", false},
		"a slot with fields":          {slot, `{"v":2,"claim":"x","main":"bad/7","more":1}`, "more", false},
		"a slot that holds a count":   {slot, `{"v":2,"count":1,"claim":"x","main":"bad/7"}`, "count", false},
		"a block that is no JSON":     {block, "{", block, true},
		"a spec of a newer berth":     {keys.Spec("bad"), `{"v":3,"limit":3}`, "version 3", true},
		"a spec without sense":        {keys.Spec("bad"), `{"v":2,"limit":-7,"lease_duration":"5s","reserve_after":"0s"}`, "limit", true},
		"a key that is never written": {keys.Pools() + "bad/slots/0/0", "x", "not one of", false},
	} {
		t.Run(name, func(t *testing.T) {
			srv := embedtest.New(t)
			b := embedtest.Client(t, srv)
			w := watch(t, b, func(w *witness) { w.history.Ignore(c.key) })
			hosts := three(t, []string{srv.Endpoint()})
			spec(t, hosts, "bad", 3)
			spec(t, hosts, "good", 3)
			held := claim(t, hosts[0], "held", instance.Slots{"bad": 3})
			line := begin(t, t.Context(), hosts[1], "line", instance.Slots{"bad": 1})
			w.until("one waits", func(h *History) bool { return len(h.Waiting()) == 1 })
			was := value(t, b, c.key)

			write(t, b, c.key, c.value)
			if c.refuses {
				eventually(t, "the pool names the key", func(ctx context.Context) bool {
					d, err := hosts[1].Pool(ctx, "bad")
					return err == nil && strings.Contains(d.Problem, c.key) && strings.Contains(d.Problem, c.says)
				})
				_, err := hosts[2].Claim(t.Context(), instance.Slots{"good": 1, "bad": 1}, instance.WithWait(0))
				if err == nil || !strings.Contains(err.Error(), "can't be read") {
					t.Errorf("a claim of both pools: %v", err)
				}
			}
			// Others go on, and what is held can be given back.
			release(t, claim(t, hosts[2], "good", instance.Slots{"good": 3}))
			release(t, held)
			if c.refuses {
				pause(t.Context(), time.Second)
				if !line.waiting() {
					t.Errorf("what has waited has its answer: %v", line.err)
				}
			}
			if d, err := hosts[2].Pool(t.Context(), "good"); err != nil || d.Problem != "" {
				t.Errorf("the good pool has a problem: %v, %v", d.Problem, err)
			}
			r, err := operator(t, []string{srv.Endpoint()}).Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if v := r.Verify(); len(v) == 0 || v[0].Key != c.key {
				t.Errorf("verify finds %v", v)
			}

			write(t, b, c.key, was)
			release(t, line.granted())
			for _, h := range hosts {
				eventuallyWell(t, h, "bad")
			}
			release(t, claim(t, hosts[1], "after", instance.Slots{"bad": 3}))
		})
	}
}

func value(t testing.TB, b store.Backend, key string) string {
	t.Helper()
	resp, err := b.Range(t.Context(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}
