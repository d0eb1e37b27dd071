package owner

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// spaceOf is how full the etcd of a world is.
type spaceOf struct {
	fills    bool // it is full from time to time
	is       storetest.Space
	was      bool // it was full once
	released int  // claims, while it was full
	refused  int  // transactions
	granted  int  // claims whose transaction had the answer that etcd is full
	// refuses has a host learn that etcd is full, in another way than usual.
	refuses func(*host)
	// mutant changes the error for want of space, to show that the checks notice.
	mutant func(error) error
}

// changeSpace has etcd fill up, and have space again.
func (w *world) changeSpace() {
	if !w.space.fills {
		return
	}
	if w.space.is != storetest.SpaceFree {
		w.clock += 10 * time.Millisecond
	}
	if w.IntN(40) == 0 {
		w.setSpace([]storetest.Space{storetest.SpaceFree, storetest.SpaceFilling, storetest.SpaceFull, storetest.SpaceFull}[w.IntN(4)])
	}
}

func (w *world) setSpace(s storetest.Space) {
	w.space.is, w.space.was = s, w.space.was || s != storetest.SpaceFree
	w.etcd.SetSpace(s)
}

// carriedOut has etcd carry out a transaction of an instance.
func (w *world) carriedOut(t *pb.TxnRequest) (*pb.TxnResponse, error) {
	before := w.etcd.Revision()
	resp, err := w.etcd.Txn(t)
	if errors.Is(err, store.ErrNoSpace) {
		w.space.refused++
		if w.etcd.Revision() > before {
			w.space.granted++
		}
		if w.space.mutant != nil {
			err = w.space.mutant(err)
		}
	}
	return resp, err
}

// noSpace has a host learn that etcd is full.
func (w *world) noSpace(h *host, err error) {
	switch {
	case !errors.Is(err, store.ErrNoSpace):
	case w.space.refuses != nil:
		w.space.refuses(h)
	default:
		h.Space().Refused(w.now())
	}
}

// checkPuts checks that what a host sends while it knows that etcd is full deletes only, or is the one try of a while.
func (w *world) checkPuts(h *host, t *pb.TxnRequest) {
	s := h.Space()
	w.check(!hasPut(t) || !s.full || s.next == w.now()+s.pause, "something is put in a full etcd before it is time")
}

// hasPut reports whether a transaction may put something.
func hasPut(t *pb.TxnRequest) bool {
	return slices.ContainsFunc(slices.Concat(t.Success, t.Failure), func(op *pb.RequestOp) bool {
		child := op.GetRequestTxn()
		return op.GetRequestPut() != nil || child != nil && hasPut(child)
	})
}

// newFullWorld returns a world in which etcd is full from time to time.
func newFullWorld(seed uint64, without func(*pb.Compare) bool, mutant func(error) error) *world {
	w := newWorld(seed, without)
	w.space.fills, w.space.mutant = true, mutant
	return w
}

// In an etcd that fills up and has space again, nothing is granted twice, claims are released while it is full, and all goes
// on afterwards.
func TestAFullEtcd(t *testing.T) {
	long(t)
	t.Parallel()
	var all stats
	var space spaceOf
	for seed := range uint64(120) {
		w := newFullWorld(seed, nil, nil).run(600)
		if len(w.errs) > 0 {
			t.Fatalf("schedule %d: %s", seed, strings.Join(w.errs, "\n"))
		}
		all.add(w.stats)
		space.released, space.refused, space.granted = space.released+w.space.released, space.refused+w.space.refused, space.granted+w.space.granted
	}
	if t.Logf("%+v; %+v", all, space); all.granted < 2000 || space.released < 150 || space.refused < 500 || space.granted < 100 {
		t.Errorf("too little has happened: %+v, %+v", all, space)
	}
}

// A full etcd may have carried out what it says that it has not.
func TestNoSpaceIsAnUnknownOutcome(t *testing.T) {
	long(t)
	t.Parallel()
	guard := func(c *pb.Compare) bool { return strings.Contains(string(c.Key), "/guards/") }
	for name, tc := range map[string]struct {
		without func(*pb.Compare) bool
		mutant  func(error) error
	}{
		"it is taken for a refusal": {mutant: func(error) error { return store.ErrTokenExpired }},
		"without guards":            {without: guard},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(600) {
				if w := newFullWorld(seed, tc.without, tc.mutant).run(600); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
					return
				}
			}
			t.Error("nothing noticed it")
		})
	}
}

