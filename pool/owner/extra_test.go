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
	"github.com/berthhq/berth/pool/wire"
)

// goneLease is a lease that nobody has granted.
const goneLease = 1 << 40

// flags are keys that callers' conditions compare.
var flags = []string{"/b/flag/a", "/b/flag/b", "/b/until/c"}

// written is what callers write together with slots.
type written struct {
	by      map[string]*store.Extra // by the id of the claim
	flag    map[string]bool         // those that are set
	changed map[string]int64        // the revision at which a flag was changed last
	keys    int                     // that were written with slots
	refused map[problem.Code]int
	// refusing is while etcd takes no demands of one of the pools.
	refusing bool
	refusals map[error]int
	ended    map[string]*ending // combined releases, by the id of the claim
	outcome  map[string]int     // of combined releases
}

// ending is a combined release.
type ending struct {
	store.Extra
	of      *Claim
	plain   bool  // the claim is to be released in any case
	written int64 // the revision; 0 if it was not
}

func newWritten() *written {
	return &written{
		by: map[string]*store.Extra{}, flag: map[string]bool{}, changed: map[string]int64{}, refused: map[problem.Code]int{},
		refusals: map[error]int{}, ended: map[string]*ending{}, outcome: map[string]int{},
	}
}

// refuses returns why etcd refuses a transaction, nil if it does not.
func (w *world) refuses(t *pb.TxnRequest) (err error) {
	switch {
	case names(t, "/denied/"), w.written.refusing && names(t, "/pools/gpu/demands/"):
		err = store.ErrDenied
	case !w.calm && w.IntN(100) == 0:
		err = store.ErrTokenExpired
	default:
		return nil
	}
	w.written.refusals[err]++
	return err
}

