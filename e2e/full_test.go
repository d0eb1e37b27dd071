package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// fillUp writes elsewhere in etcd until it takes no more.
func fillUp(t testing.TB, etcd *clientv3.Client) {
	t.Helper()
	junk := strings.Repeat("x", 256<<10)
	for i := 0; ; i++ {
		_, err := etcd.Put(t.Context(), fmt.Sprintf("/junk/%d", i), junk)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return
		}
		if err != nil || i > 1000 {
			t.Fatalf("etcd does not fill up: %v", err)
		}
	}
}

// makeRoom does what etcd's operator does: delete, compact, defragment, disarm.
func freeSpace(t testing.TB, etcd *clientv3.Client, w *witness) {
	t.Helper()
	ctx := t.Context()
	del, err := etcd.Delete(ctx, "/junk/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	w.now() // the history is read before it goes
	if _, err := etcd.Compact(ctx, del.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Defragment(ctx, etcd.Endpoints()[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
}

func TestAFullEtcdTakesReleasesAndGoesOnWhenItHasSpace(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t, func(c *embed.Config) { c.QuotaBytes = 4 << 20 })
	etcd := etcdctl(t, clientv3.Config{Endpoints: []string{srv.Endpoint()}})
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "db", 6, leaseOf(10*time.Second))
	var held []*instance.Claim
	for i := range 6 {
		held = append(held, claim(t, hosts[i%3], fmt.Sprintf("held%d", i), instance.Slots{"db": 1}))
	}
	waiter := begin(t, t.Context(), hosts[1], "waiter", instance.Slots{"db": 2})
	w.until("one waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	fillUp(t, etcd)
	// What only deletes goes on: many releases of several hosts.
	for i := range 5 {
		release(t, held[i])
	}
	w.until("five slots are free", func(h *History) bool { return h.Used("db") == 1 })
	// What has to write waits, or gets the reason why it can't.
	late := begin(t, t.Context(), hosts[2], "late", instance.Slots{"db": 1})
	_, err := hosts[0].Claim(t.Context(), instance.Slots{"db": 1}, instance.WithWait(0))
	if instance.ErrorCode(err) != "etcd_full" {
		t.Errorf("a claim that does not wait: %v", err)
	}
	if _, err := operator(t, []string{srv.Endpoint()}).SetPool(t.Context(), "db", limitOf(7)); instance.ErrorCode(err) != "etcd_full" {
		t.Errorf("a change of a pool: %v", err)
	}
	if !waiter.waiting() || !late.waiting() {
		t.Errorf("waiters have an answer: %v, %v", waiter.err, late.err)
	}
	// Leases are renewed: what is held stays held.
	if held[5].Context().Err() != nil {
		t.Errorf("%s is lost: %v", held[5], held[5].Err())
	}

	freeSpace(t, etcd, w)
	release(t, waiter.granted())
	release(t, late.granted())
	release(t, claim(t, hosts[0], "after", instance.Slots{"db": 5}))
	release(t, held[5])
	w.until("nothing is left", func(h *History) bool { return h.Held() == 0 && len(h.Waiting()) == 0 })
}

// A client can't announce itself in a full etcd, and says so; one that is there
// already gives back what it has when it closes.
func TestAFullEtcdIsNamedToWhoComesAndLetsGoWhoLeaves(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t, func(c *embed.Config) { c.QuotaBytes = 4 << 20 })
	etcd := etcdctl(t, clientv3.Config{Endpoints: []string{srv.Endpoint()}})
	w := watch(t, embedtest.Client(t, srv))
	c, err := instance.Open(t.Context(), options([]string{srv.Endpoint()}, "host0"))
	if err != nil {
		t.Fatal(err)
	}
	spec(t, []*instance.Client{c}, "db", 1, short)
	claim(t, c, "held", instance.Slots{"db": 1})
	fillUp(t, etcd)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	w.until("the slot is free", func(h *History) bool { return h.Held() == 0 })
	few, enough := context.WithTimeout(t.Context(), 5*time.Second)
	defer enough()
	if _, err := instance.Open(few, options([]string{srv.Endpoint()}, "host1")); instance.ErrorCode(err) != "etcd_full" {
		t.Errorf("open: %s: %v", instance.ErrorCode(err), err)
	}
	freeSpace(t, etcd, w)
	c = open(t, []string{srv.Endpoint()}, "host1")
	release(t, claim(t, c, "again", instance.Slots{"db": 1}))
}
