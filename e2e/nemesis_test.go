package e2e

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/pool"
)

// nemesis spoils a [chaos], one fault after the other. Faults of one host can
// overlap with the next.
type nemesis struct {
	*chaos
	admin inspect.Snapshot
	r     *rand.Rand
	busy  sync.WaitGroup
}

// step does one thing and waits a little.
func (n *nemesis) step() {
	h := n.hosts[n.r.IntN(len(n.hosts))]
	length := time.Duration(n.r.IntN(1000)) * time.Millisecond
	switch n.r.IntN(18) {
	case 0, 1, 2, 3, 4, 5:
		limit := 1 + n.r.IntN(6)
		n.set(n.admin, n.pool(), pool.Change{Limit: &limit})
	case 6, 7, 8: // no newcomers for a moment, in one of two ways
		name, closed, limit := n.pool(), 0, 3
		yes, no := true, false
		stop, resume := pool.Change{Paused: &yes}, pool.Change{Paused: &no}
		if n.r.IntN(2) == 0 {
			stop, resume = pool.Change{Limit: &closed}, pool.Change{Limit: &limit}
		}
		n.set(n.admin, name, stop)
		pause(n.t.Context(), length/10)
		n.set(n.admin, name, resume)
	case 12, 13:
		up, down := n.r.IntN(2) == 0, n.r.IntN(2) == 0
		n.fault(h, length*2, func() { h.proxy.stall(up || !down, down) })
	case 14:
		n.fault(h, length, h.proxy.sever)
	case 15:
		n.restart(h, length)
	case 16:
		n.cluster.Kill(0)
		pause(n.t.Context(), length/2)
		n.cluster.Restart(0)
	case 9, 10, 11:
		n.revoke(n.r.IntN(2) == 0)
	}
	pause(n.t.Context(), time.Duration(n.r.IntN(300))*time.Millisecond)
}

// long does something to a host that lasts longer than its leases.
func (n *nemesis) long() {
	h := n.hosts[n.r.IntN(len(n.hosts))]
	length := time.Duration(6000+n.r.IntN(1000)) * time.Millisecond
	if n.r.IntN(2) == 0 {
		n.restart(h, length)
	} else {
		n.fault(h, length, func() { h.proxy.stall(true, true) })
	}
}

func (n *nemesis) pool() string { return chaosPools[n.r.IntN(len(chaosPools))] }

// fault spoils a host's connections for a while, while other things happen.
func (n *nemesis) fault(h *chaosHost, d time.Duration, begin func()) {
	n.busy.Go(func() {
		h.trouble.Lock()
		defer h.trouble.Unlock()
		begin()
		pause(n.t.Context(), d)
		h.proxy.heal()
	})
}

// restart kills a host, and starts it again after a while.
func (n *nemesis) restart(h *chaosHost, d time.Duration) {
	n.busy.Go(func() {
		h.trouble.Lock()
		defer h.trouble.Unlock()
		h.down()
		pause(n.t.Context(), d)
		h.up()
	})
}

func (n *nemesis) revoke(force bool) {
	held := n.held()
	if len(held) == 0 {
		return
	}
	id := held[n.r.IntN(len(held))]
	if force {
		n.mu.Lock()
		if n.force[id] == 0 { // else an earlier attempt may have ended it already
			n.force[id] = n.now()
			if l := n.lives[id]; l != nil && l.released == 0 {
				l.check(n.force[id])
			}
		}
		n.mu.Unlock()
	}
	_, err := n.admin.Revoke(context.Background(), id, force)
	switch code := instance.ErrorCode(err); {
	case err == nil || code == "claim_not_found" || code == "etcd_unavailable":
	default:
		n.t.Errorf("revoke %s: %v", id, err)
	}
}

// calm ends all faults and has all users come to an end.
func (n *nemesis) calm() {
	n.busy.Wait()
	for i, name := range chaosPools {
		limit, paused := 3+i, false
		n.set(n.admin, name, pool.Change{Limit: &limit, Paused: &paused})
	}
	close(n.stop)
	done := make(chan struct{})
	go func() { n.users.Wait(); close(done) }()
	closedWithin(n.t, "all users have had their answers", done)
}
