package claims

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// stillClock is a clock that a test moves.
type stillClock struct{ now time.Duration }

func (c *stillClock) Now() time.Duration { return c.now }

// desk has holders on an etcd with a pool, and a clock that a test moves: from that of the machine,
// by which leases are valid, and not as far as the validity of the pool's leases.
type desk struct {
	*Holders
	t      *testing.T
	client *instance.Client
	time   *stillClock
	begun  time.Duration
}

func newDesk(t *testing.T, stateDir string) *desk {
	t.Helper()
	client, err := instance.Open(t.Context(), instance.Options{Endpoints: []string{embedtest.New(t).Endpoint()}, Host: "one", Instance: "sidecar"})
	if err != nil {
		t.Fatal(err)
	}
	limit, duration := 10, pool.MaxLeaseDuration
	if _, err := client.SetPool(t.Context(), "db", pool.Change{Limit: &limit, LeaseDuration: &duration}); err != nil {
		t.Fatal(err)
	}
	now := lease.BootClock().Now()
	d := &desk{t: t, client: client, time: &stillClock{now}, begun: now, Holders: New(Config{
		StateDir: stateDir, Instance: "sidecar", Log: hclog.NewNullLogger(), Metrics: NewMetrics(nil), Notify: func(Change) {},
		Procs: newWatcher(t),
	})}
	d.clock = d.time
	t.Cleanup(func() {
		d.Leave()
		if err := client.Leave(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func newWatcher(t *testing.T) *proc.Watcher {
	t.Helper()
	procs, err := proc.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := procs.Close(); err != nil {
			t.Error(err)
		}
	})
	return procs
}

// ask asks for a claim, and gets an answer that comes to its client, or not.
func (d *desk) ask(id string, ttl time.Duration, read bool) *Holder {
	d.t.Helper()
	bind, err := BindingOf(Life{TTL: &ttl})
	if err != nil {
		d.t.Fatal(err)
	}
	named := id != ""
	if !named {
		id = "nameless"
	}
	claim, err := d.client.Claim(d.t.Context(), instance.Slots{"db": 1}, instance.WithID(id), instance.WithBind(bind.Encode()))
	if err != nil {
		d.t.Fatal(err)
	}
	h := d.Add(claim, bind, nil)
	d.Reported(h)
	if !read {
		d.Unread(h, named)
	}
	return h
}

func TestAClaimOfWhichNobodyKnowsIsReleased(t *testing.T) {
	d := newDesk(t, "")
	released := func(ids ...string) {
		t.Helper()
		d.check()
		d.tasks.Wait()
		held := map[string]bool{}
		for id := range d.byID {
			held[id] = true
		}
		for _, id := range ids {
			if held[id] {
				t.Errorf("%s is held after %s", id, d.time.now-d.begun)
			}
		}
		if want := 5 - len(ids); len(held) != want {
			t.Errorf("after %s %d are held, want %d: %v", d.time.now-d.begun, len(held), want, held)
		}
	}
	d.ask("", time.Hour, false) // without an id: it goes at once
	for _, id := range []string{"forgotten", "repeated", "renewed", "twice"} {
		d.ask(id, 0, false)
	}
	d.ask("known", 0, true)
	d.ask("known", 0, false) // the holder knows it, though
	released()
	d.time.now += keepUnread - time.Second
	released()
	d.ask("repeated", 0, true)
	d.ask("twice", 0, false)
	if _, err := d.Renew(Caller{Name: "unauthenticated"}, "renewed", 0, Life{}, nil); err != nil {
		t.Fatal(err)
	}
	d.time.now += time.Second
	released("forgotten")
	d.time.now += keepUnread
	released("forgotten", "twice")
	d.time.now += time.Hour
	released("forgotten", "twice")
}

// A holder that renews is alive, even if the rest of its request cannot be stored.
func TestARenewalThatCannotBeKeptIsOneAllTheSame(t *testing.T) {
	d := newDesk(t, "/dev/null/file")
	h := d.ask("mine", time.Minute, true)
	was, bind := h.expires, h.bind
	d.time.now += time.Second
	ttl := time.Hour
	if _, err := d.Renew(Caller{Name: "unauthenticated"}, "mine", 0, Life{TTL: &ttl}, nil); problem.CodeOf(err) != problem.StateUnwritable {
		t.Error(err)
	}
	if h.expires <= was || h.bind != bind {
		t.Errorf("it ends at %s, as before, bound as %+v", h.expires, h.bind)
	}
}

// A claim that was lost is lost while its slots are being released, too.
func TestALostClaimStaysLostWhileItIsReleased(t *testing.T) {
	d := newDesk(t, "")
	h := d.ask("a", time.Hour, true)
	d.mu.Lock()
	d.invalidate(h, problem.New(problem.ClaimLost, "its lease has ended"))
	d.beginRelease(h)
	d.mu.Unlock()
	own := Caller{Name: "unauthenticated"}
	if _, _, err := d.Find(own, "a"); problem.CodeOf(err) != problem.ClaimLost {
		t.Errorf("it is found, with %v", err)
	}
	b := d.ask("b", time.Hour, true)
	d.mu.Lock()
	d.beginRelease(b)
	d.mu.Unlock()
	if found, _, err := d.Find(own, "b"); found != b || err != nil {
		t.Errorf("one that is being released is %v, %v", found, err)
	}
	if found, _, err := d.Find(own, "c"); found != nil || err != nil {
		t.Errorf("one that is not there is %v, %v", found, err)
	}
}
