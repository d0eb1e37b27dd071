package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/store"
)

const (
	testHost  = "quay-1"
	testInst  = "sidecar"
	testToken = "00112233445566778899aabbccddeeff"
)

var testKeys = store.NewKeys("/berth/")

var errStopped = errors.New("stopped by the test")

// harness is a keeper on a fake etcd. It must be made inside a synctest bubble.
type harness struct {
	t     *testing.T
	clock *fakeClock
	etcd  *fakeEtcd
	reg   *prometheus.Registry
	*Keeper

	mu    sync.Mutex
	lost  []loss
	at    []time.Duration // when each loss was reported
	ready int

	cancel context.CancelCauseFunc
	done   chan error
}

func newHarness(t *testing.T, change ...func(*Config)) *harness {
	clock := newFakeClock()
	h := &harness{t: t, clock: clock, etcd: newFakeEtcd(clock), reg: prometheus.NewRegistry()}
	cfg := Config{
		Backend: h.etcd, Keys: testKeys, Host: testHost, Instance: testInst, Token: testToken,
		Clock: clock, Registerer: h.reg,
		OnReady: func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.ready++
		},
		OnLost: func(id store.LeaseID, cause error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.lost = append(h.lost, loss{id, cause})
			h.at = append(h.at, clock.Now())
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	h.Keeper = NewKeeper(cfg)
	return h
}

// run runs the keeper until the test stops it, at the latest at its end.
func (h *harness) run() {
	ctx, cancel := context.WithCancelCause(h.t.Context())
	h.cancel, h.done = cancel, make(chan error, 1)
	go func() { h.done <- h.Run(ctx) }()
	h.t.Cleanup(h.stop)
	synctest.Wait()
}

func (h *harness) stop() {
	if h.done == nil {
		return
	}
	h.cancel(errStopped)
	if err := <-h.done; !errors.Is(err, errStopped) && !errors.Is(err, context.Canceled) {
		h.t.Errorf("Run ended with %v", err)
	}
	h.done = nil
}

// wait lets time pass, and then everything come to rest.
func (h *harness) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// acquire gets a lease, however many grants that takes.
func (h *harness) acquire(d time.Duration, keys int) store.LeaseID {
	h.t.Helper()
	for range 10 {
		if id, ok := h.Acquire(d, keys); ok {
			return id
		}
		synctest.Wait()
	}
	h.t.Fatalf("no lease of %s for %d more keys", d, keys)
	return 0
}

func (h *harness) losses() []loss {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]loss(nil), h.lost...)
}

func (h *harness) readies() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready
}

// wantLost checks that exactly these leases were reported, each once.
func (h *harness) wantLost(cause error, ids ...store.LeaseID) {
	h.t.Helper()
	got := h.losses()
	if len(got) != len(ids) {
		h.t.Fatalf("losses %v, want %d", got, len(ids))
	}
	seen := map[store.LeaseID]bool{}
	for _, l := range got {
		seen[l.id] = true
		if !errors.Is(l.cause, cause) {
			h.t.Errorf("lease %s was lost by %v, want %v", name(l.id), l.cause, cause)
		}
	}
	for _, id := range ids {
		if !seen[id] {
			h.t.Errorf("the loss of lease %s was not reported", name(id))
		}
		if _, ok := h.Validity(id); ok {
			h.t.Errorf("lease %s is lost and still trusted", name(id))
		}
	}
}

func (h *harness) wantValid(id store.LeaseID) Window {
	h.t.Helper()
	w, ok := h.Validity(id)
	if !ok {
		h.t.Fatalf("lease %s is not trusted; losses: %v", name(id), h.losses())
	}
	return w
}

// remaining is a lease that an earlier process renewed just now.
func (h *harness) remaining(id store.LeaseID, d time.Duration) Resumable {
	return Resumable{ID: id, Duration: d, Window: NewWindow(h.clock.Now(), d)}
}
