package instance_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/internal/cluster"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testlog"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// guarded is an etcd with users.
type guarded struct {
	t         *testing.T
	srv       *embed.Server
	keys      wire.Keys
	passwords map[string]string
}

// withRoles is an etcd whose users have roles, given as names with the texts of roles. There is also root.
func withRoles(t *testing.T, users map[string]string) *guarded {
	t.Helper()
	if testing.Short() {
		t.Skip("it is about the rights of users of etcd: there is nothing to see for the race detector")
	}
	g := &guarded{t: t, srv: embedtest.New(t), keys: wire.Keys{Keys: store.NewKeys(store.DefaultPrefix)}, passwords: map[string]string{}}
	c, err := cluster.Dial(cluster.Config{Endpoints: []string{g.srv.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	all := []cluster.User{{Name: "root", Roles: []string{store.RootRole}, Password: true}}
	var roles []cluster.Role
	for name, texts := range users {
		u := cluster.User{Name: name, Password: true}
		for text := range strings.SplitSeq(texts, ",") {
			role, err := g.keys.Keys.Role(text)
			if err != nil {
				t.Fatal(err)
			}
			of := cluster.Role{Name: role.Name}
			for _, keys := range role.Reads {
				of.Reads = append(of.Reads, cluster.KeyRange(keys))
			}
			for _, keys := range role.Writes {
				of.Writes = append(of.Writes, cluster.KeyRange(keys))
			}
			u.Roles, roles = append(u.Roles, role.Name), append(roles, of)
		}
		all = append(all, u)
	}
	set, err := c.SetUsers(t.Context(), all, roles)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range set.Users {
		g.passwords[u.Name] = u.Password
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	ctl, err := clientv3.New(clientv3.Config{Endpoints: []string{g.srv.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	if _, err := ctl.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// options are those of an instance of a user on a host.
func (g *guarded) options(user, host string, change ...func(*instance.Options)) instance.Options {
	o := instance.Options{Endpoints: []string{g.srv.Endpoint()}, Host: host, Username: user, Password: g.passwords[user], Role: "sidecar"}
	for _, f := range change {
		f(&o)
	}
	return o
}

func (g *guarded) open(user, host string, change ...func(*instance.Options)) *instance.Client {
	g.t.Helper()
	c, err := instance.Open(g.t.Context(), g.options(user, host, change...))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { closed(g.t, c) })
	return c
}

func (g *guarded) operator(user string) inspect.Snapshot {
	g.t.Helper()
	b, keys, err := instance.Connect(g.t.Context(), g.options(user, "operator"))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = b.Close() })
	return inspect.Snapshot{Backend: b, Keys: keys}
}

func (g *guarded) backend(user string) *store.Client {
	g.t.Helper()
	b, err := store.NewClient(store.Config{Endpoints: []string{g.srv.Endpoint()}, Username: user, Password: g.passwords[user]})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = b.Close() })
	return b
}

// coordinator runs a coordinator until the test ends, and returns when it leads.
func (g *guarded) coordinator(user, host string) {
	g.t.Helper()
	c := coordinator.New(coordinator.Config{Backend: g.backend(user), Keys: g.keys.Keys, Host: host, CompactInterval: -1})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	g.t.Cleanup(func() {
		cancel()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "canceled") {
			g.t.Errorf("the coordinator has ended with %v", err)
		}
	})
	until(g.t, "it leads", c.Leading)
}

// role returns who dispatches, as HOST/INSTANCE, empty for nobody.
func (g *guarded) role() string {
	g.t.Helper()
	resp, err := g.root().Range(g.t.Context(), &pb.RangeRequest{Key: []byte(g.keys.Role())})
	if err != nil {
		g.t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return ""
	}
	r, err := wire.DecodeRole(g.keys.Role(), resp.Kvs[0].Value)
	if err != nil {
		g.t.Fatal(err)
	}
	return r.Host + "/" + r.Instance
}

func (g *guarded) root() *store.Client { return g.backend("root") }

func (g *guarded) pool(name string, limit int) {
	g.t.Helper()
	a := g.operator("operator")
	if _, err := a.SetPool(g.t.Context(), name, pool.Change{Limit: &limit}); err != nil {
		g.t.Fatal(err)
	}
}

// answer is a claim that was asked for, or why it was refused.
type answer struct {
	*instance.Claim
	err error
}

func (g *guarded) asks(c *instance.Client, id string, slots instance.Slots, opts ...instance.ClaimOption) <-chan answer {
	to := make(chan answer, 1)
	go func() {
		claim, err := c.Claim(g.t.Context(), slots, append(opts, instance.WithID(id), instance.WithWait(time.Minute))...)
		to <- answer{claim, err}
	}()
	return to
}

func (g *guarded) waits(c *instance.Client, id string, slots instance.Slots) <-chan answer {
	g.t.Helper()
	to := g.asks(c, id, slots)
	until(g.t, id+" waits", func() bool {
		resp, err := g.root().Range(g.t.Context(), &pb.RangeRequest{Key: []byte(g.keys.PendingAll()), RangeEnd: store.RangeEnd(g.keys.PendingAll())})
		return err == nil && len(resp.Kvs) > 0
	})
	return to
}

func (g *guarded) release(c *instance.Claim) {
	g.t.Helper()
	if err := c.Release(g.t.Context()); err != nil {
		g.t.Error(err)
	}
}

func (g *guarded) granted(a answer) *instance.Claim {
	g.t.Helper()
	if a.err != nil {
		g.t.Fatal(a.err)
	}
	return a.Claim
}

// Each host has a user of its own. Who may dispatch does; if nobody may, each serves itself.
func TestClaimsOfHostsWithUsersOfTheirOwn(t *testing.T) {
	for name, tc := range map[string]struct {
		more        string // roles of hosts
		coordinator bool
		dispatches  string
	}{
		"a coordinator dispatches": {"", true, "c/coordinator"},
		"a host dispatches":        {",dispatcher", false, "two/sidecar"},
		"nobody may dispatch":      {"", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := withRoles(t, map[string]string{
				"one": "host:one,pool:db,pool:gpu" + tc.more, "two": "host:two,pool:db,pool:gpu" + tc.more,
				"operator": "operator", "c": "coordinator:c",
			})
			g.pool("db", 1)
			g.pool("gpu", 5000)
			named := func(o *instance.Options) { o.Instance = "sidecar" }
			one, two := g.open("one", "one", named), g.open("two", "two", named)
			if tc.coordinator {
				g.coordinator("c", "c")
			}
			// One slot by its number, and so many that they are in blocks.
			held := claimed(t, one, instance.Slots{"db": 1, "gpu": 4000})
			next := g.waits(two, "next", instance.Slots{"db": 1, "gpu": 2000})
			if tc.dispatches != "" {
				until(t, "that one dispatches", func() bool { return g.role() == tc.dispatches })
			}
			last := g.asks(one, "last", instance.Slots{"db": 1})
			g.release(held)
			for range 2 {
				select {
				case a := <-next:
					next = nil
					g.release(g.granted(a))
				case a := <-last:
					last = nil
					g.release(g.granted(a))
				}
			}
			full := claimed(t, one, instance.Slots{"db": 1})
			if _, err := two.Claim(t.Context(), instance.Slots{"db": 1}, instance.WithWait(0)); instance.ErrorCode(err) != "no_capacity" {
				t.Errorf("a claim that does not wait: %v", err)
			}
			g.release(full)
			if got := g.role(); tc.dispatches == "" && got != "" {
				t.Errorf("%s dispatches", got)
			}

			// An operator revokes a claim by force, and deletes a pool that others wait for.
			forced := claimed(t, one, instance.Slots{"db": 1}, instance.WithID("forced"))
			refused := g.waits(two, "refused", instance.Slots{"db": 1})
			a := g.operator("operator")
			if err := a.DeletePool(t.Context(), "db", nil); err != nil {
				t.Error(err)
			}
			if a := <-refused; instance.ErrorCode(a.err) != "pool_not_found" {
				t.Errorf("the pool was deleted: %s: %v", instance.ErrorCode(a.err), a.err)
			}
			if _, err := a.Revoke(t.Context(), "forced", true); err != nil {
				t.Error(err)
			}
			<-forced.Context().Done()
			wantCode(t, forced.Err(), "claim_lost")
		})
	}
}

// A process says at its start what it may not.
func TestAProcessSaysWhatItMayNot(t *testing.T) {
	g := withRoles(t, map[string]string{"one": "host:one", "may": "host:one,dispatcher", "viewer": "viewer", "operator": "operator"})
	g.pool("db", 1)
	for user, want := range map[string]bool{"one": true, "may": false} {
		log := testlog.New(t)
		c, err := instance.Open(t.Context(), g.options(user, "one", func(o *instance.Options) {
			o.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info})
		}))
		if err != nil {
			t.Fatal(err)
		}
		says := strings.Contains(log.String(), `this process can't dispatch claims: run a coordinator, which can: `) &&
			strings.Contains(log.String(), fmt.Sprintf(`user \"%s\" of etcd has no right to read /berth/offers/ to /berth/pools0, write /berth/offers/, write /berth/pending/, write /berth/dispatcher/`, user))
		if says != want {
			t.Errorf("the log of %s:\n%s", user, log.String())
		}
		// The right to a pool is checked with each claim.
		for _, opt := range []instance.ClaimOption{instance.WithWait(0), instance.WithWait(time.Minute)} {
			_, err = c.Claim(t.Context(), instance.Slots{"db": 1}, opt)
			wantCode(t, err, "etcd_denied", `user "`+user+`" of etcd has no right to write `+g.keys.Number("db", 0))
		}
		closed(t, c)
	}
	for user, want := range map[string]string{
		"viewer": `user "viewer" of etcd has no right to write /berth/hosts/two/`,
		"one":    `user "one" of etcd has no right to write /berth/hosts/two/`,
	} {
		_, err := instance.Open(t.Context(), g.options(user, "two"))
		wantCode(t, err, "etcd_denied", want)
	}
}

