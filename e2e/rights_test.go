package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
)

// These tests run alone: to log in costs etcd much, and a user logs in for each
// renewal of a lease.

// guarded is an etcd with users: root, "berth" who may read and write berth's
// keys and no others, "viewer" who may read them, and "other" who may nothing.
func guarded(t testing.TB) *embed.Server {
	t.Helper()
	srv := embedtest.New(t)
	etcd := etcdctl(t, clientv3.Config{Endpoints: []string{srv.Endpoint()}})
	ctx := t.Context()
	end := string(store.RangeEnd(keys.Prefix()))
	for _, do := range []func() error{
		func() error { _, err := etcd.RoleAdd(ctx, "berth"); return err },
		func() error {
			_, err := etcd.RoleGrantPermission(ctx, "berth", keys.Prefix(), end, clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := etcd.RoleAdd(ctx, "viewer"); return err },
		func() error {
			_, err := etcd.RoleGrantPermission(ctx, "viewer", keys.Prefix(), end, clientv3.PermissionType(clientv3.PermRead))
			return err
		},
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	for user, role := range map[string]string{"root": "root", "berth": "berth", "viewer": "viewer", "other": ""} {
		if _, err := etcd.UserAdd(ctx, user, secret); err != nil {
			t.Fatal(err)
		}
		if role != "" {
			if _, err := etcd.UserGrantRole(ctx, user, role); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := etcd.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}
	return srv
}

const secret = "a secret"

func as(user string) func(*instance.Options) {
	return func(o *instance.Options) { o.Username, o.Password = user, secret }
}

// asBackend is a connection of the test's own.
func asBackend(t testing.TB, srv *embed.Server, user string) *store.Client {
	t.Helper()
	c, err := store.NewClient(store.Config{Endpoints: []string{srv.Endpoint()}, Username: user, Password: secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestRightsOnThePrefixAreAllThatIsNeeded(t *testing.T) {
	srv := guarded(t)
	w := watch(t, asBackend(t, srv, "root"))
	endpoints := []string{srv.Endpoint()}
	dir := t.TempDir()
	first, err := instance.Open(t.Context(), options(endpoints, "host0", as("berth"), fixed(dir)))
	if err != nil {
		t.Fatal(err)
	}
	second := open(t, endpoints, "host1", as("berth"))
	hosts := []*instance.Client{first, second}
	spec(t, hosts, "a", 2)
	spec(t, hosts, "b", 1)
	held := claim(t, first, "held", instance.Slots{"a": 1, "b": 1})
	next := begin(t, t.Context(), second, "next", instance.Slots{"b": 1})
	w.until("one waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	// A process that is restarted, an operator who reads, one who revokes.
	if err := first.Leave(); err != nil {
		t.Fatal(err)
	}
	first = open(t, endpoints, "host0", as("berth"), fixed(dir))
	if cl, err := first.Lookup(t.Context(), "held"); err != nil || cl == nil || cl.Fence() != held.Fence() {
		t.Errorf("the claim was not taken over: %v, %v", cl, err)
	}
	if r, err := operator(t, endpoints, as("viewer")).Read(t.Context()); err != nil || len(r.Pools()) != 2 || len(r.Verify()) > 0 {
		t.Errorf("the viewer reads %v, %v", r, err)
	}
	if _, err := operator(t, endpoints, as("berth")).Revoke(t.Context(), "held", true); err != nil {
		t.Error(err)
	}
	release(t, next.granted())
	w.until("nothing is left", func(h *History) bool { return h.Held() == 0 && len(h.Waiting()) == 0 })
}

func TestAUserWithoutRightsGetsThatError(t *testing.T) {
	srv := guarded(t)
	endpoints := []string{srv.Endpoint()}
	for name, c := range map[string]struct {
		change func(*instance.Options)
		says   string
	}{
		"without a user":        {func(*instance.Options) {}, "user"},
		"with another password": {func(o *instance.Options) { o.Username, o.Password = "berth", "guessed" }, "authentication failed"},
		"another user":          {as("other"), "permission denied"},
		"who may only read":     {as("viewer"), `user "viewer" of etcd has no right to write`},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			_, err := instance.Open(t.Context(), options(endpoints, "host", c.change))
			if instance.ErrorCode(err) != "etcd_denied" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", instance.ErrorCode(err), err)
			}
			t.Logf("after %s: %v", time.Since(begin), err)
		})
	}
	t.Run("who may only read and wants to change", func(t *testing.T) {
		if _, err := operator(t, endpoints, as("viewer")).SetPool(t.Context(), "a", limitOf(1)); instance.ErrorCode(err) != "etcd_denied" {
			t.Errorf("%s: %v", instance.ErrorCode(err), err)
		}
	})
}

// etcd pays for each key on a lease when a user who is not root puts another:
// however much is held, no lease has many.
func TestNoLeaseCarriesManyKeys(t *testing.T) {
	const claims = 900
	srv := guarded(t)
	w := watch(t, asBackend(t, srv, "root"))
	c := open(t, []string{srv.Endpoint()}, "host0", as("berth"))
	spec(t, []*instance.Client{c}, "db", 1000)
	var line []*pending
	for i := range claims {
		line = append(line, begin(t, t.Context(), c, fmt.Sprintf("c%d", i), instance.Slots{"db": 1}))
	}
	var answers answers
	for _, p := range line {
		answers.note(p.granted())
	}
	answers.judge(w)
	w.look(func(h *History) {
		if n := h.MostKeys(); n > lease.KeysPerLease {
			t.Errorf("a lease carried %d keys, allowed are %d", n, lease.KeysPerLease)
		}
	})
	for _, p := range line {
		release(t, p.granted())
	}
}

// Users log in at every member. One that is dead must not keep them out.
func TestADeadMemberKeepsNoUserOut(t *testing.T) {
	srv := guarded(t)
	dead := "http://" + freeAddress(t)
	c := open(t, []string{dead, srv.Endpoint()}, "host0", as("berth"))
	spec(t, []*instance.Client{c}, "db", 1)
	release(t, claim(t, c, "one", instance.Slots{"db": 1}))
}
