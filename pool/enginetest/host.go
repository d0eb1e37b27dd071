package enginetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool/engine"
	"github.com/berthhq/berth/pool/wire"
)

// host is an instance with its leases and its presence, as a process of berth is.
type host struct {
	*engine.Engine
	w    world
	name string
	by   *storetest.Backend // its client of the stand-in, with its faults
	reg  *prometheus.Registry

	keeper   *lease.Keeper
	waiters  *lease.Keeper
	presence *lease.Presence
	// end ends all of it, once, as a killed process does: nothing is given back.
	end func()
	// stopEngine ends the engine alone, once.
	stopEngine func()
}

// setup is what a host is started with.
type setup struct {
	engine.Config
	token string
	// lazy hosts are not waited for.
	lazy bool
	// spoil is called with its client before it is used.
	spoil func(*storetest.Backend)
}

// down is a host that can't reach etcd at its start.
func down(s *setup) { s.lazy, s.spoil = true, (*storetest.Backend).Down }

// clock is the time of a bubble or of the machine.
type clock struct{ start time.Time }

func (c clock) Now() time.Duration { return time.Since(c.start) }

var begin = time.Now()

// host starts a host, or a later process of one that has ended.
func (w world) host(name string, change ...func(*setup)) *host {
	w.Helper()
	backend, by := w.etcd.peer()
	s := setup{Config: engine.Config{Backend: backend, Keys: w.keys, Host: name, Instance: "test", Kind: wire.Service, PollInterval: time.Second}}
	for _, f := range change {
		f(&s)
	}
	if s.token == "" {
		s.token = "token of " + s.Host + "/" + s.Instance
	}
	if s.spoil != nil {
		s.spoil(by)
	}
	h := &host{w: w, name: name, by: by, reg: prometheus.NewRegistry()}
	h.build(s)
	h.start(s)
	if !s.lazy {
		*w.live = append(*w.live, h)
	}
	return h
}

// build makes the parts.
func (h *host) build(s setup) {
	at := clock{begin}
	if h.by != nil {
		at = clock{time.Now()}
	}
	h.presence = lease.NewPresence(lease.PresenceConfig{Backend: s.Backend, Keys: s.Keys, Host: s.Host, Instance: s.Instance, Token: s.token})
	h.keeper = lease.NewKeeper(lease.Config{
		Backend: s.Backend, Keys: s.Keys, Host: s.Host, Instance: s.Instance, Token: s.token, Clock: at,
		OnReady:   func() { h.LeasesReady() },
		OnLost:    func(id store.LeaseID, cause error) { h.LeaseLost(id, cause) },
		OnRenewed: func(id store.LeaseID, again bool) { h.LeaseRenewed(id, again) },
	})
	h.waiters = lease.NewKeeper(lease.Config{
		Backend: s.Backend, Keys: s.Keys, Host: s.Host, Instance: s.Instance, Clock: at,
		OnReady: func() { h.LeasesReady() },
		OnLost:  func(id store.LeaseID, cause error) { h.LeaseLost(id, cause) },
	})
	s.Leases, s.WaiterLeases = h.keeper, h.waiters
	h.Engine = engine.New(s.Config)
}

// start runs the parts in the order in which an instance does.
func (h *host) start(s setup) {
	h.w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var parts, running sync.WaitGroup
	of, stopEngine := context.WithCancel(ctx)
	h.stopEngine = func() { stopEngine(); running.Wait() }
	h.end = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		parts.Wait()
		if h.by != nil {
			h.by.Close()
		}
	})
	h.w.Cleanup(h.end)
	run := func() {
		parts.Go(func() { _ = h.keeper.Run(ctx) })
		parts.Go(func() { _ = h.waiters.Run(ctx) })
	}
	if s.lazy {
		parts.Go(func() { _ = h.presence.Run(ctx) })
		running.Go(func() { _ = h.Run(of) })
		run()
		return
	}
	parts.Go(func() { _ = h.presence.Run(ctx) })
	<-h.presence.Ready()
	left, err := lease.Resume(h.w.ctx(), s.Backend, clock{time.Now()}, s.Keys, s.Host, s.Instance, s.token)
	if err != nil {
		h.w.Fatal(err)
	}
	ids := make([]store.LeaseID, len(left))
	for i, l := range left {
		ids[i] = l.ID
	}
	h.Adopt(ids...)
	running.Go(func() { _ = h.Run(of) })
	if err := h.Ready(h.w.ctx()); err != nil {
		h.w.Fatal(err)
	}
	claims, err := h.Adopted(h.w.ctx())
	if err != nil {
		h.w.Fatal(err)
	}
	on := map[store.LeaseID]int{}
	for _, c := range claims {
		on[c.Lease] += c.Keys
	}
	for _, l := range left {
		h.keeper.Adopt(l, on[l.ID])
	}
	run()
}

// kill ends the host as kill -9 does.
func (h *host) kill() {
	h.end()
	*h.w.live = slices.DeleteFunc(*h.w.live, func(o *host) bool { return o == h })
}

// hang has the host do nothing more: no request of it reaches etcd, and nothing reaches it.
func (h *host) hang() {
	h.by.Freeze()
	h.by.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Drop: true} })
	*h.w.live = slices.DeleteFunc(*h.w.live, func(o *host) bool { return o == h })
}
