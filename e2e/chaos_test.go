package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
)

// seedVar repeats a random history: "BERTH_SEED=123 go test -run Random".
const seedVar = "BERTH_SEED"

// chaosPools are what the users of a random history share.
var chaosPools = []string{"a", "b", "c"}

// chaos is a random history in the making: hosts that each reach etcd through a
// [proxy], users on them, and faults.
type chaos struct {
	t       *testing.T
	seed    uint64
	begun   time.Time
	cluster *embedtest.Members
	w       *witness
	hosts   []*chaosHost
	users   sync.WaitGroup
	stop    chan struct{} // closed to have the users come to an end

	mu    sync.Mutex // guards what follows
	lives map[string]*life
	gone  map[*instance.Client]bool  // ended as killed processes end
	times map[int64]time.Duration    // when each revision was seen
	asked map[string][]time.Duration // when each change of a pool began
	specs []sighting
	force map[string]time.Duration // claims that were revoked by force, and when
}

// life is a claim as its users know it. Times are since the beginning, and 0 for
// what has not happened.
type life struct {
	asked, granted, released time.Duration
	valid                    time.Duration    // when the claim was last checked and found valid
	client                   *instance.Client // that has the claim now
	claim                    *instance.Claim
}

// check records now as a time at which the claim was still valid, if it is. Without this,
// its lease may have ended before anybody notices.
func (l *life) check(now time.Duration) {
	if l.claim == nil {
		return
	}
	if left, _ := l.claim.ValidFor(); left > 0 {
		l.valid = now
	}
}

// sighting is a change of a spec as the witness saw it.
type sighting struct {
	at     time.Duration
	pool   string
	limit  int
	paused bool
}

func newChaos(t *testing.T, hosts int) *chaos {
	c := &chaos{
		t: t, begun: time.Now(), stop: make(chan struct{}),
		lives: map[string]*life{}, gone: map[*instance.Client]bool{}, times: map[int64]time.Duration{},
		asked: map[string][]time.Duration{}, force: map[string]time.Duration{},
		seed: rand.Uint64(), cluster: embedtest.Cluster(t, 1),
	}
	if s := os.Getenv(seedVar); s != "" {
		var err error
		if c.seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVar, err)
		}
	}
	t.Logf("%s=%d", seedVar, c.seed)
	c.w = watch(t, c.cluster.Client(t), func(w *witness) { w.onEvent = c.observe })
	for i := range hosts {
		h := &chaosHost{
			chaos: c, name: fmt.Sprintf("host%d", i), dir: t.TempDir(),
			proxy: through(t, c.cluster.Endpoints()[0]),
		}
		c.hosts = append(c.hosts, h)
	}
	return c
}

// rand is a source of its own for each part, so that a seed says what each does
// whatever the others do.
func (c *chaos) rand(part uint64) *rand.Rand { return rand.New(rand.NewPCG(c.seed, part)) }

// now is the time since the beginning.
func (c *chaos) now() time.Duration { return time.Since(c.begun) }

// observe sees each event before it is judged: it keeps the time, and asks the
// holder of a slot that is gone whether it still takes it for valid.
func (c *chaos) observe(h *History, ev *mvccpb.Event) {
	key := string(ev.Kv.Key)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times[ev.Kv.ModRevision] = c.now()
	k, _, err := parseKey(keys, key)
	if err != nil {
		return
	}
	if k.Kind == specKey {
		if v, err := readSpec(ev.Kv.Value); err == nil {
			c.specs = append(c.specs, sighting{at: c.now(), pool: k.Pool, limit: *v.Limit, paused: v.Paused})
		}
		return
	}
	s := h.slots[key]
	if s == nil {
		return
	}
	l := c.lives[s.claim]
	if l == nil || l.claim == nil || c.gone[l.client] || c.force[s.claim] > 0 || l.released > 0 {
		return
	}
	if l.claim.Fence().Revision() != s.rev {
		return // another grant of it, which its instance has confirmed by this write
	}
	if left, _ := l.claim.ValidFor(); left > 0 {
		c.t.Errorf("claim %s has lost its slots and its holder takes it for valid for another %s", s.claim, left)
	}
}