// An instance that does not know that etcd is full has its releases wait, and one that tries nothing again never goes on.
func TestAFullEtcdHasToBeKnown(t *testing.T) {
	long(t)
	t.Parallel()
	released := map[bool]int{}
	for _, deaf := range []bool{false, true} {
		for seed := range uint64(40) {
			w := newFullWorld(seed, nil, nil)
			if deaf {
				w.space.refuses = func(*host) {}
			}
			if w.run(600); len(w.errs) > 0 {
				t.Fatalf("schedule %d: %s", seed, strings.Join(w.errs, "\n"))
			}
			released[deaf] += w.space.released
		}
	}
	if t.Logf("claims released in a full etcd, by whether that is not known: %v", released); released[true]*3 > released[false]*2 {
		t.Error("to know it makes no difference")
	}
	for seed := range uint64(600) {
		w := newFullWorld(seed, nil, nil)
		w.space.refuses = func(h *host) {
			h.Space().Refused(w.now())
			h.space.next = time.Hour
		}
		if w.run(600); len(w.errs) > 0 {
			t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
			return
		}
	}
	t.Error("nothing noticed that it is not tried again")
}

// full has a rig whose etcd is full.
func (r *rig) full(is bool) {
	r.refuse = func(t *pb.TxnRequest) error {
		if !is || !hasPut(t) {
			return nil
		}
		r.h.Space().Refused(r.now())
		return store.ErrNoSpace
	}
}

// While etcd is full, claims that do not wait are refused, others wait, releases get through, and puts are tried less and
// less often; then all goes on.
func TestAnInstanceWithAFullEtcd(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"a", "b", "c", "d"} {
		r.ask(id, 1, store.Extra{})
	}
	all := r.pass(time.Second)
	if all["d"].Outcome != Granted {
		t.Fatal(all)
	}
	r.full(true)
	waits := r.ask("waits", 1, store.Extra{})
	r.pass(time.Second)
	hurried := NewClaim(&pool.Request{ID: "hurried", Slots: map[string]int{"db": 1}})
	r.h.Claim(hurried, r.now(), time.Unix(1, 0))
	for _, id := range []string{"a", "b"} {
		r.h.Release(all[id].Claim)
	}
	if err := r.h.ReleaseWith(all["c"].Claim, withKeys("/b/x"), nil); err != nil {
		t.Fatal(err)
	}
	got := r.pass(10 * time.Second)
	if problem.CodeOf(got["hurried"].Err) != problem.EtcdFull {
		t.Errorf("%+v", got["hurried"])
	}
	for _, id := range []string{"a", "b"} {
		if got[id].Outcome != Released || got[id].Err != nil {
			t.Errorf("claim %s: %+v", id, got[id])
		}
	}
	if got["c"].Outcome != Stays || problem.CodeOf(got["c"].Err) != problem.EtcdFull {
		t.Errorf("claim c: %+v", got["c"])
	}
	if n := len(slices.Collect(r.etcd.All(r.keys.Slots("db")))); n != 2 {
		t.Errorf("%d slots are held, want 2", n)
	}
	r.sent = 0
	r.pass(time.Minute)
	if most := 3 * int(time.Minute/mostTry); r.sent == 0 || r.sent > most {
		t.Errorf("%d transactions in a minute, want at most %d", r.sent, most)
	}
	r.full(false)
	if got = r.pass(mostTry + time.Second); got["waits"].Outcome != Granted && waits.state != waiting {
		t.Errorf("%+v, state %v", got["waits"], waits.state)
	}
	r.h.Release(all["c"].Claim)
	r.h.Release(all["d"].Claim)
	if got = r.pass(time.Second); got["c"].Outcome != Released || got["d"].Outcome != Released || r.h.Space().Full() {
		t.Errorf("%+v", got)
	}
}

// An instance that starts in a full etcd fences its earlier life by deleting the guards.
func TestAFullEtcdIsFencedByDeletions(t *testing.T) {
	r := newRig(t)
	next := New(Config{Keys: r.keys.Keys, Host: r.h.name, Instance: "i", Leases: leasesOf{r.world, r.h, false}, Presence: leasesOf{r.world, r.h, true}})
	r.etcd.SetSpace(storetest.SpaceFull)
	next.Space().Refused(0)
	for _, x := range []Half{next.Commits(), next.Queue()} {
		for fenced := false; !fenced; {
			resp, err := r.etcd.Txn(x.Fence())
			if err != nil {
				t.Fatal(err)
			}
			fenced = x.Fenced(resp)
		}
	}
	guards := r.keys.Guard(r.h.name, "i")
	if n := len(slices.Collect(r.etcd.All(guards))); n != 0 {
		t.Errorf("%d guards are left", n)
	}
	r.etcd.SetSpace(storetest.SpaceFree)
	for _, x := range []Half{next.Commits(), next.Queue()} {
		probe, ok := x.Next(time.Hour, time.Unix(1, 0))
		if !ok {
			t.Fatal("nothing is tried")
		}
		if unknown := x.Answer(r.must(probe), nil); unknown {
			t.Error("unknown")
		}
	}
	if n := len(slices.Collect(r.etcd.All(guards))); n != 2 || next.Space().Full() {
		t.Errorf("%d guards", n)
	}
}
