package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// combinedWish is the wish of a host of a [world] to give a claim back with something else.
type combinedWish struct {
	from  *simHost
	life  int
	id    string // of the claim
	key   string // that is written with it
	reply chan combinedResult
}

// combinedWishes are those of a world, and what was written of them.
type combinedWishes struct {
	open  []*combinedWish
	claim map[string]string // by key
	at    map[string]int64  // the revision, by key
	n     int
}

const partedPrefix = "/b/parted/"

// part has a host give a claim back together with something else.
func (w *world) part(h *simHost, id string) {
	w.combined.n++
	f := &combinedWish{h, h.life, id, fmt.Sprintf("%s%d", partedPrefix, w.combined.n), make(chan combinedResult, 1)}
	x := store.Extra{Then: []*pb.RequestOp{store.Put(f.key, []byte(id), 0)}}
	switch w.rnd.IntN(8) {
	case 0:
		x.If = []*pb.Compare{store.ModEquals("/b/elsewhere", 1)} // it is not there
	case 1:
		x.If = []*pb.Compare{store.ModEquals("/b/elsewhere", 0)}
	case 2:
		x.Then = append(x.Then, store.Put("/b/other/"+id, []byte("x"), goneLease))
	}
	w.combined.open = append(w.combined.open, f)
	w.combined.claim[f.key] = id
	w.free[id] = true
	var place *Place
	if e := h.core.entries[id]; e != nil {
		place = e.req.Place // a request that was repeated has others, which count for nothing
		for _, op := range e.req.Extra.Leased {
			x.Then = append(x.Then, store.Delete(string(op.GetRequestPut().Key)))
		}
	}
	h.core.releaseCombined(h.has[id], &combinedRelease{extra: x, place: place, reply: f.reply}, w.now)
	w.logf("%s gives back %s with %s", h.name, id, f.key)
}

// giveBackOne has a claim end: released, alone or with other writes, or taken over.
func (w *world) giveBackOne(h *simHost, id string) {
	if !w.bridges[id] && !shared(id) && w.rnd.IntN(3) == 0 {
		w.part(h, id)
		return
	}
	if !w.bridges[id] || w.rnd.IntN(3) == 0 || !w.takeOver(h, id) {
		w.release(h, id)
	}
}

// checkParted notes what was written with a release: with it, or not at all.
func (w *world) checkParted(rev int64, events []*mvccpb.Event) {
	for _, ev := range events {
		key := string(ev.Kv.Key)
		if !strings.HasPrefix(key, partedPrefix) {
			continue
		}
		if w.combined.at[key] != 0 {
			w.failf("%s is written twice", key)
		}
		w.combined.at[key] = rev
		kept := w.batch != nil && slices.ContainsFunc(w.batch.releases, func(o releaseOp) bool { return o.kept && o.e.req.ID == w.combined.claim[key] })
		for slot, m := range w.model {
			if m.claim == w.combined.claim[key] && !kept {
				w.failf("%s is written at %d, and %s still has %s", key, rev, m.claim, slot)
			}
		}
	}
}

// collectParted takes the answers of those that gave a claim back with something.
func (w *world) collectParted() {
	w.combined.open = slices.DeleteFunc(w.combined.open, func(f *combinedWish) bool {
		if f.life != f.from.life {
			return true
		}
		select {
		case p := <-f.reply:
			w.checkCombined(f, p)
			return true
		default:
			return false
		}
	})
}

func (w *world) checkCombined(f *combinedWish, p combinedResult) {
	w.logf("%s: %s: at %d, %v", f.from.name, f.key, p.revision, p.err)
	at := w.combined.at[f.key]
	switch {
	case p.err == nil:
		if at == 0 || at != p.revision {
			w.failf("%s was written at %d, and is answered with %d", f.key, at, p.revision)
		}
	case errors.Is(p.err, store.ErrUnavailable): // outcome unknown
	case at != 0:
		w.failf("%s was written, and the answer is %v", f.key, p.err)
	case errors.Is(p.err, ErrNotCombined):
	default:
		if e := f.from.core.entries[f.id]; e != nil && e.state == held {
			delete(w.free, f.id) // it stays until it is released again
		}
	}
}

// goneLease is one that nobody has granted.
const goneLease = 1 << 40

// withClaim is a core alone with a stand-in for etcd, which holds one claim.
func withClaim(t *testing.T) (*world, *simHost, *Claim) {
	t.Helper()
	w := newWorld(1, 1)
	w.setPool("a", 5, false)
	h := w.hosts[0]
	reply := make(chan outcome, 1)
	req := &Request{ID: "h0-c", Slots: map[string]int{"a": 2}}
	h.core.request(newEntry(req, h.core.host, h.core.instance), reply, w.now)
	if !w.until(func() bool { return len(reply) > 0 }) || len(w.errs) > 0 {
		t.Fatal("nothing was granted", w.errs)
	}
	o := <-reply
	if o.err != nil {
		t.Fatal(o.err)
	}
	h.has["h0-c"], w.free["h0-c"] = o.claim, true
	return w, h, o.claim
}