// chaosHost is one host: up with a client, or down without.
type chaosHost struct {
	*chaos
	name  string
	dir   string
	proxy *proxy

	trouble sync.Mutex // held by the fault that it suffers

	mu     sync.Mutex // guards what follows
	client *instance.Client
}

// up opens the host, however often that takes, and gives back what it finds.
func (h *chaosHost) up() {
	for {
		c, err := instance.Open(context.Background(), options(h.proxy.endpoints(), h.name, fixed(h.dir)))
		if err == nil {
			h.adopt(c)
			return
		}
		if code := instance.ErrorCode(err); code != "etcd_unavailable" {
			h.t.Errorf("open %s: %v", h.name, err)
			return
		}
	}
}

// adopt takes over what the process before held, and has it given back.
func (h *chaosHost) adopt(c *instance.Client) {
	held, err := c.Held(context.Background())
	if err != nil {
		h.t.Errorf("held by %s: %v", h.name, err)
	}
	h.chaos.mu.Lock()
	for _, cl := range held {
		l := h.lives[cl.ID]
		if l == nil {
			h.t.Errorf("%s holds %s, which was never requested", h.name, cl)
			continue
		}
		l.client, l.claim = c, cl
		if l.granted == 0 {
			l.granted = h.now()
		}
		if h.force[cl.ID] == 0 && l.released == 0 {
			l.check(h.now())
		}
	}
	h.chaos.mu.Unlock()
	h.mu.Lock()
	h.client = c
	h.mu.Unlock()
	for _, cl := range held {
		h.users.Go(func() { h.release(cl) })
	}
}

// down ends the host as a killed process ends: nothing is given back.
func (h *chaosHost) down() {
	h.mu.Lock()
	c := h.client
	h.client = nil
	h.mu.Unlock()
	if c == nil {
		return
	}
	h.chaos.mu.Lock()
	h.gone[c] = true
	h.chaos.mu.Unlock()
	if err := c.Leave(); err != nil {
		h.t.Errorf("leave %s: %v", h.name, err)
	}
}

// current is the host's client, nil while it is down.
func (h *chaosHost) current() *instance.Client {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.client
}

// operations are what the clients did, as the model has it: each with the
// narrowest time that is known for it.
func (c *chaos) operations(h *History) []porcupine.Operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ops []porcupine.Operation
	began := map[string]time.Duration{}
	for _, s := range c.specs {
		// Each change that was asked for is seen once at most, in order: this is
		// one that began after the one that was seen before.
		for _, at := range c.asked[s.pool] {
			if at > began[s.pool] {
				began[s.pool] = at
				break
			}
		}
		o := op{kind: opSpec, pool: s.pool, limit: s.limit, paused: s.paused}
		ops = append(ops, operation(o, int64(began[s.pool]), int64(s.at)))
	}
	for _, x := range h.Holds() {
		l := c.lives[x.Claim]
		if l == nil {
			c.t.Errorf("claim %s was held, and was never requested", x.Claim)
			continue
		}
		seen, end := c.times[x.From], l.asked
		if l.granted > 0 {
			seen = min(seen, l.granted)
		}
		// Only the grant that its holder knows has a later bound. The others were not wanted any
		// more, or not confirmed.
		if l.claim != nil && l.claim.Fence().Revision() == x.From {
			end = max(end, l.valid)
		}
		ops = append(ops, operation(op{kind: opClaim, claim: x.Claim, slots: x.Pools}, int64(l.asked), int64(seen)))
		if x.To > 0 {
			ops = append(ops, operation(op{kind: opEnd, claim: x.Claim}, int64(end), int64(c.times[x.To])))
		}
	}
	return ops
}

// set changes a pool. One goroutine makes all changes.
func (c *chaos) set(a inspect.Snapshot, name string, ch pool.Change) {
	c.mu.Lock()
	c.asked[name] = append(c.asked[name], c.now())
	c.mu.Unlock()
	if _, err := a.SetPool(context.Background(), name, ch); err != nil && instance.ErrorCode(err) != "etcd_unavailable" {
		c.t.Errorf("set pool %s: %v", name, err)
	}
}
