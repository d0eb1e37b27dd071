package owner

import (
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// maxSurveyed is how many pools a survey is begun for at most, unless one claim has more.
	maxSurveyed = 16
	// maxNamed bounds the pools of a survey with those that demands name besides. Of others it is assumed that they have free
	// slots for every demand: then what it needs in the pools that were read is kept for it.
	maxNamed = 40
	// maxDemandsRead is after how many demands of a pool no more are read. Then no claim that does not wait has its turn, and
	// of others those that were read are ranked, with all demands of this instance.
	maxDemandsRead = 10_000
	// pageOfDemands is how many demands keys one page has: 5 MB at most.
	pageOfDemands = 160
	// surveyOps bounds the operations of a round: a pool has five.
	surveyOps = maxOps - 8
)

// survey reads some pools and the claims that wait for them, at one revision, in some rounds.
type survey struct {
	number uint64   // of the read
	claims []*Claim // that do not wait
	helps  []*Claim // that help; then only demands are read
	pools  []string // that it is begun for
	serves serving  // demands
	brief  bool     // only how many slots are in use is read
	at     time.Duration
	by     wire.DemandKey // the instance
	named  map[string]bool
	cut    map[string]bool // pools whose demands are not read completely
	turn   turn
	// revision is that of the first answer, 0 before.
	revision   int64
	state      list.Part
	next, sent []page
}

// page is a part of a round.
type page struct {
	kind    pageKind
	pool    string
	from    string // the first key of demands
	reading reading
	ops     int
}

type pageKind int

const (
	ofPool pageKind = iota // its spec, its slots and whether it is pending
	ofUse                  // its spec, its blocks and the number of its slot keys
	ofOwn                  // the demands of this instance in it
	ofAll                  // the demands of all instances
)

// serve has it serve demands. If there is a dispatcher, those of others are read only if one of this instance would fit.
func (v *survey) serve(which serving) { v.serves, v.brief = which, which == servesStale }

// add has a pool read.
func (v *survey) add(name string) {
	v.named[name] = true
	if v.brief {
		v.next = append(v.next, page{kind: ofUse, pool: name})
		return
	}
	v.next = append(v.next, page{kind: ofPool, pool: name}, page{kind: ofOwn, pool: name}, page{kind: ofAll, pool: name})
}

// help has it find out who waits for the same as claims that help.
func (v *survey) help(claims []*Claim) { v.helps = claims }

// addOthers has only the demands of some pools read.
func (v *survey) addOthers(pools []string) {
	for _, name := range pools {
		if !v.named[name] {
			v.named[name] = true
			v.next = append(v.next, page{kind: ofAll, pool: name})
		}
	}
}

// expand has all of the pools read.
func (v *survey) expand(m *memory) {
	v.brief, v.state = false, list.NewPart(m.keys.Keys, v.revision)
	for _, name := range slices.Sorted(maps.Keys(v.named)) {
		v.add(name)
	}
}

// request returns the transaction of the next round.
func (v *survey) request(m *memory) *pb.TxnRequest {
	t := &pb.TxnRequest{}
	n := 0
	for n < len(v.next) && len(t.Success) <= surveyOps-5 {
		p := &v.next[n]
		ops := v.ops(p, m)
		p.ops = len(ops)
		t.Success = append(t.Success, ops...)
		n++
	}
	v.sent, v.next = v.next[:n], slices.Clone(v.next[n:])
	for _, op := range t.Success {
		op.GetRequestRange().Revision = v.revision
	}
	return t
}

// ops returns the operations of a page.
func (v *survey) ops(p *page, m *memory) (ops []*pb.RequestOp) {
	switch p.kind {
	case ofPool:
		p.reading, ops = m.requests(m.of(p.pool, v.at), 0, readNumbers, v.number)
		ops[3].GetRequestRange().KeysOnly = false // the values name demands that have ended
		return ops
	case ofUse:
		first, end := m.keys.Numbers(p.pool, slots.Run{To: slots.MaxNumbersOfPool})
		count := inRange(first, end, true)
		count.GetRequestRange().CountOnly = true
		return []*pb.RequestOp{store.Get(m.keys.Spec(p.pool)), m.blocks(p.pool, readNumbers), count}
	case ofOwn:
		ops = append(ops, limited(under(m.keys.Demands(p.pool, v.by.Host, v.by.Instance), false), pageOfDemands))
	case ofAll:
		all := m.keys.DemandsAll(p.pool)
		ops = append(ops, limited(inRange(max(p.from, all), string(store.RangeEnd(all)), false), pageOfDemands))
	}
	return ops
}

// answer takes the answer to a round.
func (v *survey) answer(m *memory, resp *pb.TxnResponse) {
	if v.revision == 0 {
		v.revision = resp.Header.Revision
		v.state = list.NewPart(m.keys.Keys, v.revision)
	}
	at := 0
	for _, p := range v.sent {
		v.take(m, p, resp.Responses[at:at+p.ops])
		at += p.ops
	}
	v.sent = nil
	if v.brief || len(v.helps) > 0 {
		return
	}
	for _, name := range v.state.Named() {
		if !v.named[name] && len(v.named) < maxNamed {
			v.add(name)
		}
	}
}

// take takes the responses to a page.
func (v *survey) take(m *memory, p page, responses []*pb.ResponseOp) {
	if p.kind == ofPool {
		m.answer(p.reading, responses, v.revision)
		v.state.Add(p.pool)
		v.turn.pending[p.pool] = revisionOf(responses[1])
		v.turn.specs[p.pool] = revisionOf(responses[0])
		for _, i := range []int{0, 2, 3} {
			v.put(responses[i])
		}
		numbers := responses[3].GetResponseRange()
		v.state.LeaveOut(p.pool, int(numbers.Count)-len(numbers.Kvs), false)
		return
	}
	v.put(responses[0])
	r := responses[0].GetResponseRange()
	if p.kind == ofUse {
		v.state.Add(p.pool)
		v.put(responses[1])
		v.state.LeaveOut(p.pool, int(responses[2].GetResponseRange().Count), false)
		return
	}
	if p.kind != ofAll || !r.More {
		return
	}
	if v.cut[p.pool] = v.state.Demands(p.pool) >= maxDemandsRead; v.cut[p.pool] {
		v.state.LeaveOut(p.pool, 0, true)
		return
	}
	v.next = append(v.next, page{kind: ofAll, pool: p.pool, from: string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"})
}

func (v *survey) put(r *pb.ResponseOp) {
	for _, kv := range r.GetResponseRange().Kvs {
		v.state.Put(kv)
	}
}

// over reports whether all was read.
func (v *survey) over() bool { return len(v.next)+len(v.sent) == 0 }

// knows reports whether some pools were read.
func (v *survey) knows(pools []string) bool {
	return !slices.ContainsFunc(pools, func(name string) bool { return !v.named[name] })
}

// whole reports whether all demands were read.
func (v *survey) whole() bool { return !slices.Contains(slices.Collect(maps.Values(v.cut)), true) }
