package e2e

import (
	"errors"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
)

// believers are holders who are asked, the moment their slots are gone, whether
// they still take them for valid.
type believers struct {
	t      testing.TB
	mu     sync.Mutex
	claims map[string]*instance.Claim
}

func (b *believers) add(cl *instance.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims[cl.ID] = cl
}

func (b *believers) observe(h *History, ev *mvccpb.Event) {
	s := h.slots[string(ev.Kv.Key)]
	if s == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if cl := b.claims[s.claim]; cl != nil {
		if left, _ := cl.ValidFor(); left > 0 {
			b.t.Errorf("%s has lost its slots and takes them for valid for another %s", cl, left)
		}
	}
}

// However a host is cut off, its claims end before its slots are gone, and not
// before they have to: while they are valid nothing ends.
func TestAHostThatIsCutOffLosesItsClaimsBeforeItsSlotsAreGone(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t)
	b := &believers{t: t, claims: map[string]*instance.Claim{}}
	w := watch(t, embedtest.Client(t, srv), func(w *witness) { w.onEvent = b.observe })
	near := open(t, []string{srv.Endpoint()}, "near")
	spec(t, []*instance.Client{near}, "db", 4, short)
	var held []*instance.Claim
	var hosts []*instance.Client
	var proxies []*proxy
	for _, host := range []string{"up", "down", "both", "severed"} {
		p := through(t, srv.Endpoint())
		c := open(t, p.endpoints(), host)
		eventuallyWell(t, c, "db")
		cl := claim(t, c, host, instance.Slots{"db": 1})
		b.add(cl)
		held, hosts, proxies = append(held, cl), append(hosts, c), append(proxies, p)
	}
	next := begin(t, t.Context(), near, "next", instance.Slots{"db": 4})
	w.until("one waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	proxies[0].stall(true, false)
	proxies[1].stall(false, true)
	proxies[2].stall(true, true)
	proxies[3].sever()
	for _, cl := range held {
		closedWithin(t, cl.ID+" ends", cl.Context().Done())
		if left, _ := cl.ValidFor(); left != 0 {
			t.Errorf("%s has ended, and is valid for %s", cl, left)
		}
		if err := cl.Err(); instance.ErrorCode(err) != "claim_lost" || !errors.Is(err, lease.ErrValidityEnded) && !errors.Is(err, store.ErrLeaseNotFound) {
			t.Errorf("%s ended with %v", cl, err)
		}
	}
	got := next.granted()
	for _, p := range proxies {
		p.heal()
	}
	release(t, got)
	for i, c := range hosts {
		release(t, held[i]) // does no harm
		release(t, claim(t, c, "again-"+c.Host(), instance.Slots{"db": 4}))
	}
	w.until("nothing is left", func(h *History) bool { return h.Held() == 0 && len(h.Waiting()) == 0 })
}
