package owner

import (
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// all iterates over keys as they are, or as they were at the revision that the world is shown at.
func (w *world) all(prefix string) iter.Seq[*mvccpb.KeyValue] {
	if w.shown == 0 {
		return w.etcd.All(prefix)
	}
	resp, err := w.etcd.Range(&pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), Revision: w.shown})
	if err != nil {
		panic(err)
	}
	return slices.Values(resp.Kvs)
}

// wanted reports whether something is to be surveyed, or is.
func (s *surveys) wanted() bool {
	return s.current != nil || len(s.asked) > 0 || s.due != servesNone || s.helps
}

// decided remembers which demands an instance knew to be over when it found out turns: it passes them, and others see them for as
// long as their key lists them.
func (w *world) decided(h *host) {
	defer func() { w.shown = 0 }()
	var all []*turn
	if t := h.commits.turn; t != nil {
		all = append(all, t)
	}
	for c := range h.asked {
		if c.passing.turn != nil {
			all = append(all, c.passing.turn)
		}
	}
	for _, t := range all {
		if w.knew[t] != nil || t.revision < w.lives.restored {
			continue
		}
		w.shown = t.revision
		w.knew[t] = map[wire.DemandRef]bool{}
		for _, x := range w.waiters() {
			d, _ := h.queue.find(x.ref)
			w.knew[t][x.ref] = x.key.Host == h.name && d != nil && d.over
		}
	}
}

// turnOf returns the claim of an id that a host takes although others wait, nil if it does not.
func (w *world) turnOf(id, name string) *Claim {
	for _, h := range w.hosts {
		for c := range h.asked {
			if h.name == name && c.request.ID == id && c.passing.turn != nil {
				return c
			}
		}
	}
	return nil
}

// checkTurns checks that claims that take slots in a revision although others wait had their turn when that was found out, by the
// revision that was read: each fit behind all that waited then. Since then nobody has come to wait for a pool that was pending,
// and no other claim has taken slots of it in the same way.
func (w *world) checkTurns(claims []*Claim, events []*mvccpb.Event) {
	by := map[int64][]*Claim{}
	of := map[string]int64{}
	for _, c := range claims {
		t := c.passing.turn
		by[t.revision] = append(by[t.revision], c)
		for p := range c.request.Slots {
			at := t.of(p)
			if at == 0 {
				continue
			}
			w.check(of[p] == 0 || of[p] == t.revision, "two turns of %s are used together, those of %d and %d", p, of[p], t.revision)
			of[p] = t.revision
			change := slices.IndexFunc(events, func(ev *mvccpb.Event) bool { return string(ev.Kv.Key) == w.keys.Pending(p) })
			w.check(change >= 0 && events[change].PrevKv != nil && events[change].PrevKv.ModRevision == at, "claim %s takes slots of %s, and its turn has ended or does not end", c.request.ID, p)
		}
	}
	for revision, group := range by {
		w.checkTurn(group, revision)
	}
}

// checkTurn checks that claims had their turn at a revision.
func (w *world) checkTurn(claims []*Claim, revision int64) {
	if revision < w.lives.restored {
		return // nobody can read it
	}
	w.shown = revision
	defer func() { w.shown = 0 }()
	over := w.knew[claims[0].passing.turn]
	all := slices.DeleteFunc(w.waiters(), func(x waiter) bool { return over[x.ref] })
	for _, c := range claims {
		if c.demand != nil {
			w.served++
			continue
		}
		w.passing++
		all = append(all, waiter{Demand: wire.Demand{Claim: c.request.ID, Holder: c.request.Holder, Pools: c.request.Slots}})
	}
	granted := w.admitted(all)
	for _, c := range claims {
		turn := slices.ContainsFunc(granted, func(x waiter) bool { return x.Claim == c.request.ID && x.Holder.Host == c.request.Holder.Host })
		w.check(turn, "claim %s passes others: it had no turn in revision %d", asked(c.request), revision)
	}
}

// checkEmpty checks that no pool is pending for which no claim waits, if nobody dispatches. The next claim finds a pool whose
// demands have ended with a process, or were lost in a restore.
func (w *world) checkEmpty() {
	if w.lives.often > 0 {
		return
	}
	for _, p := range poolNames {
		_, pending := w.get(w.keys.Pending(p))
		waits := slices.ContainsFunc(w.waiters(), func(x waiter) bool { return x.Pools[p] > 0 })
		if pending && !waits {
			w.check(false, "pool %s is pending, and no claim waits", p)
		}
	}
}

// Each rule of who may take slots although others wait is needed.
func TestWhoPassesNobody(t *testing.T) {
	long(t)
	pending := func(key string) bool { return strings.Contains(key, "/pending/") }
	for name, m := range map[string]mutant{
		"the compare of a pool that is pending": {without: func(c *pb.Compare) bool { return pending(string(c.Key)) && c.Target == pb.Compare_MOD }},
		"the demands": {read: func(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
			if strings.Contains(string(kv.Key), "/demands/") {
				return nil
			}
			return kv
		}},
		"the end of a pool that is pending": {op: func(op *pb.RequestOp) bool {
			return !pending(string(op.GetRequestDeleteRange().GetKey()))
		}},
		"that others wait": {pool: true, without: func(c *pb.Compare) bool { return pending(string(c.Key)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(600) {
				w := newWorld(seed, m.without)
				w.mutant, w.seldom = m, 2
				if w.run(600); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
					return
				}
			}
			t.Error("nothing noticed that it is missing")
		})
	}
}

