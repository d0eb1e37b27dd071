package storetest

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

// drawer draws requests that meet: few keys, revisions near the present, leases
// of which some are gone.
type drawer struct {
	t      *rapid.T
	since  int64 // oldest revision to speak of
	now    int64
	leases []store.LeaseID
}

var (
	someKeys = rapid.SampledFrom([]string{"a", "b", "b/1", "b/2", "b/3", "c", "d", "e", "f", "g", "h", "i\xff"})
	someEnds = rapid.SampledFrom([]string{"b/9", "c", "e", "z", "\x00", "b\x00", "a"})
	values   = rapid.SampledFrom([]string{"", "u", "v", "w"})
)

func (d drawer) chance(percent int, what string) bool {
	return rapid.IntRange(0, 99).Draw(d.t, what) < percent
}

func (d drawer) key() []byte {
	if d.chance(1, "empty key") {
		return nil
	}
	return []byte(someKeys.Draw(d.t, "key"))
}

func (d drawer) end(percent int) []byte {
	if !d.chance(percent, "range") {
		return nil
	}
	return []byte(someEnds.Draw(d.t, "end"))
}

func (d drawer) rev() int64 {
	return rapid.Int64Range(max(0, d.since-1), d.now+1).Draw(d.t, "revision")
}

// lease is 0, one of those granted, or one that never was.
func (d drawer) lease() store.LeaseID {
	return rapid.SampledFrom(append([]store.LeaseID{0, 0}, d.leases...)).Draw(d.t, "lease")
}

func (d drawer) txn(depth int) *pb.TxnRequest {
	req := &pb.TxnRequest{}
	for range rapid.IntRange(0, 2).Draw(d.t, "compares") {
		req.Compare = append(req.Compare, d.compare())
	}
	for range rapid.IntRange(0, 4).Draw(d.t, "then") {
		req.Success = append(req.Success, d.op(depth))
	}
	for range rapid.IntRange(0, 2).Draw(d.t, "else") {
		req.Failure = append(req.Failure, d.op(depth))
	}
	return req
}

func (d drawer) compare() *pb.Compare {
	c := &pb.Compare{
		Key:      d.key(),
		RangeEnd: d.end(50),
		Result:   rapid.SampledFrom([]pb.Compare_CompareResult{pb.Compare_EQUAL, pb.Compare_GREATER, pb.Compare_LESS, pb.Compare_NOT_EQUAL}).Draw(d.t, "relation"),
		Target:   rapid.SampledFrom([]pb.Compare_CompareTarget{pb.Compare_MOD, pb.Compare_CREATE, pb.Compare_VERSION, pb.Compare_VALUE, pb.Compare_LEASE}).Draw(d.t, "target"),
	}
	switch c.Target {
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: d.rev()}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: d.rev()}
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: rapid.Int64Range(0, 3).Draw(d.t, "version")}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: []byte(values.Draw(d.t, "value"))}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: int64(d.lease())}
	}
	return c
}

func (d drawer) op(depth int) *pb.RequestOp {
	switch n := rapid.IntRange(0, 99).Draw(d.t, "op"); {
	case n < 45:
		return store.Put(string(d.key()), []byte(values.Draw(d.t, "value")), d.lease())
	case n < 65:
		return delRange(string(d.key()), string(d.end(40)))
	case n < 80 || depth == 0:
		return read(d.read(15))
	case n == 99:
		return &pb.RequestOp{}
	}
	return store.Nest(d.txn(depth - 1))
}

// read draws a range that is read at an explicit revision now and then.
func (d drawer) read(percent int) *pb.RangeRequest {
	req := &pb.RangeRequest{
		Key:       d.key(),
		RangeEnd:  d.end(70),
		Limit:     rapid.Int64Range(-1, 3).Draw(d.t, "limit"),
		KeysOnly:  rapid.Bool().Draw(d.t, "keys only"),
		CountOnly: d.chance(20, "count only"),
	}
	if d.chance(20, "put within") {
		req.MinModRevision, req.MaxModRevision = d.rev(), d.rev()
	}
	if d.chance(percent, "at a revision") {
		req.Revision = d.rev()
	}
	return req
}
