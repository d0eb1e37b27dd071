package engine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/owner"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// revocationKept is for how long the revocation of a claim that an instance does not have is left to the other instances
	// of its host, and sweepRevocationsEvery is how often its age is checked.
	revocationKept        = time.Minute
	sweepRevocationsEvery = 10 * time.Second
	// supervisedEvery is how often is checked whether a claim is still supervised that was revoked longer than the grace ago.
	supervisedEvery = time.Second
	// maxRevocationsDone is the most keys that one transaction deletes: each is a child, and etcd takes 128.
	maxRevocationsDone = 100
)

// revocation is a claim that an operator wants to end, by a key of a revision, and since when that is known.
type revocation struct {
	wire.Revocation
	revision int64
	at       time.Duration
}

// revocations has claims end that operators revoke. A revocation is obeyed in two phases: the claim ends, so that its holder
// stops, and its slots are released when the holder has stopped, or after a grace if nobody sees whether it has.
type revocations struct {
	*loop
	feed   *store.Feed
	wanted map[string]revocation    // by the ids of the claims
	grace  map[*entry]time.Duration // claims that were ended, with when, and that have their slots
	done   map[string]int64         // revisions of keys that are to be deleted
	pace   pace                     // of these deletions
	swept  time.Duration
}

func newRevocations(l *loop) *revocations {
	cfg := l.e.cfg
	return &revocations{
		loop: l, feed: store.NewFeed(cfg.Backend, cfg.Keys.Revocations(cfg.Host), cfg.Logger, func() {}),
		wanted: map[string]revocation{}, grace: map[*entry]time.Duration{}, done: map[string]int64{},
	}
}

// follow follows the revocations for this host until ctx ends.
func (v *revocations) follow(ctx context.Context) {
	v.e.tasks.Go(func() { _ = v.feed.Run(ctx) }) // it ends with ctx
	v.e.tasks.Go(func() {
		for m := range v.feed.Messages() {
			v.e.inbox.put(func() { v.take(m) })
		}
	})
}

