package pool

import (
	"context"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// revocationTTL is how long a revocation stays if nobody acts on it: its host
// is dead then, and the claim ends with its lease.
const revocationTTL = 10 * time.Minute

// Revocation is what became of the wish to have a claim back.
type Revocation struct {
	Claim    string
	Host     string
	Instance string
	Fence    int64
	// Forced tells that the slots are free although the holder may still run.
	Forced bool
}

// Revoke asks the host of a held claim to take it back: the host ends trust in
// the claim, has the holder stop, and releases it within [RevokeGrace]. By force
// the slots are freed at once, and whatever the old holder still does can only
// be told by its fence. An unknown claim is a ClaimNotFound problem.
//
// The claim is an id, or HOST/INSTANCE/ID where several instances hold claims of one
// id: then the id alone is refused as Invalid.
func (r Registry) Revoke(ctx context.Context, claim string, force bool) (Revocation, error) {
	state, err := Read(ctx, r.Backend, r.Keys)
	if err != nil {
		return Revocation{}, store.Problem("the claims could not be read", err)
	}
	cv, rec, err := state.held(claim)
	if err != nil {
		return Revocation{}, err
	}
	by := rec.Holder
	done := Revocation{Claim: cv.id, Host: by.Host, Instance: by.Instance, Fence: cv.rev, Forced: force}
	if force {
		return done, r.free(ctx, rec.refs(cv.main), cv.rev)
	}
	return done, r.AskBack(ctx, by.Host, cv.id, cv.rev)
}

// held returns the claim that is held under an id, or HOST/INSTANCE/ID, with its
// record. An unknown one is a ClaimNotFound problem, and an id that several instances
// hold an Invalid one.
func (r *Reader) held(claim string) (*claimView, *record, error) {
	keys := r.core.view.keys
	by, id, hasInstance := cutInstance(claim)
	all := r.core.view.claimsOf(id)
	if hasInstance {
		all = slices.DeleteFunc(all, func(cv *claimView) bool { return !cv.isOf(keys, by.Host, by.Instance) })
	}
	switch len(all) {
	case 0:
		return nil, nil, problem.New(problem.ClaimNotFound, "no claim %q is held", claim)
	case 1:
	default:
		var names []string
		for _, cv := range all {
			h := r.core.view.holder(cv)
			names = append(names, h.Host+"/"+h.Instance+"/"+id)
		}
		return nil, nil, problem.Field("id", "claim %q is held by %d instances: name one of them, as in %s", id, len(all), strings.Join(names, " or "))
	}
	rec, err := all[0].full(keys)
	if err != nil {
		return nil, nil, problem.New(problem.CorruptValue, "claim %q can't be revoked: %w", claim, err)
	}
	return all[0], rec, nil
}

// cutInstance takes HOST/INSTANCE/ID apart, and is false for an id alone, in which no
// slash can be.
func cutInstance(claim string) (by Holder, id string, ok bool) {
	host, rest, _ := strings.Cut(claim, "/")
	instance, id, ok := strings.Cut(rest, "/")
	if !ok {
		return Holder{}, claim, false
	}
	return Holder{Host: host, Instance: instance}, id, true
}

// Free frees the claim of an id and a fence at once that was read, if it is still the
// same: for one that nobody relies on. Else it is a ClaimNotFound problem.
func (r Registry) Free(ctx context.Context, in *Reader, id string, fence int64) error {
	cv := in.core.view.fenced(id, fence)
	if cv == nil {
		return problem.New(problem.ClaimNotFound, "no claim %q with fence %d is held", id, fence)
	}
	rec, err := cv.full(in.core.view.keys)
	if err != nil {
		return problem.New(problem.CorruptValue, "claim %q can't be freed: %w", id, err)
	}
	return r.free(ctx, rec.refs(cv.main), cv.rev)
}

// waitingFence is the fence in a revocation that is about a claim which waits.
const waitingFence = -1

// AskOut asks a host to take a claim out of the line. If it does not wait there, nothing
// happens.
func (r Registry) AskOut(ctx context.Context, host, id string) error {
	return r.AskBack(ctx, host, id, waitingFence)
}

// AskBack asks a host to take back the claim of that id and fence. If it does not
// have the claim, nothing happens.
func (r Registry) AskBack(ctx context.Context, host, id string, fence int64) error {
	lease, _, err := r.Backend.Grant(ctx, revocationTTL)
	if err == nil {
		_, err = r.Backend.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
			store.Put(r.Keys.Revocation(host, id), store.Encode(revocationValue{V: store.Now, Fence: fence}), lease),
		}})
	}
	if err != nil {
		return store.Problem("the claim could not be asked back", err)
	}
	return nil
}

// revocationValue is how a revocation stands in etcd: which grant of the claim it
// is about, so that it never hits a later one of the same id.
type revocationValue struct {
	store.V
	Fence int64 `json:"fence"`
}

// free deletes the keys of a claim, if they still are that claim's.
func (r Registry) free(ctx context.Context, refs []slotRef, fence int64) error {
	slots := make([]placed, len(refs))
	for i, ref := range refs {
		slots[i].ref = ref
	}
	ops := slotDeletes(r.Keys, slots, nil)
	if len(ops) > maxChildOps {
		ops = children(ops, 1)
	}
	ref := refs[0]
	resp, err := r.Backend.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{store.ModEquals(r.Keys.Slot(ref.pool, ref.group, ref.index), fence)},
		Success: ops,
	})
	if err != nil {
		return store.Problem("the claim may or may not be released", err)
	}
	if !resp.Succeeded {
		return problem.New(problem.ClaimNotFound, "the claim ended before it could be released by force")
	}
	return nil
}
