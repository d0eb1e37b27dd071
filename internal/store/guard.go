package store

import pb "go.etcd.io/etcd/api/v3/etcdserverpb"

// Guard is an instance's commit guard. Every write that could end in doubt
// compares the guard and puts it, so each one makes all older ones impossible.
//
// After a write without an answer the instance closes the door: it sends
// [Guard.Door] until one answer succeeds. From that revision on, what the lost
// write did is settled, and a read at or above it tells.
type Guard struct {
	key string
	rev int64
}

// NewGuard returns the guard at key. It is not known yet which revision it has:
// close the door before the first write.
func NewGuard(key string) Guard { return Guard{key: key} }

// Placed tells whether the guard is known to be in etcd. Only then may writes be
// sent: one that compares that there is no guard could happen much later, after
// the guard was put and deleted again. [Guard.Door] puts it.
func (g *Guard) Placed() bool { return g.rev != 0 }

// Compare holds if no other guarded write happened since the last one known.
func (g *Guard) Compare() *pb.Compare { return ModEquals(g.key, g.rev) }

// Put marks a write, and so ends all older ones.
func (g *Guard) Put() *pb.RequestOp { return Put(g.key, guardValue, 0) }

// Get reads the guard, for [Guard.Foreign] to judge.
func (g *Guard) Get() *pb.RequestOp { return Get(g.key) }

// Foreign tells, from the answer to a transaction that failed and then read the
// guard, whether the guard is not what we left it: then the door must be closed
// before the next write.
func (g *Guard) Foreign(resp *pb.TxnResponse) bool { return read(resp) != g.rev }

// Door is the transaction that settles older writes.
func (g *Guard) Door() *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{g.Compare()},
		Success: []*pb.RequestOp{g.Put()},
		Failure: []*pb.RequestOp{g.Get()},
	}
}

// DeleteDoor settles older writes without needing room in etcd: with the guard
// gone, none of them can happen either. The next guarded write has to wait for
// [Guard.Door] then: see [Guard.Placed]. A guard that is not known to be there is
// only looked for: none is as good as a deleted one.
func (g *Guard) DeleteDoor() *pb.TxnRequest {
	t := g.Door()
	if g.Placed() {
		t.Success = []*pb.RequestOp{Delete(g.key)}
	} else {
		t.Success = []*pb.RequestOp{g.Get()}
	}
	return t
}

// Committed takes the revision of a guarded write that succeeded.
func (g *Guard) Committed(rev int64) { g.rev = rev }

// Answer takes the answer to [Guard.Door] or [Guard.DeleteDoor] and tells whether
// the door is closed. If it is not, the answer told the guard's present revision:
// send the door again.
func (g *Guard) Answer(resp *pb.TxnResponse) (closed bool) {
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

// guardValue is all that a guard holds: its revision is what counts.
var guardValue = []byte(`{"v":1}`)
