package owner

import (
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// takeOvers is the claims of a world that are taken over.
type takeOvers struct {
	w         *world
	by        map[*Claim]*Claim // the claims that take over, with those that they do
	extra     map[string]store.Extra
	done      int
	unchecked bool // etcd compares no keys of theirs
}

func newTakeOvers() *takeOvers {
	return &takeOvers{by: map[*Claim]*Claim{}, extra: map[string]store.Extra{}}
}

// of reports whether a claim is to be taken over, or takes over.
func (x *takeOvers) of(c *Claim) bool { return c.request.Bridge || x.by[c] != nil }

// takeOver has an instance take over a claim of another one.
func (w *world) takeOver(h *host) {
	for _, other := range w.hosts {
		for _, old := range other.held {
			if other == h || !old.request.Bridge || w.IntN(4) == 0 {
				continue
			}
			id := old.request.ID
			if w.chosen[id] || slices.ContainsFunc(slices.Concat(h.held, h.sorted()), func(c *Claim) bool { return c.request.ID == id }) {
				continue
			}
			x, ok := w.transfers.extra[id]
			if !ok {
				r := &pool.Request{}
				for len(r.Extra.Then) == 0 {
					w.writeWith(r, id)
				}
				x = r.Extra
				x.Then = append(x.Then, store.Put("/b/moved/"+id, nil, 0))
				w.transfers.extra[id], w.written.by[id] = x, &x
			}
			c := NewTakeOver(&pool.TakeOver{ID: id, Fence: old.Fence(), Slots: old.request.Slots, Holder: pool.Holder{Host: h.name, Instance: "i"}, Extra: x})
			w.transfers.by[c] = old
			h.asked[c] = true
			h.Claim(c, w.now(), time.Unix(1, 0))
			return
		}
	}
}

// gone has an instance learn that a claim was taken over.
func (w *world) gone(h *host) {
	for _, c := range h.held {
		if w.forced[c.fence] && w.freed[c.main.Key(w.keys)] > c.fence {
			h.Gone([]*Claim{c})
			w.results(h)
			return
		}
	}
}

// move reports whether a put of a slot key is of a take-over.
func (x *takeOvers) move(ev *mvccpb.Event) bool {
	if ev.PrevKv == nil {
		return false
	}
	_, was, err := x.w.keys.DecodeSlot(string(ev.Kv.Key), ev.PrevKv.Value, ev.PrevKv.CreateRevision)
	if err != nil {
		return false
	}
	_, is, err := x.w.keys.DecodeSlot(string(ev.Kv.Key), ev.Kv.Value, ev.Kv.CreateRevision)
	if err != nil || is.Claim != was.Claim {
		return false
	}
	x.w.forced[ev.PrevKv.ModRevision], x.w.freed[string(ev.Kv.Key)] = true, ev.Kv.ModRevision
	return true
}

// past reports whether a claim can't take over any longer.
func (x *takeOvers) past(w *world, c *Claim) bool {
	old := x.by[c]
	if old == nil {
		return false
	}
	return len(old.keys) == 0 || slices.ContainsFunc(wire.Refs(old.keys), func(ref wire.Ref) bool {
		kv, ok := w.get(ref.Key(w.keys))
		return !ok || kv.ModRevision != old.fence
	})
}

// checkTakenOver checks what has become of a claim that was taken over.
func (w *world) checkTakenOver(c *Claim) {
	old := w.transfers.by[c]
	if old == nil {
		return
	}
	w.transfers.done++
	w.check(c.fence > old.fence, "claim %s has the fencing token %d, and had %d", c.request.ID, c.fence, old.fence)
	kv, ok := w.get(c.main.Key(w.keys))
	if !ok || kv.ModRevision != c.fence {
		return // it has gone since
	}
	_, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
	w.check(err == nil, "%v", err)
	r, err := s.Decode(string(kv.Key))
	w.check(err == nil && r.Admitted == old.fence && r.Priority == old.request.Priority, "claim %s was put in revision %d: %+v, %v", c.request.ID, old.fence, r, err)
}

// uncheck takes the compares of keys out of the parts of a transaction that take over.
func (x *takeOvers) uncheck(t *pb.TxnRequest) {
	moves := false
	for _, op := range t.Success {
		moves = moves || strings.Contains(string(op.GetRequestPut().GetKey()), "/moved/")
		if child := op.GetRequestTxn(); child != nil {
			x.uncheck(child)
		}
	}
	if moves {
		t.Compare = slices.DeleteFunc(t.Compare, func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/slots/") })
	}
}

func TestATakeOverComparesTheKeys(t *testing.T) {
	long(t)
	t.Parallel()
	for seed := range uint64(600) {
		w := newWorld(seed, nil)
		w.transfers.unchecked = true
		if w.run(600); len(w.errs) > 0 {
			t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
			return
		}
	}
	t.Error("nothing noticed that they are not compared")
}

// second adds an instance to a rig, in which every message arrives too.
func (r *rig) second() *rig { return r.instance("second") }

// instance adds an instance, or a later process of one.
func (r *rig) instance(name string) *rig {
	h := r.begin(&host{name: name, asked: map[*Claim]bool{}, leases: map[bool]store.LeaseID{}, ids: map[store.LeaseID]bool{}})
	r.hosts = append(r.hosts, h)
	return &rig{world: r.world, t: r.t, h: h, refuse: r.refuse}
}

// takesOver asks for a claim of another instance.
func (r *rig) takesOver(id string, fence store.Fence, n int, x store.Extra) *Claim {
	c := NewTakeOver(&pool.TakeOver{ID: id, Fence: fence, Slots: map[string]int{"db": n}, Holder: pool.Holder{Host: r.h.name, Instance: "i", Run: "nightly"}, Extra: x})
	r.h.asked[c] = true
	r.h.Claim(c, r.now(), time.Unix(1, 0))
	return c
}

// A claim is taken over whatever its pool is like: its slots are taken already.
func TestAClaimChangesHandsInAnyPool(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"as it was": func(*rig) {},
		"paused":    func(r *rig) { r.limit(4, true) },
		"lowered":   func(r *rig) { r.limit(1, false) },
		"closed":    func(r *rig) { r.limit(pool.Closed, false) },
		"pending": func(r *rig) {
			r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(r.keys.Pending("db"), wire.EncodeEmpty(), 0)}})
		},
		"deleted": func(r *rig) { r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(r.keys.Spec("db"))}}) },
		"of blocks": func(r *rig) {
			r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.DeleteAll(r.keys.Slots("db"))}})
			r.limit(600, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			n := 3
			if name == "of blocks" {
				change(r)
				n = 500
			}
			old := r.ask("a", n, store.Extra{})
			r.pass(time.Second)
			if name != "of blocks" {
				change(r)
			}
			two := r.second()
			sent := two.sent
			x := withKeys("/b/with")
			x.Leased = []*pb.RequestOp{store.Put("/b/leased", nil, 0)}
			c := two.takesOver("a", old.Fence(), n, x)
			if all := two.pass(time.Second); all["a"].Outcome != Granted || two.sent-sent != 1 {
				t.Fatalf("%+v, %d transactions", all, two.sent-sent)
			}
			if c.Fence() <= old.Fence() || c.Lease() == old.Lease() || c.Keys() != old.Keys()+1 || len(c.Extra()) != 1 {
				t.Errorf("%+v after %+v", c, old)
			}
			var rec *wire.Record
			for kv := range r.etcd.All(r.keys.Slots("db")) {
				_, s, err := r.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
				if err != nil || kv.ModRevision != c.fence || kv.Lease != int64(c.lease) {
					t.Errorf("%s: %v, %v", kv.Key, kv, err)
				}
				if s.Record != nil {
					rec, _ = s.Decode(string(kv.Key))
				}
			}
			if rec == nil || rec.Admitted != old.fence || rec.Holder.Run != "nightly" || !rec.Since.Equal(time.Unix(1, 0)) || rec.Fences(c.fence) != c.Fence() {
				t.Errorf("its record is %+v", rec)
			}
			// Its old owner finds that it is gone, and the new one releases it.
			if r.h.Release(old); r.pass(time.Second)["a"].Err != ErrGone {
				t.Error("its old owner does not notice")
			}
			if two.h.Release(c); two.pass(time.Second)["a"].Outcome != Released {
				t.Error("it is not released")
			}
			for kv := range r.etcd.All(r.keys.Slots("db")) {
				t.Errorf("%s is left", kv.Key)
			}
		})
	}
}

