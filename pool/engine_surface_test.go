package pool_test

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
	"github.com/berthhq/berth/pool/enginetest"
	"github.com/berthhq/berth/pool/registry"
)

func TestTheEngine(t *testing.T) { enginetest.Run(t, opener{}) }

// opener makes engines of this package for the tests that every engine must pass.
type opener struct{}

func (opener) Engine(c enginetest.Config) enginetest.Engine {
	return surface{pool.New(pool.Config{
		Backend: c.Backend, Keys: c.Keys, Host: c.Host, Instance: c.Instance, Leases: c.Leases, WaiterLeases: c.WaiterLeases,
		PollInterval: c.PollInterval, PollJitter: c.PollJitter, Logger: c.Logger, Registerer: c.Registerer,
	})}
}

func (opener) Registry(b store.Backend, keys store.Keys) enginetest.Registry {
	return registry.Registry{Backend: b, Keys: keys}
}

func (opener) Revoker(b store.Backend, keys store.Keys) enginetest.Revoker {
	return revoker{pool.Revoker{Backend: b, Keys: keys}}
}

func (opener) Read(ctx context.Context, b store.Backend, keys store.Keys) (enginetest.Reader, error) {
	r, err := pool.Read(ctx, b, keys)
	return reader{r}, err
}

func (opener) Stuck(ctx context.Context, b store.Backend, keys store.Keys, ids []store.LeaseID) ([]pool.Violation, error) {
	return pool.Stuck(ctx, b, keys, ids)
}

func (opener) Follower(b store.Backend, keys store.Keys) enginetest.Follower {
	return follower{pool.NewFollower(b, keys, hclog.NewNullLogger())}
}

func (opener) Known() map[string]string {
	const unwatched = "it does not notice what is deleted in a pool that it does not watch"
	return map[string]string{
		"a claim that fits is not delayed by one of several pools that does not":              "direct grants fail in all pools of a claim that waits, until the dispatcher has run",
		"a host that hangs delays all others by 600 ms in all":                                "each of its waiting claims delays the others by 2.3 s",
		"a waiting host that was killed delays all others by 600 ms in all":                   "each of its waiting claims delays the others by 2.3 s",
		"slots of a task that were released are free for all hosts immediately":               "their host retains them for a second",
		"a gated run gets the slots of a task that were released on another host":             "their host retains them for a second",
		"a waiting claim is granted by its poll while no watch of its host delivers anything": "it polls, and then waits for its watch",
		"an id is held once though two hosts ask for it at the same moment":                   "hosts do not compare ids, and both are granted",
		"names of pools that are not in use are forgotten":                                    "it keeps 2 KB of each pool that a request has named",
		"one claim at a time holds slots for a step":                                          "slots are granted before it is known whether the step can be taken",
		"slots that belong to no claim of their instance are freed within 2 minutes":          "its callers ask for it, each minute",
		"slots that were deleted by hand are noticed within 15 s":                             unwatched,
		"a claim of which a part was deleted ends and the rest is freed":                      unwatched,
		"by force slots are freed in a full etcd and their holder learns of it within 15 s":   unwatched,
	}
}

func (opener) Damage(ctx context.Context, b store.Backend, keys store.Keys, name string, what enginetest.Value) (string, error) {
	key := map[enginetest.Value]string{
		enginetest.SlotValue: keys.Slot(name, 0, 99), enginetest.SpecValue: keys.Spec(name),
		enginetest.WaiterValue: keys.Waiter(name, pool.Order{Priority: pool.MaxPriority, Since: 1, Claim: "damaged"}.String()),
	}[what]
	_, err := b.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte("damaged"), 0)}})
	return key, err
}

// slotsOf returns the keys of a claim.
func slotsOf(ctx context.Context, b store.Backend, keys store.Keys, claim string) (all []*mvccpb.KeyValue, err error) {
	s, err := store.ReadAll(ctx, b, keys.Pools())
	for _, kv := range s.KVs {
		if k, e := keys.ParsePoolKey(string(kv.Key)); e == nil && k.Kind == store.SlotKey && strings.Contains(string(kv.Value), fmt.Sprintf(`"claim":%q`, claim)) {
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
	_, err = b.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(keys.Slot(name, 0, 98), []byte(value), on)}})
	return err
}

func (opener) Queued(ctx context.Context, b store.Backend, keys store.Keys) (n int, err error) {
	s, err := store.ReadAll(ctx, b, keys.Pools())
	for _, kv := range s.KVs {
		if k, e := keys.ParsePoolKey(string(kv.Key)); e != nil || k.Kind != store.SlotKey && k.Kind != store.SpecKey {
			n++
		}
	}
	return n, err
}

// surface is an engine as its callers see it.
type surface struct{ *pool.Engine }

// granted is a claim as its callers see it.
type granted struct{ *pool.Claim }

func (g granted) Grant() enginetest.Grant {
	c := g.Claim
	return enginetest.Grant{
		ID: c.ID, Slots: c.Slots, Fence: c.Fence, Lease: c.Lease, Holder: c.Holder, Priority: c.Priority,
		ClaimedAt: c.ClaimedAt, Keys: c.Keys, Extra: c.Extra,
	}
}

// grantOf returns a claim, a nil interface if there is none.
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

// revoker revokes what the tests have read.
type revoker struct{ pool.Revoker }

func (r revoker) Free(ctx context.Context, in enginetest.Reader, id string, fence store.Fence) (pool.Revocation, error) {
	return r.Revoker.Free(ctx, in.(reader).Reader, id, fence)
}

func (r revoker) FreeBridge(ctx context.Context, in enginetest.Reader, id string, fence store.Fence) error {
	return r.Revoker.FreeBridge(ctx, in.(reader).Reader, id, fence)
}

type reader struct{ *pool.Reader }

func (r reader) Space() enginetest.Space { return r.Reader.Space() }

type follower struct{ *pool.Follower }

func (f follower) Space(claims []string) (enginetest.Space, map[string]int64, int64, error) {
	return f.Follower.Space(claims)
}