// mutant changes what instances read and write, to show that the checks notice.
type mutant struct {
	without func(*pb.Compare) bool
	// read changes what a read returns, and op reports whether an operation of the half that commits is kept.
	read func(*mvccpb.KeyValue) *mvccpb.KeyValue
	op   func(*pb.RequestOp) bool
	pool bool // only where the key of a pool that is pending is deleted
}

// change changes a transaction on its way to etcd.
func (m mutant) change(t *pb.TxnRequest) {
	if m.op != nil && len(t.Compare) > 0 && strings.Contains(string(t.Compare[0].Key), "/guards/") && !strings.HasSuffix(string(t.Compare[0].Key), "~demands") {
		m.drop(t)
	}
}

func (m mutant) drop(t *pb.TxnRequest) {
	for i, op := range t.Success {
		if child := op.GetRequestTxn(); child != nil {
			m.drop(child)
		} else if !m.op(op) {
			t.Success[i] = store.Get("/b/nothing") // there is a response to each
		}
	}
}

// changeRead changes the answer to a read.
func (m mutant) changeRead(resp *pb.TxnResponse) {
	if m.read == nil || resp == nil {
		return
	}
	for _, r := range resp.Responses {
		if rr := r.GetResponseRange(); rr != nil {
			var kept []*mvccpb.KeyValue
			for _, kv := range rr.Kvs {
				if kv = m.read(kv); kv != nil {
					kept = append(kept, kv)
				}
			}
			rr.Kvs = kept
		}
	}
}

// Of two claims of two instances that do not wait, and each of which fits behind the one that waits, one is refused: what the other
// has found out is no longer so. Without the notice that the first one gives, both pass it.
func TestTwoThatDoNotWait(t *testing.T) {
	for _, notice := range []bool{true, false} {
		w := newWorld(1, nil)
		if !notice {
			w.mutant.op = func(op *pb.RequestOp) bool {
				return !strings.Contains(string(op.GetRequestPut().GetKey()), "/pending/")
			}
		}
		s := pool.DefaultSpec()
		s.Limit = 300
		w.putSpec("db", s)
		k := wire.DemandKey{Pool: "db", Host: "other", Instance: "i"}
		d := wire.Demand{Claim: "d", Pools: map[string]int{"db": 299}, Pending: []string{"db"}, Since: time.Unix(1, 0), Holder: pool.Holder{Host: "other", Instance: "i"}}
		w.must(&pb.TxnRequest{Success: []*pb.RequestOp{
			store.Put(w.keys.Demand(k), wire.EncodeDemands([]wire.Demand{d})["db"], 0), store.Put(w.keys.Pending("db"), wire.EncodeEmpty(), 0),
		}})
		for range 10 { // leases are not always granted immediately
			for _, h := range w.hosts[:2] {
				leasesOf{w, h, false}.Acquire(0, 0)
			}
		}
		var claims []*Claim
		for _, h := range w.hosts[:2] {
			c := NewClaim(&pool.Request{ID: "of-" + h.name, Slots: map[string]int{"db": 1}, Holder: pool.Holder{Host: h.name, Instance: "i"}})
			h.asked[c] = true
			h.Claim(c, w.now(), time.Unix(1, 0))
			claims = append(claims, c)
		}
		for round := range 40 {
			for i, h := range w.hosts[:2] {
				if claims[1-i].passing.turn == nil && round < 20 && claims[i].passing.turn != nil {
					continue // until both have their turn
				}
				if txn, ok := h.Commits().Next(w.now(), time.Unix(1, 0)); ok {
					h.Commits().Answer(w.carry(txn))
				}
				if txn, ok := h.Reads(); ok {
					h.Read(w.must(txn), nil)
				}
				w.results(h)
			}
		}
		granted := len(w.hosts[0].held) + len(w.hosts[1].held)
		if want := map[bool]int{true: 1, false: 2}[notice]; granted != want || (len(w.errs) > 0) == notice {
			t.Errorf("notice %v: %d are granted, want %d: %v", notice, granted, want, w.errs)
		}
	}
}