// awaitAnswer lets everything happen until there is an answer.
func awaitAnswer(t *testing.T, w *world, reply chan combinedResult) combinedResult {
	t.Helper()
	if !w.until(func() bool { return len(reply) > 0 }) || len(w.errs) > 0 {
		t.Fatal("no answer", w.errs)
	}
	return <-reply
}

func TestAClaimIsGivenBackWithSomethingElseOrNotAtAll(t *testing.T) {
	elsewhere := func(rev int64) []*pb.Compare { return []*pb.Compare{store.ModEquals("/b/elsewhere", rev)} }
	put := store.Put(partedPrefix+"x", []byte("h0-c"), 0)
	for name, c := range map[string]struct {
		x     store.Extra
		space storetest.Space
		is    func(error) bool
	}{
		"what else must hold does":    {x: store.Extra{If: elsewhere(0), Then: []*pb.RequestOp{put}}, is: func(err error) bool { return err == nil }},
		"what else must hold doesn't": {x: store.Extra{If: elsewhere(1), Then: []*pb.RequestOp{put}}, is: func(err error) bool { return errors.Is(err, store.ErrChanged) }},
		"a lease is gone": {
			x:  store.Extra{Then: []*pb.RequestOp{put, store.Put("/b/y", nil, goneLease)}},
			is: func(err error) bool { return errors.Is(err, store.ErrLeaseNotFound) },
		},
		"etcd is full": {
			x: store.Extra{Then: []*pb.RequestOp{put}}, space: storetest.SpaceFull,
			is: func(err error) bool { return problem.CodeOf(err) == problem.EtcdFull },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, h, cl := withClaim(t)
			w.combined.claim[partedPrefix+"x"] = "h0-c"
			w.space = c.space
			w.etcd.SetSpace(c.space)
			reply := make(chan combinedResult, 1)
			h.core.releaseCombined(cl, &combinedRelease{extra: c.x, reply: reply}, w.now)
			p := awaitAnswer(t, w, reply)
			if !c.is(p.err) {
				t.Fatalf("the answer is %v", p.err)
			}
			written, kept := w.combined.at[partedPrefix+"x"] != 0, len(w.model) > 0
			if written == kept || written != (p.err == nil) {
				t.Errorf("written: %v, kept: %v; the answer is %v", written, kept, p.err)
			}
			if kept && cl.Context().Err() != nil {
				t.Errorf("the claim is kept, and ended: %v", cl.Err())
			}
			w.rest()
			for _, err := range w.errs {
				t.Error(err)
			}
		})
	}
}

func TestAClaimThatIsOverIsGivenBackWithNothing(t *testing.T) {
	w, h, cl := withClaim(t)
	w.release(h, "h0-c")
	reply := make(chan combinedResult, 1)
	h.core.releaseCombined(cl, &combinedRelease{extra: store.Extra{Then: []*pb.RequestOp{store.Put(partedPrefix+"x", nil, 0)}}, reply: reply}, w.now)
	if p := awaitAnswer(t, w, reply); !errors.Is(p.err, ErrNotCombined) {
		t.Errorf("the answer is %v", p.err)
	}
	if w.until(w.idle); w.combined.at[partedPrefix+"x"] != 0 {
		t.Error("it was written")
	}
}

// The release of a claim that parts is answered, whether it goes or stays.
func TestAReleaseOfAClaimThatStaysIsARelease(t *testing.T) {
	w, h, cl := withClaim(t)
	reply, released := make(chan combinedResult, 1), make(chan error, 1)
	h.core.releaseCombined(cl, &combinedRelease{extra: store.Extra{If: []*pb.Compare{store.ModEquals("/b/elsewhere", 1)}}, reply: reply}, w.now)
	h.core.release(cl, released, w.now)
	if p := awaitAnswer(t, w, reply); !errors.Is(p.err, store.ErrChanged) {
		t.Errorf("the answer is %v", p.err)
	}
	if !w.until(func() bool { return len(released) > 0 }) || len(w.model) > 0 {
		t.Errorf("it is not released: %v", slices.Sorted(maps.Keys(w.model)))
	}
}

// An instance that ends has all its claims ended, those on their way out included.
func TestAnEngineThatIsLeftEndsTheClaimsThatPart(t *testing.T) {
	_, h, cl := withClaim(t)
	h.core.releaseCombined(cl, &combinedRelease{extra: store.Extra{}, reply: make(chan combinedResult, 1)}, h.w.now)
	h.core.abandon(errStopped)
	if !errors.Is(cl.Err(), errStopped) {
		t.Errorf("the claim has ended with %v", cl.Err())
	}
}
