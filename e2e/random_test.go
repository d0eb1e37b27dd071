package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/pool"
)

// Users on three hosts claim, wait, give up, come again and release, while hosts
// are cut off, killed and started again, etcd is stopped, limits change and
// operators revoke claims. Whatever happens, each revision keeps the rules, no holder treats lost
// slots as valid, and one order of all operations explains what every client observed. When it is
// calm again, no claim is left, and all slots can be claimed.
func TestARandomHistoryUnderFaultsKeepsItsPromises(t *testing.T) {
	t.Parallel()
	steps, users := 40, 4
	if os.Getenv("BERTH_LONG") != "" {
		steps = 400
	}
	c := newChaos(t, 3)
	a := operator(t, c.cluster.Endpoints())
	for i, name := range chaosPools {
		limit, lease := 2+i, pool.MinLeaseDuration
		reserve := []time.Duration{0, time.Second, pool.NeverReserve}[i]
		c.set(a, name, pool.Change{Limit: &limit, LeaseDuration: &lease, ReserveAfter: &reserve})
	}
	for i, h := range c.hosts {
		h.up()
		for u := range users {
			c.users.Go(func() { h.use(u, c.rand(uint64(100*i+u+1))) })
		}
	}
	n := &nemesis{chaos: c, admin: a, r: c.rand(0)}
	for i := range steps {
		if i%20 == 10 {
			n.long()
		}
		n.step()
	}
	n.calm()
	c.atRest(a)
}

// use is one user of a host, until it is stopped.
func (h *chaosHost) use(user int, r *rand.Rand) {
	for n := 0; ; n++ {
		select {
		case <-h.stop:
			return
		default:
		}
		if c := h.current(); c != nil {
			h.once(c, r, fmt.Sprintf("%s-u%d-%d", h.name, user, n))
		} else {
			pause(context.Background(), 5*time.Millisecond)
		}
	}
}

// once is one claim, from the asking to the release.
func (h *chaosHost) once(c *instance.Client, r *rand.Rand, id string) {
	slots := instance.Slots{}
	for _, name := range chaosPools[:1+r.IntN(len(chaosPools))] {
		if r.IntN(2) == 0 || len(slots) == 0 {
			slots[name] = 1 + r.IntN(2)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	if r.IntN(10) == 0 { // a client that hangs up
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(100))*time.Millisecond)
	}
	defer cancel()
	h.chaos.mu.Lock()
	l := &life{asked: h.now()}
	h.lives[id] = l
	h.chaos.mu.Unlock()

	wait := []time.Duration{0, 100 * time.Millisecond, 3 * time.Second}[r.IntN(3)]
	hold := time.Duration(r.IntN(30)) * time.Millisecond
	again := r.IntN(2) == 0
	cl, err := c.Claim(ctx, slots, instance.WithID(id), instance.WithWait(wait), instance.WithPriority(r.IntN(3)))
	if instance.ErrorCode(err) == "etcd_unavailable" && again {
		cl, err = c.Claim(ctx, slots, instance.WithID(id), instance.WithWait(wait))
	}
	if err != nil {
		h.refusal(id, err)
		return
	}
	h.chaos.mu.Lock()
	l.client, l.claim, l.granted = c, cl, h.now()
	if h.force[id] == 0 {
		l.check(l.granted)
	}
	h.chaos.mu.Unlock()
	select {
	case <-time.After(hold):
	case <-cl.Context().Done():
	}
	h.release(cl)
}

// refusal accepts what may be answered in times like these.
func (h *chaosHost) refusal(id string, err error) {
	switch code := instance.ErrorCode(err); code {
	case "no_capacity", "claim_timeout", "claim_canceled", "exceeds_limit", "etcd_unavailable", "stopping", "id_in_use":
	default:
		h.t.Errorf("claim %s: %s: %v", id, code, err)
	}
}

// release gives a claim back, if its process lives for long enough.
func (h *chaosHost) release(cl *instance.Claim) {
	h.chaos.mu.Lock()
	if l := h.lives[cl.ID]; l != nil && l.released == 0 {
		l.released = h.now()
		if h.force[cl.ID] == 0 {
			l.check(l.released)
		}
	}
	h.chaos.mu.Unlock()
	if err := cl.Release(context.Background()); err != nil && instance.ErrorCode(err) != "stopping" {
		h.t.Errorf("release %s: %v", cl, err)
	}
}

// atRest shows that nothing is left when all is over, that all can be had, and
// that what was seen can be explained.
func (c *chaos) atRest(a inspect.Snapshot) {
	t := c.t
	c.w.until("everything is given back or has run out", func(h *History) bool {
		return h.Held() == 0 && len(h.Waiting()) == 0
	})
	all := instance.Slots{}
	for _, name := range chaosPools {
		c.w.look(func(h *History) { all[name], _ = h.Limit(name) })
	}
	for i, h := range c.hosts {
		id := fmt.Sprintf("rest-%d", i)
		l := &life{asked: c.now(), client: h.current()}
		c.mu.Lock()
		c.lives[id] = l
		c.mu.Unlock()
		cl := claim(t, l.client, id, all)
		c.mu.Lock()
		l.claim, l.granted = cl, c.now()
		c.mu.Unlock()
		h.release(cl)
	}
	c.w.now()
	r, err := a.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Verify() {
		t.Errorf("verify: %s: %s", v.Key, v.Problem)
	}
	c.w.look(func(h *History) {
		c.mu.Lock()
		grants := 0
		for id, l := range c.lives {
			if l.claim != nil {
				h.Granted(id, l.claim.Fence(), l.claim.Slots)
				grants++
			}
		}
		t.Logf("%d claims asked for, %d held, %d answered, %d waits", len(c.lives), len(h.Holds()), grants, len(h.Waits()))
		c.mu.Unlock()
		explain(t, c.operations(h))
	})
	for _, h := range c.hosts {
		shut(t, h.current())
	}
}

// held returns the claims that are held, in an order that does not depend on
// anything else.
func (c *chaos) held() []string {
	var ids []string
	c.w.glance(func(h *History) {
		for id := range h.holding {
			ids = append(ids, id)
		}
	})
	slices.Sort(ids)
	return ids
}
