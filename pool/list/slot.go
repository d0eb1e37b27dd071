package list

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// slot is a slot key or a block.
type slot struct {
	claim *claim
	rev   int64
	lease store.LeaseID
	runs  []slots.Run // of a block with numbers
	n     int         // slots
}

// numbers returns the numbers that it holds; a count has none.
func (s slot) numbers(ref wire.Ref) []slots.Run {
	if ref.IsBlock() {
		return s.runs
	}
	return []slots.Run{{From: ref.Number, To: ref.Number + 1}}
}

// putSlot records a slot key or a block. With an error it returns what the key names, the zero value if that is none of these.
func (s *State) putSlot(kv *mvccpb.KeyValue) (wire.Ref, error) {
	key := string(kv.Key)
	ref, v, err := s.keys.DecodeSlot(key, kv.Value, kv.CreateRevision)
	if err != nil {
		return ref, err
	}
	is := slot{rev: kv.ModRevision, lease: store.LeaseID(kv.Lease), runs: v.Block.Runs, n: 1}
	if ref.IsBlock() {
		is.n = v.Block.Count
	}
	name := claimName{v.Claim, v.Main}
	if v.Record != nil {
		name.main = ref
	}
	if is.claim = s.claims[name]; is.claim == nil {
		is.claim = &claim{claimName: name}
		s.claims[name] = is.claim
	}
	is.claim.count(1)
	if v.Record != nil {
		s.putRecord(is.claim, &record{key: key, slot: v}, is)
	}
	p := s.pool(ref.Pool)
	p.slots[ref] = is
	p.used += is.n
	return ref, nil
}

// unread counts slots of a pool that were not read, or can't be.
func (p *poolState) unread(n int) { p.used += n }

func (s *State) deleteSlot(key string) {
	ref, err := s.keys.Ref(key)
	p := s.pools[ref.Pool]
	if err != nil || p == nil {
		return
	}
	is, ok := p.slots[ref]
	if !ok {
		return
	}
	delete(p.slots, ref)
	p.used -= is.n
	if is.claim.main == ref {
		s.putRecord(is.claim, nil, slot{})
	}
	if is.claim.count(-1) == 0 {
		delete(s.claims, is.claim.claimName)
	}
}
