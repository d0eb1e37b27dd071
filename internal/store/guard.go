package store

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Guard is an instance's commit guard. Every write whose outcome could become unknown
// compares the guard and puts it, so each one makes all older ones impossible.
//
// After a write without a response the instance fences earlier writes: it sends
// [Guard.FenceTxn] until one succeeds. From that revision on, the lost write can no
// longer happen, and a read at or above it shows whether it did.
type Guard struct {
	key   string
	rev   int64
	value []byte
}

// NewGuard returns the guard at key. It is not known yet which revision it has:
// fence earlier writes before the first write.
func NewGuard(key string) Guard {
	return Guard{key: key, value: Encode(guardValue{V: Now, Since: time.Now().UTC().Truncate(time.Second)})}
}

// Key returns the key of the guard.
func (g *Guard) Key() string { return g.key }

// Placed reports whether the guard is known to be in etcd. Only then may writes be
// sent: one that compares that there is no guard could happen much later, after
// the guard was put and deleted again. [Guard.FenceTxn] puts it.
func (g *Guard) Placed() bool { return g.rev != 0 }

// Compare holds if no other guarded write happened since the last one known.
func (g *Guard) Compare() *pb.Compare { return ModEquals(g.key, g.rev) }

// Put marks a write, and so ends all older ones.
func (g *Guard) Put() *pb.RequestOp { return Put(g.key, g.value, 0) }

// Get reads the guard, for [Guard.Foreign] to judge.
func (g *Guard) Get() *pb.RequestOp { return Get(g.key) }

// Foreign reports, from the response to a transaction that failed and then read the
// guard, whether another process has changed the guard: then earlier writes must be
// fenced before the next one.
func (g *Guard) Foreign(resp *pb.TxnResponse) bool { return read(resp) != g.rev }

// FenceTxn is the transaction that fences earlier writes.
func (g *Guard) FenceTxn() *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{g.Compare()},
		Success: []*pb.RequestOp{g.Put()},
		Failure: []*pb.RequestOp{g.Get()},
	}
}

// DeleteFenceTxn fences earlier writes without needing space in etcd: with the guard
// gone, none of them can happen either. The next guarded write has to wait for
// [Guard.FenceTxn] then: see [Guard.Placed]. A guard that is not known to be there is
// only read: an absent one is as good as a deleted one.
func (g *Guard) DeleteFenceTxn() *pb.TxnRequest {
	t := g.FenceTxn()
	if g.Placed() {
		t.Success = []*pb.RequestOp{Delete(g.key)}
	} else {
		t.Success = []*pb.RequestOp{g.Get()}
	}
	return t
}

// Committed takes the revision of a guarded write that succeeded.
func (g *Guard) Committed(rev int64) { g.rev = rev }

// Answer takes the response to [Guard.FenceTxn] or [Guard.DeleteFenceTxn] and reports
// whether earlier writes are fenced. If they are not, the response had the guard's present
// revision: send the transaction again.
func (g *Guard) Answer(resp *pb.TxnResponse) (fenced bool) {
	if resp.Succeeded {
		g.rev = 0
		if resp.Responses[0].GetResponsePut() != nil {
			g.rev = resp.Header.Revision
		}
		return true
	}
	g.rev = read(resp)
	return false
}

// read returns the revision of the guard that an answer carries, 0 for none.
func read(resp *pb.TxnResponse) int64 {
	for _, r := range resp.Responses {
		if rr := r.GetResponseRange(); rr != nil && len(rr.Kvs) == 1 {
			return rr.Kvs[0].ModRevision
		}
	}
	return 0
}

// GuardPart separates, in the key of a guard, the name of an instance from that of one of several guards that it has.
const GuardPart = "~"

// guardValue is what a guard holds. Its revision is what counts for writes.
type guardValue struct {
	V
	// Since is when the process began, by its own clock: see [SweepGuards].
	Since time.Time `json:"since,omitzero"`
}

const (
	// guardAge is how old the process of a guard must be for the guard to be swept: one
	// that has just begun may not be seen yet.
	guardAge = time.Hour
	// maxSwept bounds what one sweep deletes.
	maxSwept = 1000
)

// SweepGuards deletes the guards of instances that are gone: older than an hour, not
// seen, and without a lease to resume. It returns how many it has deleted. A user of etcd
// without the right to delete those of all hosts sweeps those of its own host.
//
// No write can happen for want of a guard that it could not have happened with: each
// compares a revision that the guard had, and an absent one compares as 0. An instance
// that lives all the same finds its next write refused, and puts its guard again. So the
// age, and the clocks that it is of, decide about a round trip, never about safety.
func SweepGuards(ctx context.Context, b Backend, keys Keys, host string) (swept int, err error) {
	if swept, err = sweepGuards(ctx, b, keys, ""); errors.Is(err, ErrDenied) {
		return sweepGuards(ctx, b, keys, host+"/")
	}
	return swept, err
}

// sweepGuards sweeps the guards under guards/ of the host in under, or of all hosts.
func sweepGuards(ctx context.Context, b Backend, keys Keys, under string) (swept int, err error) {
	guards, err := ReadAll(ctx, b, keys.GuardsAll()+under)
	if err != nil {
		return 0, err
	}
	live, err := liveInstances(ctx, b, keys, under)
	if err != nil {
		return 0, err
	}
	for _, kv := range guards.KVs {
		key := string(kv.Key)
		of := strings.TrimPrefix(key, keys.GuardsAll())
		instance, _, _ := strings.Cut(of, GuardPart) // that has several guards
		if live[of] || live[instance] || !oldGuard(kv.Value) {
			continue
		}
		_, err := Commit(ctx, b, []*pb.Compare{ModEquals(key, kv.ModRevision)}, Delete(key))
		switch {
		case errors.Is(err, ErrChanged): // it is in use, or was swept by another instance
		case err != nil:
			return swept, err
		default:
			swept++
		}
		if swept == maxSwept {
			break
		}
	}
	return swept, nil
}

// oldGuard reports whether a guard is old enough. One that does not tell is.
func oldGuard(value []byte) bool {
	var v guardValue
	_ = json.Unmarshal(value, &v) // what can't be read was written by another version
	return time.Since(v.Since) > guardAge
}

// liveInstances are those that are seen, or have a lease to resume, as host/instance: of
// the host in under, or of all hosts.
func liveInstances(ctx context.Context, b Backend, keys Keys, under string) (map[string]bool, error) {
	seen, err := ReadAll(ctx, b, keys.Hosts()+under)
	if err != nil {
		return nil, err
	}
	leases, err := ReadAll(ctx, b, keys.LeasesAll()+under)
	if err != nil {
		return nil, err
	}
	live := map[string]bool{}
	for _, kv := range seen.KVs {
		live[strings.TrimPrefix(string(kv.Key), keys.Hosts())] = true
	}
	for _, kv := range leases.KVs {
		var of struct{ Instance string }
		_ = json.Unmarshal(kv.Value, &of) // without a name, it belongs to no instance
		host, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), keys.LeasesAll()), "/")
		live[host+"/"+of.Instance] = true
	}
	return live, nil
}
