package owner

import (
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// endingWith returns what is written with a release, under a condition that holds or does not.
func endingWith(holds bool) store.Extra {
	x := withKeys("/b/end")
	if x.If = []*pb.Compare{store.CreateEquals("/b/no", 0)}; !holds {
		x.If = []*pb.Compare{store.Present("/b/no")}
	}
	return x
}

// A claim that comes while another one is released takes over its slots in the same transaction, with all that goes with
// either; if the release does not happen, it waits.
func TestACombinedReleaseIsTakenOver(t *testing.T) {
	for name, holds := range map[string]bool{"released": true, "held": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.ask("a", 2, store.Extra{})
			r.ask("b", 2, store.Extra{})
			r.pass(time.Second)
			if err := r.h.ReleaseWith(a, endingWith(holds), nil); err != nil {
				t.Fatal(err)
			}
			c := r.ask("c", 2, withKeys("/b/begin"))
			sent := r.sent
			all := r.pass(time.Second)
			_, ended := r.get("/b/end")
			_, begun := r.get("/b/begin")
			if ended != holds || begun != holds {
				t.Errorf("written: %v, %v", ended, begun)
			}
			if !holds {
				if all["a"].Outcome != Stays || !errors.Is(all["a"].Err, store.ErrChanged) || all["c"].Outcome != Waits || c.races != 0 {
					t.Errorf("%+v", all)
				}
				return
			}
			end, _ := r.get("/b/end")
			if all["a"].Revision != end.ModRevision || c.fence != end.ModRevision || r.sent-sent != 1 || len(c.Extra()) != 1 {
				t.Errorf("%+v, %d transactions", all, r.sent-sent)
			}
		})
	}
}

func TestWhatCannotBeReleasedWithOtherWrites(t *testing.T) {
	r := newRig(t)
	needs := map[string]int{}
	for i := range 17 {
		name := fmt.Sprint("p", i)
		s := pool.DefaultSpec()
		s.Limit = 9
		r.putSpec(name, s)
		needs[name] = 2
	}
	wide := NewClaim(&pool.Request{ID: "wide", Slots: needs, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
	r.h.Claim(wide, r.now(), time.Unix(1, 0))
	a, full := r.ask("a", 1, store.Extra{}), r.ask("full", 4, store.Extra{})
	if all := r.pass(time.Second); all["wide"].Outcome != Granted || all["full"].Outcome != Waits {
		t.Fatalf("%+v", all)
	}
	for _, c := range []*Claim{wide, full} {
		if err := r.h.ReleaseWith(c, endingWith(true), nil); !errors.Is(err, pool.ErrNotCombined) {
			t.Errorf("%s: %v", c.request.ID, err)
		}
	}
	if err := r.h.ReleaseWith(a, endingWith(true), nil); err != nil {
		t.Error(err)
	}
	if err := r.h.ReleaseWith(a, endingWith(true), nil); !errors.Is(err, pool.ErrNotCombined) {
		t.Errorf("twice: %v", err)
	}
	if all := r.pass(time.Second); all["a"].Outcome != Released || all["full"].Outcome == Granted {
		t.Errorf("%+v", all)
	}
}

// A claim whose combined release fails is released by itself if that was asked for meanwhile, and is lost if its lease
// has ended.
func TestWhatFollowsAFailedRelease(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(*rig, *Claim)
		want      Outcome
	}{
		"released": {func(r *rig, c *Claim) { r.h.Release(c) }, Released},
		"lost":     {func(r *rig, c *Claim) { r.h.LeaseLost(c.lease, []*Claim{c}) }, Lost},
		"nothing":  {func(*rig, *Claim) {}, Stays},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.ask("a", 1, store.Extra{})
			r.pass(time.Second)
			if err := r.h.ReleaseWith(a, endingWith(false), nil); err != nil {
				t.Fatal(err)
			}
			x := r.h.Commits()
			txn, ok := x.Next(r.now(), time.Unix(1, 0))
			if !ok {
				t.Fatal("nothing is sent")
			}
			tc.meanwhile(r, a)
			x.Answer(r.carry(txn))
			if all := r.pass(time.Second); all["a"].Outcome != tc.want || a.combined != nil {
				t.Errorf("%+v", all)
			}
		})
	}
}

// The outcome of a combined release whose answer was lost is known if the claim still has its slots, or another one has taken
// them over.
func TestACombinedReleaseWithoutAnAnswer(t *testing.T) {
	for name, tc := range map[string]struct{ carried, over bool }{
		"not carried out": {false, false}, "carried out": {true, false}, "not taken over": {false, true}, "taken over": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.ask("a", 4, store.Extra{})
			r.pass(time.Second)
			if err := r.h.ReleaseWith(a, endingWith(true), nil); err != nil {
				t.Fatal(err)
			}
			if tc.over {
				r.ask("b", 4, store.Extra{})
			}
			x := r.h.Commits()
			txn, _ := x.Next(r.now(), time.Unix(1, 0))
			if tc.carried {
				_, _ = r.carry(txn)
			}
			if !x.Answer(nil, store.ErrUnavailable) {
				t.Fatal("the outcome is known")
			}
			for !x.Fenced(r.must(x.Fence())) {
			}
			x.Resolved(r.must(x.Unresolved()))
			got := r.pass(time.Second)["a"]
			end, written := r.get("/b/end")
			switch {
			case tc.carried && !tc.over:
				if got.Outcome != Released || !store.OutcomeUnknown(got.Err) {
					t.Errorf("%+v", got)
				}
			case !written || got.Outcome != Released || got.Err != nil || got.Revision != end.ModRevision:
				t.Errorf("written %v: %+v", written, got)
			}
		})
	}
}