// take takes a message of the feed.
func (v *revocations) take(m store.FeedMessage) {
	if m.Snapshot != nil {
		was := v.wanted
		v.wanted = map[string]revocation{}
		for _, kv := range m.Snapshot.KVs {
			v.put(kv, was)
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.DELETE {
			delete(v.wanted, v.claimOf(ev.Kv))
		} else {
			v.put(ev.Kv, v.wanted)
		}
	}
}

// claimOf returns the id of the claim that a key revokes.
func (v *revocations) claimOf(kv *mvccpb.KeyValue) string {
	return strings.TrimPrefix(string(kv.Key), v.e.cfg.Keys.Revocations(v.e.cfg.Host))
}

// put takes a revocation. One that was known keeps its age.
func (v *revocations) put(kv *mvccpb.KeyValue, was map[string]revocation) {
	is, err := wire.DecodeRevocation(string(kv.Key), kv.Value)
	if err != nil {
		v.e.cfg.Logger.Error("ignoring a revocation", "error", err)
		return
	}
	id := v.claimOf(kv)
	r := revocation{Revocation: is, revision: kv.ModRevision, at: v.e.now()}
	if old, ok := was[id]; ok && old.revision == r.revision {
		r.at = old.at
	}
	v.wanted[id] = r
	switch e := v.requests.byID[id]; {
	case e == nil: // it may be granted later, or be another instance's
	case e.granted != nil:
		v.obey(e)
	case is.Fence == wire.Waiting:
		v.requests.takeOut(e, problem.New(problem.ClaimRevoked, "claim %q was taken out of the wait queue: what it is for has ended", id))
	}
}

// obey ends a claim that was granted if it is revoked. A revocation of an earlier claim of its id is not.
func (v *revocations) obey(e *entry) {
	r, ok := v.wanted[e.request.ID]
	_, revoked := v.grace[e]
	switch mine := ok && v.names(r, e); {
	case !mine:
	case r.Forced:
		v.e.AtLeast(r.revision) // which shows that its slots are free
		v.owner.Gone([]*owner.Claim{e.claim})
	case revoked:
	case e.request.Bridge: // no holder has to stop
		v.requests.giveBack(e)
	default:
		v.grace[e] = v.e.now()
		v.life.endOne(e, problem.New(problem.ClaimRevoked, "claim %q was revoked by an operator", e.request.ID))
	}
}

// names reports whether a revocation is about a claim that was granted: also if the claim was to be taken out of the wait queue,
// and was granted meanwhile.
func (v *revocations) names(r revocation, e *entry) bool {
	return r.Fence == e.granted.Fence || r.Fence == wire.Waiting && e.refusal != nil
}

// ended records that a claim has ended, whether it was granted or not. A revocation that was about it is done.
func (v *revocations) ended(e *entry) {
	delete(v.grace, e)
	r, ok := v.wanted[e.request.ID]
	out := r.Fence == wire.Waiting && e.refusal != nil
	if ok && (out || e.granted != nil && r.Fence == e.granted.Fence) {
		v.finish(e.request.ID)
	}
}

// finish has the key of a revocation deleted.
func (v *revocations) finish(id string) {
	v.done[v.e.cfg.Keys.Revocation(v.e.cfg.Host, id)] = v.wanted[id].revision
	delete(v.wanted, id)
}

// act releases the slots of claims that were revoked, and deletes the keys of revocations that are done.
func (v *revocations) act(ctx context.Context, now time.Duration) {
	for e, at := range v.grace {
		if now >= at+pool.RevokeGrace && !e.granted.Supervised() {
			delete(v.grace, e)
			v.owner.Release(e.claim)
		}
	}
	if now >= v.swept+sweepRevocationsEvery {
		v.swept = now
		v.sweep(now)
	}
	if len(v.done) > 0 && v.pace.free(now) {
		v.delete(ctx)
	}
}

// sweep ends revocations whose claims are gone without them: they were released, or ended with their leases, before any
// instance of the host had learned of the revocation.
func (v *revocations) sweep(now time.Duration) {
	for id, r := range v.wanted {
		if v.requests.byID[id] == nil && now >= r.at+revocationKept {
			v.finish(id)
		}
	}
}

// delete deletes the keys of revocations that are done, each if nothing else was put there since. That holds whenever it
// happens, so it needs no guard.
func (v *revocations) delete(ctx context.Context) {
	sent := map[string]int64{}
	t := &pb.TxnRequest{}
	for _, key := range slices.Sorted(maps.Keys(v.done)) {
		if len(t.Success) == maxRevocationsDone {
			break
		}
		sent[key] = v.done[key]
		t.Success = append(t.Success, store.Nest(&pb.TxnRequest{
			Compare: []*pb.Compare{store.ModEquals(key, sent[key])}, Success: []*pb.RequestOp{store.Delete(key)},
		}))
	}
	v.pace.begin()
	v.e.txn(ctx, t, func(_ *pb.TxnResponse, err error) {
		if v.pace.answered(err, v.e.now()); err != nil {
			return
		}
		maps.DeleteFunc(v.done, func(key string, revision int64) bool { return sent[key] == revision })
	})
}

// wakes returns when there is something to do without anything having happened, 0 for never.
func (v *revocations) wakes(now time.Duration) (at time.Duration) {
	soonest := func(t time.Duration) {
		if at == 0 || t < at {
			at = t
		}
	}
	for _, since := range v.grace {
		if t := since + pool.RevokeGrace; t > now {
			soonest(t)
		} else {
			soonest(now + supervisedEvery)
		}
	}
	if len(v.wanted) > 0 {
		soonest(v.swept + sweepRevocationsEvery)
	}
	if len(v.done) > 0 && !v.pace.busy {
		soonest(max(v.pace.after, now+1))
	}
	return at
}
