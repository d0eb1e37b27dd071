package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/engine"
	"github.com/berthhq/berth/pool/enginetest"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/revoke"
	"github.com/berthhq/berth/pool/wire"
)

func TestTheEngine(t *testing.T) { enginetest.Run(t, opener{}) }

type opener struct{}

func (opener) Engine(c enginetest.Config) enginetest.Engine {
	return surface{engine.New(engine.Config{
		Backend: c.Backend, Keys: c.Keys, Host: c.Host, Instance: c.Instance, Kind: wire.Service, Leases: c.Leases, WaiterLeases: c.WaiterLeases,
		PollInterval: c.PollInterval, PollJitter: c.PollJitter, Logger: c.Logger,
	})}
}

func (opener) Registry(b store.Backend, keys store.Keys) enginetest.Registry {
	return registry.Registry{Backend: b, Keys: keys}
}
func (opener) Revoker(b store.Backend, keys store.Keys) enginetest.Revoker {
	return revoker{revoke.Revoker{Backend: b, Keys: keys}}
}
func (opener) Read(ctx context.Context, b store.Backend, keys store.Keys) (enginetest.Reader, error) {
	s, err := list.Read(ctx, b, keys)
	return reader{s}, err
}
func (opener) Stuck(ctx context.Context, b store.Backend, keys store.Keys, ids []store.LeaseID) ([]pool.Violation, error) {
	return list.Stuck(ctx, b, keys, ids)
}
func (opener) Follower(b store.Backend, keys store.Keys) enginetest.Follower {
	return follower{list.NewFollower(b, keys, hclog.NewNullLogger())}
}
func (opener) Known() map[string]string {
	return nil
}

// Damage damages a block: a slot key is one slot, whatever its value is.
func (opener) Damage(ctx context.Context, b store.Backend, keys store.Keys, name string, what enginetest.Value) (string, error) {
	k := wire.Keys{Keys: keys}
	key := map[enginetest.Value]string{
		enginetest.SlotValue: k.Block(name, 0, 0), enginetest.SpecValue: keys.Spec(name),
		enginetest.WaiterValue: k.Demand(wire.DemandKey{Pool: name, Host: "damaged", Instance: "i"}),
	}[what]
	_, err := b.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte("damaged"), 0)}})
	return key, err
}

// slotsOf returns the slot keys and blocks of a claim.
func slotsOf(ctx context.Context, b store.Backend, keys store.Keys, claim string) (all []*mvccpb.KeyValue, err error) {
	k := wire.Keys{Keys: keys}
	s, err := store.ReadAll(ctx, b, keys.Pools())
	for _, kv := range s.KVs {
		if _, slot, e := k.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision); e == nil && slot.Claim == claim {
			all = append(all, kv)
		}
	}
	return all, err
}

func (opener) Erase(ctx context.Context, b store.Backend, keys store.Keys, claim string, n int) error {
	all, err := slotsOf(ctx, b, keys, claim)
	if err != nil {
		return err
	}
	if n == 0 {
		n = len(all)
	}
	t := &pb.TxnRequest{}
	for _, kv := range all[:n] {
		t.Success = append(t.Success, store.Delete(string(kv.Key)))
	}
	_, err = b.Txn(ctx, t)
	return err
}

func (opener) Orphan(ctx context.Context, b store.Backend, keys store.Keys, claim, id, name string, on store.LeaseID) error {
	all, err := slotsOf(ctx, b, keys, claim)
	if err != nil {
		return err
	}
	value := strings.ReplaceAll(string(all[0].Value), fmt.Sprintf("%q", claim), fmt.Sprintf("%q", id))
	key := wire.Keys{Keys: keys}.Number(name, orphaned)
	_, err = b.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte(value), on)}})
	return err
}

// orphaned is the number of a slot that no claim takes while a pool has few.
const orphaned = 150

