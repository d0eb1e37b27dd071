package owner

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// world is some instances on one stand-in for etcd, driven by a seed: what is asked for, what arrives when, and whose
// answers are lost.
type world struct {
	*rand.Rand
	etcd  *storetest.Etcd
	keys  wire.Keys
	hosts []*host
	// without drops compares on their way to etcd, to show that the checks notice.
	without func(*pb.Compare) bool
	late    []*pb.TxnRequest // sent, given up, and not carried out yet
	forced  map[int64]bool   // revisions of claims that were freed by force
	freed   map[string]int64 // when keys were
	claims  int
	granted int
	over    int // keys that were taken over
	errs    []string
	outside bool // etcd carries out what no instance has sent
}

type host struct {
	*Owner
	name    string
	lease   store.LeaseID
	held    []*Claim
	asked   map[*Claim]bool // neither granted nor refused yet, or not released yet
	sent    []*message
	unknown bool // the outcome of a transaction
}

// message is a transaction on its way, or its answer.
type message struct {
	t       *pb.TxnRequest
	resp    *pb.TxnResponse
	err     error
	carried bool
	arrived func(*pb.TxnResponse, error)
}

var errLost = errors.New("no answer")

func newWorld(seed uint64, without func(*pb.Compare) bool) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), etcd: storetest.New(storetest.Options{}), keys: wire.Keys{Keys: store.NewKeys("/b/")}, without: without, forced: map[int64]bool{}, freed: map[string]int64{}}
	w.etcd.OnCommit(w.committed)
	for _, p := range poolNames {
		w.setSpec(p)
	}
	for i := range 2 + w.IntN(2) {
		h := &host{name: fmt.Sprint("host-", i), asked: map[*Claim]bool{}}
		h.Owner = New(w.keys.Keys, h.name, "i")
		h.lease, _, _ = w.etcd.Grant(time.Hour)
		for !h.Fenced(w.must(h.Fence())) {
		}
		w.hosts = append(w.hosts, h)
	}
	return w
}

var poolNames = []string{"db", "gpu"}

func (w *world) must(t *pb.TxnRequest) *pb.TxnResponse {
	w.outside = true
	resp, err := w.etcd.Txn(t)
	w.outside = false
	if err != nil {
		panic(err)
	}
	return resp
}

func (w *world) setSpec(name string) {
	s := pool.DefaultSpec()
	s.Limit = []int{0, 1, 2, 3, 5, 8, 60, 300, pool.Unlimited}[w.IntN(9)]
	s.Paused = w.IntN(10) == 0
	since := int64(0)
	for kv := range w.etcd.All(w.keys.Spec(name)) {
		if was, claims, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision); err == nil && was.Limit == s.Limit {
			since = claims.Since
		}
	}
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(w.keys.Spec(name), wire.EncodeSpec(s, since), 0)}})
}

func (w *world) run(steps int) *world {
	for i := range steps {
		w.step(w.hosts[w.IntN(len(w.hosts))])
		if len(w.errs) == 0 && i%200 == 199 {
			w.rest()
		}
		if len(w.errs) > 0 {
			break
		}
	}
	return w
}

func (w *world) step(h *host) {
	switch x := w.IntN(100); {
	case x < 30:
		w.claim(h, nil)
	case x < 45:
		w.release(h)
	case x < 60:
		w.send(h)
	case x < 90:
		w.deliver(h)
	case x < 93:
		w.deliverLate()
	case x < 95:
		h.Forget()
	case x < 96:
		w.setSpec(poolNames[w.IntN(len(poolNames))])
	case x < 97:
		h.Age(time.Duration(w.claims) * time.Second)
	case x < 99:
		w.pend()
	default:
		w.force()
	}
}

// claim asks for a claim.
func (w *world) claim(h *host, needs map[string]int) *Claim {
	if needs == nil {
		needs = map[string]int{}
		for _, p := range poolNames[w.IntN(2) : 1+w.IntN(2)] {
			needs[p] = []int{1, 1, 1, 2, 40}[w.IntN(5)]
		}
		if len(needs) == 0 {
			needs["gpu"] = 1
		}
	}
	w.claims++
	r := &pool.Request{ID: fmt.Sprint("c", w.claims), Slots: needs, Holder: pool.Holder{Host: h.name, Instance: "i"}}
	c := NewClaim(r, h.lease)
	h.asked[c] = true
	h.Claim(c)
	return c
}

func (w *world) release(h *host) {
	if len(h.held) == 0 {
		return
	}
	i := w.IntN(len(h.held))
	c := h.held[i]
	h.held = slices.Delete(h.held, i, i+1)
	h.asked[c] = true
	h.Release(c)
}

