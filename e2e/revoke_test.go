package e2e

import (
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
)

// operator connects to etcd as the commands of operators do.
func operator(t testing.TB, endpoints []string, change ...func(*instance.Options)) inspect.Snapshot {
	t.Helper()
	b, keys, err := instance.Connect(t.Context(), options(endpoints, "operator", change...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return inspect.Snapshot{Backend: b, Keys: keys}
}

// First the validity ends, then the holder stops, then the slots are free.
func TestARevokedClaimIsFreedWhenItsHolderHasStopped(t *testing.T) {
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "db", 1)
	cl := claim(t, hosts[0], "mine", instance.Slots{"db": 1})
	next := begin(t, t.Context(), hosts[1], "next", instance.Slots{"db": 1})
	w.until("another waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	r, err := operator(t, []string{srv.Endpoint()}).Revoke(t.Context(), "mine", false)
	if err != nil || r.Forced || r.Fence != cl.Fence() || r.Host != hosts[0].Host() {
		t.Errorf("revoked: %+v, %v", r, err)
	}
	closedWithin(t, "the holder is notified", cl.Context().Done())
	if code := instance.ErrorCode(cl.Err()); code != "claim_revoked" {
		t.Errorf("the holder got %s: %v", code, cl.Err())
	}
	if left, _ := cl.ValidFor(); left != 0 {
		t.Errorf("a revoked claim is valid for %s", left)
	}
	before := w.now()
	release(t, cl)
	got := next.granted()
	w.look(func(h *History) {
		if x := h.Hold("mine"); x.To <= before {
			t.Errorf("the slot was free at %d, and the holder had not stopped by %d", x.To, before)
		}
	})
	release(t, got)
	w.until("nothing is left", func(h *History) bool { return h.Held() == 0 })
}

// A holder that does not stop is given its time, and no more.
func TestARevokedClaimIsFreedAfterItsGrace(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t)
	end := &ends{key: numberKey(keys, "db", 0), at: make(chan time.Time, 10)}
	w := watch(t, embedtest.Client(t, srv), func(w *witness) { w.onEvent = end.note })
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "db", 1)
	cl := claim(t, hosts[0], "mine", instance.Slots{"db": 1})
	begun := time.Now()
	if _, err := operator(t, []string{srv.Endpoint()}).Revoke(t.Context(), "mine", false); err != nil {
		t.Fatal(err)
	}
	got := claim(t, hosts[1], "next", instance.Slots{"db": 1})
	if took := (<-end.at).Sub(begun); took < pool.RevokeGrace {
		t.Errorf("the slot was free after %s", took)
	}
	release(t, cl) // late, and harmless
	w.look(func(h *History) {
		if h.Hold("next").To != 0 {
			t.Error("a late release has taken the next holder's slot")
		}
	})
	release(t, got)
}

func TestAClaimRevokedByForceIsFreeAtOnceAndItsHolderIsNotified(t *testing.T) {
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "db", 2)
	spec(t, hosts, "gpu", 1)
	cl := claim(t, hosts[0], "mine", instance.Slots{"db": 2, "gpu": 1})
	next := begin(t, t.Context(), hosts[1], "next", instance.Slots{"db": 1})
	w.until("another waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	a := operator(t, []string{srv.Endpoint()})
	r, err := a.Revoke(t.Context(), "mine", true)
	if err != nil || !r.Forced || r.Fence != cl.Fence() {
		t.Errorf("revoked: %+v, %v", r, err)
	}
	got := next.granted()
	if got.Fence() <= r.Fence {
		t.Errorf("the next holder has fence %d, and the old one %d", got.Fence(), r.Fence)
	}
	closedWithin(t, "the old holder is notified", cl.Context().Done())
	if code := instance.ErrorCode(cl.Err()); code != "claim_lost" {
		t.Errorf("the old holder got %s: %v", code, cl.Err())
	}
	release(t, cl)
	w.look(func(h *History) {
		if h.Hold("next").To != 0 {
			t.Error("the old holder's release has taken the next one's slot")
		}
	})
	release(t, got)
	if _, err := a.Revoke(t.Context(), "mine", true); instance.ErrorCode(err) != "claim_not_found" {
		t.Errorf("a claim that is gone was revoked: %v", err)
	}
}

// ends records when a holder of a key no longer has it: by the test's own clock, and
// as early as the test can hear of it.
type ends struct {
	key string
	at  chan time.Time
}

func (e *ends) note(h *History, ev *mvccpb.Event) {
	if key := string(ev.Kv.Key); key == e.key && h.slots[key] != nil {
		e.at <- time.Now()
	}
}
