package owner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// A survey reads at most 1,000 slot keys of a pool and counts the others, and no page of demands after 10,000 of them.
func TestASurveyIsBounded(t *testing.T) {
	for _, c := range []struct {
		held, waits, needs int
		refused            string
	}{
		{1200, 1, 1, ""},
		{1200, 1, 800, "has no 800 free slots"},
		{1200, 1, 790, "others wait"},
		{0, 9_000, 1, ""},
		{0, 11_000, 1, "others wait"},
	} {
		r := newRig(t)
		s := pool.DefaultSpec()
		s.Limit = 1995
		r.putSpec("db", s)
		put := func(ops []*pb.RequestOp) {
			for some := range slices.Chunk(ops, 100) {
				r.must(&pb.TxnRequest{Success: some})
			}
		}
		var ops []*pb.RequestOp
		for i := range c.held {
			req := &pool.Request{ID: fmt.Sprint("held-", i), Slots: map[string]int{"db": 1}, Holder: pool.Holder{Host: "other", Instance: "i"}}
			for _, p := range wire.Spell(req).Puts(map[string]slots.Held{"db": {Numbers: []int{i}}}, wire.Written{Since: time.Unix(1, 0)}) {
				ops = append(ops, store.Put(p.Key(r.keys), p.Value, 0))
			}
		}
		var list []wire.Demand
		for i := range c.waits {
			n := 1900 // does not fit, but if it is the only one
			if c.waits == 1 {
				n = 6
			} else if i > 0 {
				n = 1990
			}
			list = append(list, wire.Demand{Index: i % 64, Claim: fmt.Sprint("w-", i), Pools: map[string]int{"db": n}, Pending: []string{"db"}, Since: time.Unix(1, 0), Holder: pool.Holder{Host: "other", Instance: "i"}})
		}
		name := 0
		for some := range slices.Chunk(list, 64) {
			key := r.keys.Demand(wire.DemandKey{Pool: "db", Host: "other", Instance: "i", Name: name})
			ops = append(ops, store.Put(key, wire.EncodeDemands(some)["db"], 0))
			name++
		}
		put(append(ops, store.Put(r.keys.Pending("db"), wire.EncodeEmpty(), 0)))
		claim := NewClaim(&pool.Request{ID: "c", Slots: map[string]int{"db": c.needs}, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
		r.h.asked[claim] = true
		r.h.Claim(claim, r.now(), time.Unix(1, 0))
		got := r.pass(time.Second)["c"]
		if c.refused == "" && got.Outcome != Granted || c.refused != "" && (got.Err == nil || !strings.Contains(got.Err.Error(), c.refused)) {
			t.Errorf("%d are held, %d wait, %d are wanted: %d, %v", c.held, c.waits, c.needs, got.Outcome, got.Err)
		}
	}
}

// Claims that have waited leave nothing in memory, also if no slots were handed on to any.
func TestClaimsThatHaveWaitedAreForgotten(t *testing.T) {
	r := newRig(t)
	r.limit(1, false)
	req := func(id string) *pool.Request {
		return &pool.Request{ID: id, Slots: map[string]int{"db": 1}, Wait: time.Hour, Holder: pool.Holder{Host: r.h.name, Instance: "i"}}
	}
	ask := func(c *Claim) {
		r.h.asked[c] = true
		r.h.Claim(c, r.now(), time.Unix(1, 0))
		r.pass(100 * time.Millisecond)
	}
	ask(NewClaim(req("held")))
	for i := range 20 {
		c := NewClaim(req(fmt.Sprint("w-", i)))
		ask(c)
		if _, waits := c.Waits(); !waits {
			t.Fatalf("claim %d does not wait", i)
		}
		r.h.Withdraw(c, false)
		r.pass(100 * time.Millisecond)
	}
	if n := len(r.h.queue.ranks); n > 0 {
		t.Errorf("%d kinds are left, the first one with %d demands", n, len(r.h.queue.ranks["db=1 "].list))
	}
	one, other := NewClaim(req("one")), NewClaim(req("other"))
	for _, c := range []*Claim{one, other} {
		ask(c)
	}
	(&plan{commits: r.h.commits}).unqueue(one.demand) // it had no place
	r.pass(time.Second)
	if d := r.h.queue.first("db=1 "); d == nil || d.claim != one {
		t.Errorf("%+v is first", d)
	}
}

// A pool with a limit that has too many blocks is one that can't be read. After a lost race fewer are read, and more are no reason
// to close it.
func TestTheBlocksThatAreReadAreBounded(t *testing.T) {
	r := newRig(t)
	k := r.h.memory.of("db", 0)
	read := func(limit int, most, number uint64) (limited int64) {
		s := pool.DefaultSpec()
		s.Limit = limit
		r.putSpec("db", s)
		reading, ops := r.h.memory.requests(k, 0, int64(most), number)
		resp := r.must(&pb.TxnRequest{Success: ops})
		resp.Responses[2].GetResponseRange().More = true
		r.h.memory.answer(reading, resp.Responses, resp.Header.Revision)
		return ops[2].GetRequestRange().Limit
	}
	if n := read(1, retryNumbers, 0); n != 3200 || k.err != nil || k.Ready() {
		t.Errorf("after a lost race %d are read: %v", n, k.err)
	}
	if n := read(1, readNumbers, 1); n != 50_000 || k.err == nil || !strings.Contains(k.err.Error(), r.keys.Blocks("db")) {
		t.Errorf("%d are read: %v", n, k.err)
	}
	if read(pool.Unlimited, readNumbers, 2); k.err != nil || !k.Ready() {
		t.Errorf("without a limit: %v", k.err)
	}
}

// A poll reads few keys that others have put. What it has not read it does not take as deleted.
func TestAPollIsBounded(t *testing.T) {
	r := newRig(t)
	r.limit(1, false)
	r.ask("held", 1, store.Extra{})
	r.pass(time.Second)
	c := r.ask("waits", 1, store.Extra{})
	r.pass(time.Second)
	ref := c.demand.ref()
	var ops []*pb.RequestOp
	for n := range 2 * maxStrays {
		ops = append(ops, store.Put(r.keys.Demands("db", r.h.name, "i")+fmt.Sprint("-", n), nil, 0))
	}
	for some := range slices.Chunk(ops, 100) {
		r.must(&pb.TxnRequest{Success: some})
	}
	resp := r.must(&pb.TxnRequest{Success: r.h.Polls()})
	if n := len(resp.Responses[1].GetResponseRange().Kvs); n > maxStrays+1 {
		t.Errorf("%d keys are read", n)
	}
	if r.h.Polled(resp.Responses, resp.Header.Revision); c.demand.ref() != ref {
		t.Errorf("the demand is %+v, was %+v", c.demand.ref(), ref)
	}
}