// send sends what an instance has to send.
func (w *world) send(h *host) {
	if h.unknown {
		return
	}
	if t, ok := h.Next(time.Duration(w.claims), time.Unix(int64(w.claims), 0)); ok {
		h.sent = append(h.sent, &message{t: t, arrived: func(r *pb.TxnResponse, err error) { h.unknown = h.Answer(r, err) }})
	}
	if t, ok := h.Reads(); ok {
		h.sent = append(h.sent, &message{t: t, arrived: h.Read})
	}
	w.results(h)
}

func (w *world) results(h *host) {
	for _, r := range h.Results() {
		w.check(h.asked[r.Claim], "claim %s ends twice", r.Claim.id)
		delete(h.asked, r.Claim)
		switch {
		case r.Released && errors.Is(r.Err, ErrGone):
			w.check(w.freed[r.Claim.main.Key(w.keys)] > r.Claim.fence, "the slots of claim %s of revision %d were gone", r.Claim.id, r.Claim.fence)
		case r.Err == nil && !r.Released:
			w.granted++
			h.held = append(h.held, r.Claim)
		}
	}
}

// deliver has a message of an instance get on.
func (w *world) deliver(h *host) {
	if h.unknown {
		w.resolve(h)
		return
	}
	if len(h.sent) == 0 {
		return
	}
	i := w.IntN(len(h.sent))
	m := h.sent[i]
	if !m.carried {
		if m.carried = true; w.IntN(20) == 0 { // it comes later, or never
			m.err = errLost
			if w.IntN(2) == 0 {
				w.late = append(w.late, m.t)
			}
			return
		}
		m.resp, m.err = w.carry(m.t)
		return
	}
	h.sent = slices.Delete(h.sent, i, i+1)
	if m.err == nil && w.IntN(20) == 0 {
		m.resp, m.err = nil, errLost
	}
	m.arrived(m.resp, m.err)
	w.results(h)
}

// carry has etcd carry a transaction out.
func (w *world) carry(t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if w.without != nil {
		drop(t, w.without)
	}
	return w.etcd.Txn(t)
}

func drop(t *pb.TxnRequest, without func(*pb.Compare) bool) {
	t.Compare = slices.DeleteFunc(t.Compare, without)
	for _, op := range t.Success {
		if child := op.GetRequestTxn(); child != nil {
			drop(child, without)
		}
	}
}

func (w *world) deliverLate() {
	if len(w.late) > 0 {
		t := w.late[0]
		w.late = w.late[1:]
		_, _ = w.carry(t)
	}
}

// resolve finds out what has become of a transaction without an answer.
func (w *world) resolve(h *host) {
	if h.Fenced(w.must(h.Fence())) {
		h.Resolved(w.must(h.Unresolved()))
		h.unknown = false
		w.results(h)
	}
}

// pend puts or deletes the key that exists while claims wait for a pool.
func (w *world) pend() {
	key := w.keys.Pending(poolNames[w.IntN(len(poolNames))])
	op := store.Delete(key)
	if w.IntN(2) == 0 {
		op = store.Put(key, []byte("{}"), 0)
	}
	w.must(&pb.TxnRequest{Success: []*pb.RequestOp{op}})
}

// force frees the slots of a claim by force.
func (w *world) force() {
	all := w.held()
	if len(all) == 0 {
		return
	}
	rev := slices.Sorted(maps.Keys(all))[w.IntN(len(all))]
	t := &pb.TxnRequest{}
	for _, kv := range all[rev] {
		t.Success = append(t.Success, store.Delete(string(kv.Key)))
	}
	if len(t.Success) > 100 {
		return
	}
	w.forced[rev] = true
	w.must(t)
	for _, kv := range all[rev] {
		w.freed[string(kv.Key)] = w.etcd.Revision()
	}
}

// held returns the keys of slots by the revision that has put them: a transaction grants several claims.
func (w *world) held() map[int64][]*mvccpb.KeyValue {
	all := map[int64][]*mvccpb.KeyValue{}
	for _, p := range poolNames {
		for kv := range w.etcd.All(w.keys.Slots(p)) {
			all[kv.ModRevision] = append(all[kv.ModRevision], kv)
		}
	}
	return all
}

// committed checks what etcd has after a revision.
func (w *world) committed(rev int64, events []*mvccpb.Event, _ *pb.TxnRequest) {
	took := map[string]bool{}
	for _, ev := range events {
		ref, err := w.keys.Ref(string(ev.Kv.Key))
		if err != nil || ev.Type != mvccpb.PUT || w.outside {
			continue
		}
		took[ref.Pool] = true
		if ev.PrevKv != nil {
			w.over++
		}
		w.checkClaim(ref, ev.Kv)
	}
	for p := range took {
		w.checkPool(p, rev)
	}
}