// writeWith has a claim written together with other keys, under conditions.
func (w *world) writeWith(r *pool.Request, id string) {
	if w.IntN(2) == 0 {
		return
	}
	x := &r.Extra
	w.written.by[id] = x
	for _, f := range flags[w.IntN(2):2] {
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
	w.checkEnded(events)
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
		w.check(w.transfers.past(w, c) || slices.ContainsFunc(x.If, func(c *pb.Compare) bool { return w.written.changed[string(c.Key)] > 0 || !w.met(x.If) }),
			"claim %s without a condition that failed: %v", c.request.ID, err)
	case problem.EtcdDenied:
		w.check(writes("/b/denied/"), "claim %s: %v", c.request.ID, err)
	case problem.EtcdUnavailable:
		if c.request.Chosen {
			w.check(store.OutcomeUnknown(err), "claim %s: %v", c.request.ID, err)
			return
		}
		unknown := w.transfers.of(c) && store.OutcomeUnknown(err)
		w.check(unknown || errors.Is(err, store.ErrLeaseNotFound) && writes("/b/foreign/"), "claim %s: %v", c.request.ID, err)
	case problem.EtcdFull:
		w.check(w.space.was && c.request.Wait == 0, "claim %s: %v", c.request.ID, err)
	case problem.IDInUse:
		w.check(c.request.Chosen && strings.Contains(err.Error(), " by host-"), "claim %s: %v", c.request.ID, err)
	case problem.NoCapacity, problem.PoolNotFound, problem.ExceedsLimit:
		w.check(w.transfers.by[c] == nil, "claim %s, which is held, can't be taken over: %v", c.request.ID, err)
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

// releaseWith releases a claim together with other writes. It is false if that is not possible.
func (w *world) releaseWith(h *host, c *Claim) bool {
	id := c.request.ID
	e := &ending{of: c}
	switch w.IntN(4) {
	case 0:
		e.If = []*pb.Compare{store.Present(flags[2])}
	case 1:
		e.If = []*pb.Compare{store.CreateEquals(flags[2], 0)}
	}
	e.Then = []*pb.RequestOp{store.Put("/b/ended/"+id, []byte(id), 0), store.Delete("/b/leased/" + id)}
	switch w.IntN(30) {
	case 0:
		e.Then = append(e.Then, store.Put("/b/foreign/"+id, nil, goneLease))
	case 1:
		e.Then = append(e.Then, store.Put("/b/denied/"+id, nil, 0))
	case 2:
		e.Then = append(e.Then, store.Put("/b/shared", []byte(id), 0))
	}
	if err := h.ReleaseWith(c, e.Extra, w.workers.of[c]); err != nil {
		w.check(errors.Is(err, pool.ErrNotCombined) && len(wire.Refs(c.keys)) > maxCombined, "claim %s: %v", id, err)
		return false
	}
	w.written.ended[id] = e
	if e.plain = w.IntN(8) == 0; e.plain {
		h.Release(c)
	}
	return true
}

// checkEnded checks that what goes with a release is written in the revision in which the slots are released.
func (w *world) checkEnded(events []*mvccpb.Event) {
	gave := map[string]bool{}
	for _, ev := range events {
		if ev.PrevKv == nil {
			continue
		}
		if _, s, err := w.keys.DecodeSlot(string(ev.PrevKv.Key), ev.PrevKv.Value, ev.PrevKv.CreateRevision); err == nil {
			gave[s.Claim] = true
			if x := w.written.ended[s.Claim]; x != nil && ev.Type == mvccpb.PUT {
				w.written.outcome["taken over"]++
			}
		}
	}
	for _, ev := range events {
		id, ok := strings.CutPrefix(string(ev.Kv.Key), "/b/ended/")
		if !ok {
			continue
		}
		x := w.written.ended[id]
		w.check(gave[id], "what goes with the release of claim %s is written without it", id)
		w.check(w.met(x.If), "claim %s is released, and a condition does not hold", id)
		w.check(x.written == 0, "what goes with the release of claim %s is written twice", id)
		x.written = ev.Kv.ModRevision
	}
}

// stays records that a claim is held after a combined release.
func (w *world) stays(h *host, c *Claim, err error) {
	e := w.written.ended[c.request.ID]
	writes := func(prefix string) bool { return names(&pb.TxnRequest{Success: e.Then}, prefix) }
	switch {
	case errors.Is(err, store.ErrChanged):
		w.written.outcome["changed"]++
		w.check(len(e.If) > 0, "claim %s stays without a condition", c.request.ID)
	case errors.Is(err, store.ErrDenied):
		w.written.outcome["denied"]++
		w.check(writes("/b/denied/"), "claim %s stays: %v", c.request.ID, err)
	case errors.Is(err, ErrFull):
		w.written.outcome["full"]++
		w.check(w.space.was, "claim %s stays: %v", c.request.ID, err)
	default:
		w.written.outcome["foreign"]++
		w.check(errors.Is(err, store.ErrLeaseNotFound) && writes("/b/foreign/"), "claim %s stays: %v", c.request.ID, err)
	}
	w.check(e.written == 0, "claim %s stays, and what goes with its release was written", c.request.ID)
	if delete(w.written.ended, c.request.ID); !e.plain {
		delete(h.asked, c)
		h.held = append(h.held, c)
	}
}

// checkCombined checks what is said of a release of a claim.
func (w *world) checkCombined(r Result) {
	e := w.written.ended[r.Claim.request.ID]
	switch {
	case e == nil, e.of != r.Claim:
	case r.Outcome == Lost, errors.Is(r.Err, ErrGone):
		w.written.outcome["gone"]++
		w.check(e.written == 0, "claim %s is gone (%d, %v), and what goes with its release was written", r.Claim.request.ID, r.Outcome, r.Err)
	case store.OutcomeUnknown(r.Err):
		w.written.outcome["unknown"]++
	default:
		w.written.outcome["released"]++
		w.check(r.Err == nil && e.written == r.Revision, "claim %s is released at %d (%v), and what goes with it is written at %d", r.Claim.request.ID, r.Revision, r.Err, e.written)
	}
}

// add adds what has happened in another world.
func (x *written) add(o *written) {
	x.keys += o.keys
	for code, n := range o.refused {
		x.refused[code] += n
	}
	for err, n := range o.refusals {
		x.refusals[err] += n
	}
	for what, n := range o.outcome {
		x.outcome[what] += n
	}
}

// enough reports whether each thing has happened that callers write with slots.
func (x *written) enough() bool {
	few := func(n int) bool { return n < 8 }
	return x.keys > 1000 && len(x.refused) >= 5 && len(x.outcome) == 7 &&
		!slices.ContainsFunc(slices.AppendSeq(slices.Collect(maps.Values(x.refused)), maps.Values(x.outcome)), few)
}