// Of two claims of one instance that do not wait, and whose turns were found out one after the other, one is refused: each turn counts
// the last slot as free.
func TestTwoTurns(t *testing.T) {
	r := newRig(t)
	r.ask("held", 1, store.Extra{})
	r.pass(time.Second)
	d := wire.Demand{Claim: "d", Pools: map[string]int{"db": 2}, Pending: []string{"db"}, Since: time.Unix(1, 0), Holder: pool.Holder{Host: "other", Instance: "i"}}
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{
		store.Put(r.keys.Demand(wire.DemandKey{Pool: "db", Host: "other", Instance: "i"}), wire.EncodeDemands([]wire.Demand{d})["db"], 0),
		store.Put(r.keys.Pending("db"), wire.EncodeEmpty(), 0),
	}})
	s := pool.DefaultSpec()
	s.Limit = 1
	r.putSpec("gpu", s)
	hurried := func(id, name string) *Claim {
		c := NewClaim(&pool.Request{ID: id, Slots: map[string]int{name: 1}, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
		r.h.asked[c], c.lease = true, r.h.leases[false]
		r.h.Claim(c, r.now(), time.Unix(1, 0))
		return c
	}
	read := func() {
		if txn, ok := r.h.Reads(); ok {
			r.h.Read(r.must(txn), nil)
		}
	}
	first := hurried("first", "db") // it learns that the pool is pending
	r.pass(time.Second)
	r.h.Release(first)
	r.pass(time.Second)
	hurried("slow", "gpu")
	var slow *pb.TxnRequest
	for slow == nil {
		slow, _ = r.h.Commits().Next(r.now(), time.Unix(1, 0))
		read()
	}
	for _, id := range []string{"one", "two"} {
		for c := hurried(id, "db"); c.passing.turn == nil; read() {
			r.h.Commits().Next(r.now(), time.Unix(1, 0))
		}
	}
	r.h.Commits().Answer(r.carry(slow))
	if all := r.pass(time.Second); (all["one"].Outcome == Granted) == (all["two"].Outcome == Granted) || len(r.errs) > 0 {
		t.Errorf("%+v, %v", all, r.errs)
	}
}

// A demand that fits while a dispatcher offers nothing is served by its owner after 5 s, and not before. An offer begins the time
// again.
func TestADispatcherThatForgets(t *testing.T) {
	r := newRig(t)
	a := r.ask("a", 4, store.Extra{})
	r.pass(time.Second)
	c := r.ask("b", 1, store.Extra{})
	if all := r.pass(time.Second); all["b"].Outcome != Waits {
		t.Fatalf("%+v", all)
	}
	r.h.Release(a)
	r.pass(time.Second)
	at := r.clock
	for c.state == waiting && r.clock < at+time.Minute {
		r.h.Serve(r.now(), false)
		r.pass(time.Second / 2)
		if since := r.clock - at; since < 3*time.Second && since > 2*time.Second {
			c.demand.unfit() // as an offer does
			r.h.surveys.looked = r.clock - 4*time.Second
		}
	}
	if took := r.clock - at; c.state != held || took < 2*time.Second+fitsFor || took > 4*time.Second+2*fitsFor {
		t.Errorf("state %d after %v", c.state, took)
	}
}

// While a pool is full, an owner only counts its slots to find out whether a dispatcher forgets a demand, and that each 5 s.
func TestAFullPoolIsOnlyCounted(t *testing.T) {
	r := newRig(t)
	r.ask("a", 4, store.Extra{})
	r.pass(time.Second)
	r.ask("b", 1, store.Extra{})
	r.pass(time.Second)
	looks := 0
	for range 20 {
		r.h.Serve(r.now(), false)
		for txn, ok := r.h.Reads(); ok; txn, ok = r.h.Reads() {
			looks++
			for _, op := range txn.Success {
				if rr := op.GetRequestRange(); strings.HasPrefix(string(rr.Key), r.keys.Slots("db")+"0") && !rr.CountOnly || strings.Contains(string(rr.Key), "/demands/") {
					t.Errorf("it reads %s", rr.Key)
				}
			}
			r.h.Read(r.must(txn), nil)
		}
		r.clock += time.Second
	}
	if looks != 4 {
		t.Errorf("it looks %d times in 20 s", looks)
	}
}

// After a restore to an earlier revision what is read counts, and nothing is read without a pause. A survey that was begun before
// has read what no longer is.
func TestARestoreToAnEarlierRevision(t *testing.T) {
	r := newRig(t)
	a := r.ask("a", 4, store.Extra{})
	r.pass(time.Second)
	s := r.etcd.Save()
	r.ask("b", 1, store.Extra{})
	r.pass(time.Second)
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put("/b/later", nil, 0)}})
	r.h.Release(a)
	r.pass(time.Second)
	r.clock += time.Minute
	r.h.Serve(r.now(), false)
	first, _ := r.h.Reads()
	r.h.Read(r.must(first), nil) // a demand fits: all of the pool is read at the same revision next
	if r.h.surveys.current == nil {
		t.Fatal("the survey has ended")
	}
	restored := storetest.New(storetest.Options{})
	restored.Restore(s, s.Revision()-restored.Revision())
	r.etcd = restored
	r.h.Restored()
	reads := 0
	for range 3 {
		r.h.Serve(r.now(), true)
		r.pass(time.Second)
		for txn, ok := r.h.Reads(); ok && reads < 100; txn, ok = r.h.Reads() {
			reads++
			r.h.Read(r.must(txn), nil)
		}
	}
	if k := r.h.memory.pools["db"]; !k.Ready() || reads > 20 {
		t.Errorf("%d reads, ready: %v", reads, k.Ready())
	}
}