// What is of other hosts and pools is refused.
func TestARoleIsRefusedWhatIsOfOthers(t *testing.T) {
	g := withRoles(t, map[string]string{
		"host": "host:one", "pool": "pool:db", "dispatcher": "dispatcher", "viewer": "viewer", "operator": "operator", "runs": "runs",
		"coordinator": "coordinator:one", "source": "source:s@one", "pools": "pool:*", "hosts": "host:*",
	})
	k := g.keys
	demand := func(pool string) string { return k.Demand(wire.DemandKey{Pool: pool, Host: "one", Instance: "i"}) }
	offer := func(host string) string { return k.Offer(wire.OfferKey{Host: host, Instance: "i"}) }
	of := func(pool string) []string {
		return []string{k.Number(pool, 7), k.Block(pool, 1, 2), demand(pool), k.Pending(pool)}
	}
	host := []string{offer("one"), k.Guard("one", "i"), k.Guard("one", "i~demands")}
	other := []string{offer("two"), k.Guard("two", "i")}
	dispatch := []string{k.Role(), k.Mark()}
	specs := []string{k.Spec("db"), k.Layout()}
	all := append(append(append(append(append(of("db"), of("db2")...), host...), other...), dispatch...), append(specs, k.ID("a"))...)
	cat := func(parts ...[]string) (keys []string) {
		for _, p := range parts {
			keys = append(keys, p...)
		}
		return keys
	}
	pending := []string{k.Pending("db"), k.Pending("db2")}
	offers := []string{offer("one"), offer("two")}
	pools := cat(of("db"), of("db2"), specs)
	id := []string{k.ID("a")}
	for user, may := range map[string][]string{
		"host": cat(host, id), "hosts": cat(host, other, id), "pool": of("db"), "pools": pools,
		"dispatcher": cat(offers, pending, dispatch), "viewer": nil, "runs": nil, "source": nil, "operator": cat(pools, id),
		"coordinator": cat(of("db"), of("db2"), specs[:1], offers, dispatch, id, host[1:], other[1:]),
	} {
		t.Run(user, func(t *testing.T) {
			b := g.backend(user)
			for _, key := range all {
				_, err := b.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, nil, 0)}})
				switch is := slices.Contains(may, key); {
				case is && err != nil:
					t.Errorf("put %s: %v", key, err)
				case !is && (!errors.Is(err, store.ErrDenied) || !strings.Contains(err.Error(), `user "`+user+`" of etcd has no right to write `+key)):
					t.Errorf("put %s: %v", key, err)
				}
			}
		})
	}
}