// checkClaim checks that the keys of a claim are complete.
func (w *world) checkClaim(ref wire.Ref, kv *mvccpb.KeyValue) {
	_, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
	if err != nil {
		w.check(false, "%v", err)
		return
	}
	if s.Record == nil {
		return
	}
	r, err := s.Decode(string(kv.Key))
	w.check(err == nil, "%v", err)
	if err != nil {
		return
	}
	refs, err := r.Refs(ref)
	w.check(err == nil, "%v", err)
	got := map[string]int{}
	for _, of := range refs {
		n := 0
		for other := range w.etcd.All(of.Key(w.keys)) {
			if _, o, err := w.keys.DecodeSlot(string(other.Key), other.Value, 1); err == nil && string(other.Key) == of.Key(w.keys) && o.Claim == s.Claim && other.ModRevision == kv.ModRevision && other.Lease == kv.Lease {
				n = max(1, o.Block.Count)
			}
		}
		got[of.Pool] += n
	}
	w.check(maps.Equal(got, r.Pools), "claim %s holds %v, and has %v in revision %d", s.Claim, got, r.Pools, kv.ModRevision)
}

// checkPool checks a pool in which slots were taken.
func (w *world) checkPool(name string, rev int64) {
	used, has := 0, map[int]bool{}
	add := func(n int) {
		w.check(!has[n], "number %d of %s is held twice", n, name)
		has[n] = true
	}
	for kv := range w.etcd.All(w.keys.Slots(name)) {
		ref, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
		w.check(err == nil, "%v", err)
		if !ref.IsBlock() {
			used++
			add(ref.Number)
			continue
		}
		used += s.Block.Count
		for _, r := range s.Block.Runs {
			for n := r.From; n < r.To; n++ {
				add(n)
			}
		}
	}
	for kv := range w.etcd.All(w.keys.Spec(name)) {
		s, _, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
		w.check(err == nil && !s.Paused && s.Limit != pool.Closed, "slots of %s were taken: %+v, %v", name, s, err)
		w.check(s.Limit == pool.Unlimited || used <= s.Limit, "%d of %d slots of %s are used in revision %d", used, s.Limit, name, rev)
	}
	for range w.etcd.All(w.keys.Pending(name)) {
		w.check(false, "slots of %s were taken while claims wait for it", name)
	}
}

func (w *world) check(ok bool, format string, args ...any) {
	if !ok {
		w.errs = append(w.errs, fmt.Sprintf(format, args...))
	}
}

// rest has everything arrive, and checks that instances and etcd agree.
func (w *world) rest() {
	for len(w.late) > 0 {
		w.deliverLate()
	}
	for round := 0; ; round++ {
		busy := false
		for _, h := range w.hosts {
			w.send(h)
			for len(h.sent) > 0 || h.unknown {
				w.deliver(h)
			}
			busy = busy || len(h.asked) > 0
		}
		if !busy || len(w.errs) > 0 {
			break
		}
		if round > 500 {
			w.check(false, "claims are neither granted nor refused")
			return
		}
	}
	if len(w.errs) == 0 {
		w.checkRest()
	}
	if len(w.errs) == 0 {
		w.findFree()
	}
}

func (w *world) checkRest() {
	type put struct {
		key string
		rev int64
	}
	known := map[put]bool{}
	for _, h := range w.hosts {
		for _, c := range h.held {
			for _, r := range wire.Refs(c.keys) {
				known[put{r.Key(w.keys), c.fence}] = true
			}
		}
	}
	for rev, all := range w.held() {
		for _, kv := range all {
			is := put{string(kv.Key), rev}
			w.check(known[is], "nobody knows that %s is held since revision %d", is.key, rev)
			delete(known, is)
		}
	}
	for is := range known {
		w.check(w.forced[is.rev], "%s of revision %d is gone", is.key, is.rev)
	}
}