// Queued counts demands, offers and what is pending, and not the role: it is kept for a minute without demands.
func (opener) Queued(ctx context.Context, b store.Backend, keys store.Keys) (n int, err error) {
	k := wire.Keys{Keys: keys}
	all := k.DispatcherRange()
	resp, err := b.Range(ctx, &pb.RangeRequest{Key: []byte(all.Key), RangeEnd: []byte(all.End), KeysOnly: true})
	if err != nil {
		return 0, err
	}
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		if _, err := k.Ref(key); err != nil && !strings.HasSuffix(key, "/spec") {
			n++
		}
	}
	return n, nil
}

// surface is an engine as its callers see it.
type surface struct{ *engine.Engine }

type granted struct{ *pool.Claim }

func (g granted) Grant() enginetest.Grant {
	c := g.Claim
	return enginetest.Grant{
		ID: c.ID, Slots: c.Slots, Fence: c.Fence, Lease: c.Lease, Holder: c.Holder, Priority: c.Priority,
		ClaimedAt: c.ClaimedAt, Keys: c.Keys, Extra: c.Extra,
	}
}

func grantOf(c *pool.Claim, err error) (enginetest.Claim, error) {
	if c == nil {
		return nil, err
	}
	return granted{c}, err
}

func grantsOf(all []*pool.Claim, err error) (claims []enginetest.Claim, _ error) {
	for _, c := range all {
		claims = append(claims, granted{c})
	}
	return claims, err
}

func (e surface) Claim(ctx context.Context, r *pool.Request) (enginetest.Claim, error) {
	return grantOf(e.Engine.Claim(ctx, r))
}
func (e surface) TakeOver(ctx context.Context, h pool.TakeOver) (enginetest.Claim, error) {
	return grantOf(e.Engine.TakeOver(ctx, h))
}
func (e surface) Lookup(ctx context.Context, id string) (enginetest.Claim, error) {
	return grantOf(e.Engine.Lookup(ctx, id))
}
func (e surface) Held(ctx context.Context) ([]enginetest.Claim, error) {
	return grantsOf(e.Engine.Held(ctx))
}
func (e surface) Adopted(ctx context.Context) ([]enginetest.Claim, error) {
	return grantsOf(e.Engine.Adopted(ctx))
}
func (e surface) Release(ctx context.Context, c enginetest.Claim) error {
	return e.Engine.Release(ctx, c.(granted).Claim)
}
func (e surface) ReleaseWith(ctx context.Context, c enginetest.Claim, x store.Extra, place *pool.Place, asked func()) (int64, error) {
	return e.Engine.ReleaseWith(ctx, c.(granted).Claim, x, place, asked)
}
func (e surface) Space(ctx context.Context) (enginetest.Space, error) { return e.Engine.Space(ctx) }

type revoker struct{ revoke.Revoker }

func (r revoker) Free(ctx context.Context, in enginetest.Reader, id string, fence store.Fence) (pool.Revocation, error) {
	return r.Revoker.Free(ctx, in.(reader).s, id, fence)
}
func (r revoker) FreeBridge(ctx context.Context, in enginetest.Reader, id string, fence store.Fence) error {
	return r.Revoker.FreeBridge(ctx, in.(reader).s, id, fence)
}

type reader struct{ s *list.State }

func (r reader) Revision() int64                       { return r.s.Revision() }
func (r reader) Pools() []pool.Status                  { return r.s.Pools() }
func (r reader) Pool(name string) (pool.Detail, error) { return r.s.Pool(name) }
func (r reader) Claims() ([]pool.HolderStatus, []pool.WaiterStatus) {
	return r.s.Claims()
}
func (r reader) Why(id string) (pool.Why, error) { return r.s.Why(id) }
func (r reader) Space() enginetest.Space         { return r.s.Space() }
func (r reader) Verify() []pool.Violation        { return r.s.Verify() }

type follower struct{ *list.Follower }

func (f follower) Space(claims []string) (enginetest.Space, map[string][]pool.HolderStatus, int64, error) {
	return f.Follower.Space(claims)
}