// Claims that wait share a lease, whose renewals etcd refuses when the right to one of their pools is withdrawn. The others wait
// on, in their places, and that one does when the right is given back.
func TestARightThatIsWithdrawnKeepsThatPoolOnlyFromBeingClaimed(t *testing.T) {
	t.Parallel()
	g := withRoles(t, map[string]string{"one": "host:one,pool:db,pool:gpu,dispatcher", "two": "host:two,pool:db,pool:gpu", "operator": "operator"})
	g.pool("db", 1)
	g.pool("gpu", 1)
	one, two := g.open("one", "one"), g.open("two", "two")
	holds := map[string]*instance.Claim{}
	for _, name := range []string{"db", "gpu"} {
		holds[name] = claimed(t, two, instance.Slots{name: 1})
	}
	db, gpu := g.waits(one, "a", instance.Slots{"db": 1}), g.waits(one, "b", instance.Slots{"gpu": 1})
	demands := func(pool string) (lease int64) {
		key := g.keys.DemandsAll(pool)
		resp, err := g.root().Range(t.Context(), &pb.RangeRequest{Key: []byte(key), RangeEnd: store.RangeEnd(key)})
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Kvs) == 0 {
			return 0
		}
		return resp.Kvs[0].Lease
	}
	var on int64
	until(t, "both wait", func() bool { on = demands("gpu"); return on != 0 && demands("db") == on })
	role, err := g.keys.Keys.Role("pool:db")
	if err != nil {
		t.Fatal(err)
	}
	ctl, err := clientv3.New(clientv3.Config{Endpoints: []string{g.srv.Endpoint()}, Username: "root", Password: g.passwords["root"], Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	if _, err := ctl.UserRevokeRole(t.Context(), "one", role.Name); err != nil {
		t.Fatal(err)
	}
	until(t, "the other waits on another lease", func() bool { is := demands("gpu"); return is != 0 && is != on && demands("db") == 0 })
	g.release(holds["gpu"])
	g.release(g.granted(<-gpu))
	g.release(holds["db"])
	if _, err := ctl.UserGrantRole(t.Context(), "one", role.Name); err != nil {
		t.Fatal(err)
	}
	g.release(g.granted(<-db))
}