// limit sets the spec of the pool.
func (r *rig) limit(n int, paused bool) {
	s := pool.DefaultSpec()
	s.Limit, s.Paused = n, paused
	r.putSpec("db", s)
}

func TestOnlyTheClaimThatIsMeantIsTakenOver(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*rig, *Claim)
		id     string
		fence  store.Fence // is added
		x      store.Extra
		code   problem.Code
		text   string
	}{
		"another id":       {nil, "b", 0, store.Extra{}, problem.Precondition, `what claim "b" was to happen with is no longer so`},
		"another revision": {nil, "a", -1024, store.Extra{}, problem.Precondition, `what claim "a" was to happen with is no longer so`},
		"released":         {func(r *rig, c *Claim) { r.h.Release(c) }, "a", 0, store.Extra{}, problem.Precondition, `what claim "a" was to happen with is no longer so`},
		"a condition":      {nil, "a", 0, endingWith(false), problem.Precondition, `what claim "a" was to happen with is no longer so`},
		"denied":           {nil, "a", 0, withKeys("/b/denied/x"), problem.EtcdDenied, "the claim was refused: etcd refused"},
		"a key is gone": {func(r *rig, c *Claim) {
			r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(wire.Refs(c.keys)[1].Key(r.keys))}})
		}, "a", 0, store.Extra{}, problem.Precondition, `what claim "a" was to happen with is no longer so`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			old := r.ask("a", 2, store.Extra{})
			r.pass(time.Second)
			if tc.change != nil {
				tc.change(r, old)
				r.pass(time.Second)
			}
			two := r.second()
			fence := old.Fence() + tc.fence
			two.takesOver(tc.id, fence, 2, tc.x)
			got := two.pass(time.Second)[tc.id]
			if got.Outcome != Refused || problem.CodeOf(got.Err) != tc.code || got.Err.Error() != tc.text {
				t.Errorf("%d: %v", got.Outcome, got.Err)
			}
			for kv := range r.etcd.All("/b/end") {
				t.Errorf("%s was written", kv.Key)
			}
		})
	}
}