// findFree checks that a claim that fits is granted, and one that does not is refused.
func (w *world) findFree() {
	h := w.hosts[0]
	name := poolNames[w.IntN(len(poolNames))]
	var spec pool.Spec
	for kv := range w.etcd.All(w.keys.Spec(name)) {
		spec, _, _ = wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
	}
	used := 0
	for kv := range w.etcd.All(w.keys.Slots(name)) {
		_, s, _ := w.keys.DecodeSlot(string(kv.Key), kv.Value, 1)
		used += max(1, s.Block.Count)
	}
	fits := !spec.Paused && spec.Limit != pool.Closed && (spec.Limit == pool.Unlimited || used < spec.Limit)
	for range w.etcd.All(w.keys.Pending(name)) {
		fits = false
	}
	for _, c := range h.held { // it does not know that the slots are free
		if w.forced[c.fence] && fits {
			return
		}
	}
	c := w.claim(h, map[string]int{name: 1})
	for round := 0; h.asked[c] && round < 500; round++ {
		w.send(h)
		for len(h.sent) > 0 || h.unknown {
			w.deliver(h)
		}
	}
	w.check(slices.Contains(h.held, c) == fits, "a claim of one slot of %s (%d of %d used): granted %v, fits %v", name, used, spec.Limit, slices.Contains(h.held, c), fits)
}

func TestDirectClaimsNeverExceedALimit(t *testing.T) {
	t.Parallel()
	claims, granted, over := 0, 0, 0
	for seed := range uint64(500) {
		w := newWorld(seed, nil).run(600)
		if len(w.errs) > 0 {
			t.Fatalf("schedule %d: %s", seed, strings.Join(w.errs, "\n"))
		}
		claims, granted, over = claims+w.claims, granted+w.granted, over+w.over
	}
	if t.Logf("%d of %d claims were granted, %d keys taken over", granted, claims, over); granted < 10_000 || over < 500 {
		t.Errorf("only %d of %d claims were granted, %d keys taken over", granted, claims, over)
	}
}

func TestEveryCompareIsNeeded(t *testing.T) {
	slot := func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/slots/") }
	block := func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/slots/b/") }
	for name, without := range map[string]func(*pb.Compare) bool{
		"the guard":          func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/guards/") },
		"the spec":           func(c *pb.Compare) bool { return strings.HasSuffix(string(c.Key), "/spec") },
		"the pending claims": func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/pending/") },
		"an absent slot": func(c *pb.Compare) bool {
			return slot(c) && !block(c) && c.RangeEnd == nil && c.Target == pb.Compare_CREATE
		},
		"the runs of a block": func(c *pb.Compare) bool { return slot(c) && !block(c) && c.RangeEnd != nil },
		"the blocks":          func(c *pb.Compare) bool { return block(c) && c.RangeEnd != nil },
		"the version of keys": func(c *pb.Compare) bool { return slot(c) && c.Target == pb.Compare_MOD },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(600) {
				if w := newWorld(seed, without).run(600); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
					return
				}
			}
			t.Error("nothing noticed that it is missing")
		})
	}
}

// A claim that was refused says why.
func TestRefusalsNameThePool(t *testing.T) {
	w := newWorld(1, nil)
	h := w.hosts[0]
	put := func(limit int, paused bool) {
		s := pool.DefaultSpec()
		s.Limit, s.Paused = limit, paused
		w.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(w.keys.Spec("db"), wire.EncodeSpec(s, 0), 0)}})
	}
	for name, tc := range map[string]struct {
		prepare func()
		needs   map[string]int
		code    problem.Code
	}{
		"it does not exist": {func() {}, map[string]int{"other": 1}, problem.NotFound},
		"paused":            {func() { put(3, true) }, map[string]int{"db": 1}, problem.NoCapacity},
		"too many slots":    {func() { put(3, false) }, map[string]int{"db": 4}, problem.NoCapacity},
		"full":              {func() { put(1, false); w.resolved(h, w.claim(h, map[string]int{"db": 1})) }, map[string]int{"db": 1}, problem.NoCapacity},
	} {
		t.Run(name, func(t *testing.T) {
			tc.prepare()
			err := w.resolved(h, w.claim(h, tc.needs))
			if p := problem.Of(err); p == nil || p.Code != tc.code || !strings.Contains(err.Error(), "'"+slices.Collect(maps.Keys(tc.needs))[0]+"'") {
				t.Errorf("%v, want %s", err, tc.code)
			}
			for len(h.held) > 0 {
				w.release(h)
			}
			w.rest()
		})
	}
}

// resolved waits until a claim is granted or refused, and returns why it was refused.
func (w *world) resolved(h *host, c *Claim) (refused error) {
	for h.asked[c] {
		if t, ok := h.Next(1, time.Unix(1, 0)); ok {
			h.Answer(w.must(t), nil)
		}
		if t, ok := h.Reads(); ok {
			h.Read(w.must(t), nil)
		}
		for _, r := range h.Results() {
			delete(h.asked, r.Claim)
			if r.Err == nil && !r.Released {
				h.held = append(h.held, r.Claim)
			}
			if r.Claim == c {
				refused = r.Err
			}
		}
	}
	return refused
}
