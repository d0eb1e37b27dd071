package storetest

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Range reads keys, as they are now or as they were at a revision that is not
// compacted.
func (e *Etcd) Range(req *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := validateRange(req); err != nil {
		return nil, err
	}
	switch {
	case req.Revision <= 0:
	case req.Revision > e.rev:
		return nil, errFuture
	case req.Revision < e.compacted:
		return nil, errCompacted
	}
	resp := e.read(req)
	resp.Header.ClusterId = e.opts.ClusterID
	resp.Header.MemberId, resp.Header.RaftTerm = 1, 1
	return resp, nil
}

// read answers a range whose revision was found to exist.
func (e *Etcd) read(req *pb.RangeRequest) *pb.RangeResponse {
	keys := e.keys
	if req.Revision > 0 && req.Revision < e.rev {
		keys = e.at(req.Revision)
	}
	from, to := keys.span(req.Key, req.RangeEnd)
	resp := &pb.RangeResponse{
		Header: &pb.ResponseHeader{Revision: e.rev},
		Count:  int64(to - from),
	}
	if req.CountOnly {
		return resp
	}
	kvs := []*mvccpb.KeyValue(keys[from:to])
	if req.MinModRevision != 0 || req.MaxModRevision != 0 {
		kvs = putWithin(kvs, req.MinModRevision, req.MaxModRevision)
	}
	if req.Limit > 0 && int64(len(kvs)) > req.Limit {
		kvs = kvs[:req.Limit]
		resp.More = true
	}
	if req.KeysOnly {
		resp.Kvs = keysOnly(kvs)
	} else {
		resp.Kvs = copyKVs(kvs)
	}
	return resp
}

// putWithin returns the keys that were last put between two revisions; 0 is no bound.
func putWithin(kvs []*mvccpb.KeyValue, from, to int64) (within []*mvccpb.KeyValue) {
	for _, kv := range kvs {
		if kv.ModRevision >= from && (to == 0 || kv.ModRevision <= to) {
			within = append(within, kv)
		}
	}
	return within
}

// keysOnly copies what etcd knows without reading the values: the leases are
// not part of that.
func keysOnly(kvs []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	copies := make([]*mvccpb.KeyValue, len(kvs))
	for i, kv := range kvs {
		copies[i] = &mvccpb.KeyValue{
			Key:            slices.Clone(kv.Key),
			CreateRevision: kv.CreateRevision,
			ModRevision:    kv.ModRevision,
			Version:        kv.Version,
		}
	}
	return copies
}

// at returns the keys as they were at a revision, by undoing what came later.
func (e *Etcd) at(rev int64) index {
	keys := slices.Clone(e.keys)
	for i := len(e.log) - 1; i >= 0 && e.log[i].Rev > rev; i-- {
		for _, ev := range slices.Backward(e.log[i].Events) {
			if ev.PrevKv != nil {
				keys.set(ev.PrevKv)
			} else {
				keys.drop(ev.Kv.Key)
			}
		}
	}
	return keys
}