// A value that can't be read is named.
func TestAKeyThatCannotBeReadIsNotTakenOver(t *testing.T) {
	r := newRig(t)
	old := r.ask("a", 2, store.Extra{})
	r.pass(time.Second)
	t1 := &pb.TxnRequest{}
	for i, ref := range wire.Refs(old.keys) {
		kv, _ := r.get(ref.Key(r.keys))
		value := kv.Value
		if i == 1 {
			value = []byte("{")
		}
		t1.Success = append(t1.Success, store.Put(ref.Key(r.keys), value, old.lease))
	}
	fence := store.FenceAt(r.must(t1).Header.Revision)
	two := r.second()
	two.takesOver("a", fence, 2, store.Extra{})
	err := two.pass(time.Second)["a"].Err
	if problem.CodeOf(err) != problem.CorruptValue || !strings.Contains(err.Error(), wire.Refs(old.keys)[1].Key(r.keys)) {
		t.Error(err)
	}
}

// What became of a take-over without an answer is found out. If the keys are neither as they were nor this instance's, it
// may have happened.
func TestATakeOverWithoutAnAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		carried bool
		then    func(*rig)
		want    Outcome
		unknown bool
	}{
		"not carried out": {false, func(*rig) {}, Granted, false},
		"carried out":     {true, func(*rig) {}, Granted, false},
		"gone since": {true, func(r *rig) {
			r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.DeleteAll(r.keys.Slots("db"))}})
		}, Refused, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			old := r.ask("a", 2, store.Extra{})
			r.pass(time.Second)
			two := r.second()
			c := two.takesOver("a", old.Fence(), 2, withKeys("/b/x"))
			x := two.h.Commits()
			unanswered(two, tc.carried, tc.then)
			if _, busy := x.Next(two.now(), time.Unix(1, 0)); busy {
				t.Fatal("it sends more before that is known")
			}
			for !x.Fenced(r.must(x.Fence())) {
			}
			x.Resolved(r.must(x.Unresolved()))
			got := two.pass(time.Second)["a"]
			if got.Outcome != tc.want || store.OutcomeUnknown(got.Err) != tc.unknown {
				t.Errorf("%+v", got)
			}
			if tc.want == Granted && (!r.has("/b/x") || c.fence <= old.fence) {
				t.Errorf("%+v", c)
			}
		})
	}
}

// unanswered sends the next commit, whose answer is lost.
func unanswered(r *rig, carried bool, then func(*rig)) {
	x := r.h.Commits()
	for range 100 {
		if t, ok := r.h.Reads(); ok {
			r.h.Read(r.must(t), nil)
		}
		if t, ok := x.Next(r.now(), time.Unix(1, 0)); ok {
			if carried {
				_, _ = r.carry(t)
			}
			then(r)
			x.Answer(nil, store.ErrUnavailable)
			return
		}
	}
	r.t.Fatal("nothing is sent")
}

func (r *rig) has(key string) bool {
	_, ok := r.get(key)
	return ok
}

// A bridge whose answer was lost, and that was taken over before that could be found out, has an unknown outcome.
func TestTheOutcomeOfABridgeThatWasTakenOverIsUnknown(t *testing.T) {
	r := newRig(t)
	c := NewClaim(&pool.Request{ID: "a", Slots: map[string]int{"db": 2}, Bridge: true, Wait: time.Hour, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
	r.h.Claim(c, r.now(), time.Unix(1, 0))
	two := r.second()
	unanswered(r, true, func(r *rig) {
		two.takesOver("a", store.FenceAt(r.etcd.Revision()), 2, store.Extra{})
		if all := two.pass(time.Second); all["a"].Outcome != Granted {
			t.Fatalf("%+v", all)
		}
	})
	x := r.h.Commits()
	for !x.Fenced(r.must(x.Fence())) {
	}
	x.Resolved(r.must(x.Unresolved()))
	if got := r.pass(time.Second)["a"]; got.Outcome != Refused || !store.OutcomeUnknown(got.Err) {
		t.Errorf("%+v", got)
	}
}
