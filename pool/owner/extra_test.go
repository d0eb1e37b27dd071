package owner

import (
	"errors"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// goneLease is a lease that nobody has granted.
const goneLease = 1 << 40

// flags are keys that callers' conditions compare.
var flags = []string{"/b/flag/a", "/b/flag/b"}

// written is what callers write together with slots.
type written struct {
	by      map[string]*store.Extra // by the id of the claim
	flag    map[string]bool         // those that are set
	changed map[string]int64        // the revision at which a flag was changed last
	keys    int                     // that were written with slots
	refused map[problem.Code]int
}

func newWritten() *written {
	return &written{map[string]*store.Extra{}, map[string]bool{}, map[string]int64{}, 0, map[problem.Code]int{}}
}

// writeWith has a claim written together with other keys, under conditions.
func (w *world) writeWith(r *pool.Request, id string) {
	if w.IntN(2) == 0 {
		return
	}
	x := &r.Extra
	w.written.by[id] = x
	for _, f := range flags[w.IntN(len(flags)):] {
		switch w.IntN(6) {
		case 0:
			x.If = append(x.If, store.Present(f))
		case 1, 2:
			x.If = append(x.If, store.CreateEquals(f, 0))
		}
	}
	key := "/b/with/" + id
	x.Then = []*pb.RequestOp{store.Put(key, []byte(id), 0), store.Get(key)}
	switch w.IntN(30) {
	case 0:
		x.Then = append(x.Then, store.Put("/b/foreign/"+id, nil, goneLease))
	case 1:
		x.Then = append(x.Then, store.Put("/b/denied/"+id, nil, 0))
	case 2:
		x.Then = append(x.Then, store.Put("/b/shared", []byte(id), 0))
	}
	x.Leased = []*pb.RequestOp{store.Put("/b/leased/"+id, nil, 0)}
}

// setFlag sets a flag, or ends that.
func (w *world) setFlag() {
	f := flags[w.IntN(len(flags))]
	op := store.Put(f, nil, 0)
	if w.written.flag[f] {
		op = store.Delete(f)
	}
	w.written.flag[f] = !w.written.flag[f]
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{op}})
	w.written.changed[f] = w.etcd.Revision()
}

// met reports whether conditions hold.
func (w *world) met(holds []*pb.Compare) bool {
	return !slices.ContainsFunc(holds, func(c *pb.Compare) bool {
		return w.written.flag[string(c.Key)] != (c.Result == pb.Compare_GREATER)
	})
}

// checkWritten checks that what goes with a claim is written in the revision of its slots, and under its conditions.
func (w *world) checkWritten(events []*mvccpb.Event) {
	took, with := map[string]bool{}, map[string]int{}
	lease := map[string]int64{}
	for _, ev := range events {
		key := string(ev.Kv.Key)
		if ev.Type != mvccpb.PUT {
			continue
		}
		if _, s, err := w.keys.DecodeSlot(key, ev.Kv.Value, ev.Kv.CreateRevision); err == nil {
			took[s.Claim], lease[s.Claim] = true, ev.Kv.Lease
		}
		if id, ok := strings.CutPrefix(key, "/b/with/"); ok {
			with[id]++
		}
	}
	for _, ev := range events {
		if id, ok := strings.CutPrefix(string(ev.Kv.Key), "/b/leased/"); ok && ev.Type == mvccpb.PUT {
			w.check(ev.Kv.Lease == lease[id], "what claim %s has on its lease is on %x, and its slots are on %x", id, ev.Kv.Lease, lease[id])
			with[id]++
		}
	}
	for id := range took {
		if x := w.written.by[id]; x != nil {
			w.check(with[id] == 2, "claim %s takes slots, and %d of 2 keys that go with them", id, with[id])
			w.check(w.met(x.If), "claim %s takes slots, and a condition does not hold", id)
			w.written.keys += with[id]
		}
	}
	for id := range with {
		w.check(took[id], "what goes with claim %s is written without slots", id)
	}
}

// checkResponses checks the responses to what was written with a claim.
func (w *world) checkResponses(c *Claim) {
	if len(c.Extra()) == 0 {
		return
	}
	w.check(len(c.Extra()) == len(c.request.Extra.Then), "claim %s has %d responses", c.request.ID, len(c.Extra()))
	kvs := c.Extra()[1].GetResponseRange().GetKvs()
	w.check(len(kvs) == 1 && kvs[0].ModRevision == c.fence, "what claim %s has read with its slots: %v", c.request.ID, kvs)
}

// checkRefusal checks that a claim is refused for its own reasons.
func (w *world) checkRefusal(c *Claim, err error) {
	x, code := &c.request.Extra, problem.CodeOf(err)
	w.written.refused[code]++
	writes := func(prefix string) bool {
		return names(&pb.TxnRequest{Success: x.Then}, prefix)
	}
	switch code {
	case problem.Precondition:
		w.check(slices.ContainsFunc(x.If, func(c *pb.Compare) bool { return w.written.changed[string(c.Key)] > 0 || !w.met(x.If) }),
			"claim %s without a condition that failed: %v", c.request.ID, err)
	case problem.EtcdDenied:
		w.check(writes("/b/denied/"), "claim %s: %v", c.request.ID, err)
	case problem.EtcdUnavailable:
		w.check(errors.Is(err, store.ErrLeaseNotFound) && writes("/b/foreign/"), "claim %s: %v", c.request.ID, err)
	case problem.NoCapacity, problem.NotFound:
	default:
		w.check(false, "claim %s: %v", c.request.ID, err)
	}
}

// names reports whether a transaction puts a key whose name has a part.
func names(t *pb.TxnRequest, part string) bool {
	return slices.ContainsFunc(t.Success, func(op *pb.RequestOp) bool {
		if child := op.GetRequestTxn(); child != nil {
			return names(child, part)
		}
		return strings.Contains(string(op.GetRequestPut().GetKey()), part)
	})
}

// add adds what has happened in another world.
func (x *written) add(o *written) {
	x.keys += o.keys
	for code, n := range o.refused {
		x.refused[code] += n
	}
}

// enough reports whether each thing has happened that callers write with slots.
func (x *written) enough() bool {
	return x.keys > 1000 && len(x.refused) >= 4 && !slices.ContainsFunc(slices.Collect(maps.Values(x.refused)), func(n int) bool { return n < 20 })
}
