package owner

import (
	"maps"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// transfer is what is known of a claim that another instance holds, and that is to be taken over.
type transfer struct {
	revision int64 // in which its keys were put
	record   *wire.Record
	keys     map[string]slots.Held
}

// transfers are the claims that are to be taken over, and whose keys are to be read.
type transfers struct{ todo[*Claim] }

// next returns the transaction that reads claims, and what takes its answer; nil if there is none to be read. Then they are taken
// over by the half that commits.
func (t *transfers) next(keys wire.Keys, by *commits) (*pb.TxnRequest, func(*pb.TxnResponse, error)) {
	txn := &pb.TxnRequest{}
	var reads []*Claim
	for _, c := range t.take() {
		if len(txn.Success)+2*len(c.pools) > maxOps {
			t.add(c)
			continue
		}
		for _, name := range c.pools {
			put := under(keys.Slots(name), false) // and only what was put with the claim
			put.GetRequestRange().MinModRevision, put.GetRequestRange().MaxModRevision = c.transfer.revision, c.transfer.revision
			txn.Success = append(txn.Success, store.Get(keys.Spec(name)), put)
		}
		reads = append(reads, c)
	}
	if len(reads) == 0 {
		return nil, nil
	}
	return txn, func(resp *pb.TxnResponse, err error) {
		if err != nil {
			t.add(reads...)
			return
		}
		by.transfersRead(reads, resp)
	}
}

// transfersRead takes the answer to a read of claims that are to be taken over.
func (o *commits) transfersRead(reads []*Claim, resp *pb.TxnResponse) {
	at := 0
	for _, c := range reads {
		var keys []*mvccpb.KeyValue
		for _, name := range c.pools {
			o.memory.specRead(name, resp.Responses[at], resp.Header.Revision)
			keys = append(keys, resp.Responses[at+1].GetResponseRange().Kvs...)
			at += 2
		}
		t := &transfer{revision: c.transfer.revision}
		if err := t.find(o.memory.keys, c.request.ID, keys); err != nil {
			o.refuse(c, err)
			continue
		}
		c.find(t)
		o.want.add(c)
	}
}

// find finds the keys of a claim among those that were put in its revision. It fails if not all of them are there.
func (t *transfer) find(keys wire.Keys, id string, kvs []*mvccpb.KeyValue) error {
	all, main := map[wire.Ref]slots.Block{}, wire.Ref{}
	var corrupt error
	for _, kv := range kvs {
		ref, s, err := keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
		switch {
		case err != nil:
			corrupt = err
		case s.Claim != id:
		default:
			all[ref] = s.Block
			if s.Record == nil {
				continue
			}
			main = ref
			if t.record, err = s.Decode(string(kv.Key)); err != nil {
				return store.Problem("claim "+id+" can't be taken over", err)
			}
		}
	}
	if t.record != nil {
		if refs, err := t.record.Refs(main); err == nil && t.hold(refs, all) {
			return nil
		}
	}
	if corrupt != nil { // it may be one of the claim
		return store.Problem("claim "+id+" can't be taken over", corrupt)
	}
	return precondition(id)
}

// hold makes the keys what is held of each pool. It is false if they are not what the record says.
func (t *transfer) hold(refs []wire.Ref, all map[wire.Ref]slots.Block) bool {
	t.keys = map[string]slots.Held{}
	used := map[string]int{}
	for _, ref := range refs {
		b, ok := all[ref]
		if !ok {
			return false
		}
		delete(all, ref) // none counts twice
		h := t.keys[ref.Pool]
		if ref.IsBlock() {
			h.Blocks = append(h.Blocks, b)
		} else {
			h.Numbers = append(h.Numbers, ref.Number)
		}
		t.keys[ref.Pool] = h
		used[ref.Pool] = h.Slots()
	}
	return maps.Equal(used, t.record.Pools)
}

// transfer adds the part of a transaction that takes a claim over. It is false if it is to be tried again.
func (p *plan) transfer(c *Claim) bool {
	if !c.reserve(p.leases, p.memory.leaseDuration(c)) {
		return false
	}
	it := &item{kind: takes, claim: c}
	for _, name := range c.pools {
		p.memory.of(name, p.now)
	}
	p.memory.transfer(it, p.at)
	if len(it.own) > slots.MaxCompares {
		p.memory.giveUp(it)
		p.refuse(c, problem.New(problem.Internal, "claim %q has %d keys: at most %d can be taken over", c.request.ID, len(it.own), slots.MaxCompares))
		return true
	}
	if !p.b.add(it) {
		p.memory.giveUp(it)
		return false
	}
	c.become(taking)
	return true
}
