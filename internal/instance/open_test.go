package instance_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/authpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
)

func wantCode(t *testing.T, err error, code string, words ...string) {
	t.Helper()
	if err == nil || instance.ErrorCode(err) != code {
		t.Fatalf("got %v of code %s, want %s", err, instance.ErrorCode(err), code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// refused opens and connects, neither of which may succeed.
func refused(t *testing.T, o instance.Options) map[string]error {
	t.Helper()
	errs := map[string]error{}
	c, err := instance.Open(t.Context(), o)
	if err == nil {
		t.Fatal("it opens", c.Leave())
	}
	errs["open"] = err
	b, _, err := instance.Connect(t.Context(), o)
	if err == nil {
		t.Fatal("it connects", b.Close())
	}
	errs["connect"] = err
	return errs
}

func TestOptionsThatMakeNoSenseNameTheField(t *testing.T) {
	good := func() instance.Options { return instance.Options{Endpoints: []string{"127.0.0.1:1"}, Host: "one"} }
	for name, tc := range map[string]struct {
		field  string
		change func(*instance.Options)
	}{
		"no endpoints":                  {"endpoints", func(o *instance.Options) { o.Endpoints = nil }},
		"a host with a path":            {"host", func(o *instance.Options) { o.Host = "a/b" }},
		"an upper-case host":            {"host", func(o *instance.Options) { o.Host = "ONE" }},
		"a long host":                   {"host", func(o *instance.Options) { o.Host = strings.Repeat("h", 64) }},
		"an instance with a path":       {"instance", func(o *instance.Options) { o.Instance = "../x" }},
		"an instance of spaces":         {"instance", func(o *instance.Options) { o.Instance = "  " }},
		"a state directory without one": {"instance", func(o *instance.Options) { o.StateDir = t.TempDir() }},
	} {
		t.Run(name, func(t *testing.T) {
			o := good()
			tc.change(&o)
			for how, err := range refused(t, o) {
				var p *problem.Error
				if !errors.As(err, &p) || p.Code != "invalid" || p.Field != tc.field {
					t.Errorf("%s: %v, want a problem of field %q", how, err, tc.field)
				}
			}
		})
	}
}

func TestAnEtcdThatIsNotThereIsSaidAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	begin := time.Now()
	for how, err := range refused(t, instance.Options{Endpoints: []string{addr}, Host: "one", Registerer: reg}) {
		t.Run(how, func(t *testing.T) { wantCode(t, err, "etcd_unavailable", addr) })
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	if left, err := reg.Gather(); err != nil || len(left) != 0 {
		t.Errorf("%d metrics are left of what was not opened, %v", len(left), err)
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // listens, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err = instance.Open(ctx, instance.Options{Endpoints: []string{l.Addr().String()}, Host: "one"})
	wantCode(t, err, "etcd_unavailable", l.Addr().String())
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
}

// withUsers switches an etcd's users on: root, berth with all rights on /berth/,
// and reader, who may only read there.
func withUsers(t *testing.T) *embed.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("to check a password takes many times as long under the race detector")
	}
	srv := embedtest.New(t)
	ctl, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	for _, user := range []string{"root", "berth", "reader"} {
		must(ctl.UserAdd(ctx, user, "secret"))
		must(ctl.RoleAdd(ctx, user))
		must(ctl.UserGrantRole(ctx, user, user))
	}
	must(ctl.RoleGrantPermission(ctx, "berth", "/berth/", "/berth0", clientv3.PermissionType(authpb.READWRITE)))
	must(ctl.RoleGrantPermission(ctx, "reader", "/berth/", "/berth0", clientv3.PermissionType(authpb.READ)))
	must(ctl.AuthEnable(ctx))
	if err := ctl.Close(); err != nil {
		t.Fatal(err)
	}
	return srv
}

func TestAnEtcdWithUsersIsUsedWithTheLeastOfRights(t *testing.T) {
	srv := withUsers(t)
	as := func(user, password string) instance.Options {
		return instance.Options{Endpoints: []string{srv.Endpoint()}, Host: "one", Username: user, Password: password}
	}
	for _, o := range []instance.Options{as("", ""), as("berth", "guess"), as("unknown", "secret")} {
		for how, err := range refused(t, o) {
			t.Run(o.Username+" "+how, func(t *testing.T) { wantCode(t, err, "etcd_denied", srv.Endpoint()) })
		}
	}
	c, err := instance.Open(t.Context(), as("berth", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	setPool(t, c, "db", 1, time.Minute)
	claim, err := c.Claim(t.Context(), instance.Slots{"db": 1})
	if err != nil {
		t.Fatal(err)
	}

	// A user that may only read is good for looking.
	b, keys, err := instance.Connect(t.Context(), as("reader", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	a := inspect.Snapshot{Backend: b, Keys: keys}
	r, err := a.Read(t.Context())
	if err != nil || len(r.Pools()) != 1 || r.Pools()[0].Claimed != 1 {
		t.Errorf("read: %v", err)
	}
	if hosts, err := a.Hosts(t.Context()); err != nil || len(hosts) != 1 {
		t.Errorf("hosts: %v, %v", hosts, err)
	}
	_, err = a.ChangePool(t.Context(), "db", pool.Change{Paused: new(true)})
	wantCode(t, err, "etcd_denied")
	if _, err := a.Revoke(t.Context(), claim.ID, false); instance.ErrorCode(err) != "etcd_denied" {
		t.Errorf("revoked by a reader: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := claim.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPrefixesKeepInstallationsApart(t *testing.T) {
	srv := embedtest.New(t)
	a := open(t, srv, func(o *instance.Options) { o.Prefix = "/one" })
	b := open(t, srv, func(o *instance.Options) { o.Prefix = "/one/two/" }) // even if one lies in the other
	setPool(t, a, "db", 1, time.Minute)
	if pools, err := b.Pools(t.Context()); err != nil || len(pools) != 0 {
		t.Errorf("seen are %v, %v", pools, err)
	}
	for _, c := range []*instance.Client{a, b} {
		if hosts, err := c.Hosts(t.Context()); err != nil || len(hosts) != 1 {
			t.Errorf("hosts: %v, %v", hosts, err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAStateDirectoryHasOneOwner(t *testing.T) {
	srv := embedtest.New(t)
	dir := t.TempDir()
	fixed := func(o *instance.Options) { o.Instance, o.StateDir = "sidecar", dir }
	c := open(t, srv, fixed)
	begin := time.Now()
	o := instance.Options{Endpoints: []string{srv.Endpoint()}, Host: "one"}
	fixed(&o)
	_, err := instance.Open(t.Context(), o)
	wantCode(t, err, "host_in_use", filepath.Join(dir, "sidecar"))
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	again := open(t, srv, fixed)
	if err := again.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestASecondInstanceOfANameIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits 12 s for the first to end")
	}
	t.Parallel()
	srv := embedtest.New(t)
	named := func(o *instance.Options) { o.Instance = "worker" }
	first := open(t, srv, named)
	o := instance.Options{Endpoints: []string{srv.Endpoint()}, Host: "one"}
	named(&o)
	_, err := instance.Open(t.Context(), o)
	wantCode(t, err, "host_in_use", "one/worker")
	if first.Err() != nil {
		t.Errorf("the first has ended: %v", first.Err())
	}
	setPool(t, first, "db", 1, time.Minute)
	claim, err := first.Claim(t.Context(), instance.Slots{"db": 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := claim.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOneRegistryServesOneClientAfterTheOther(t *testing.T) {
	srv := embedtest.New(t)
	reg := prometheus.NewRegistry()
	for range 2 {
		c := open(t, srv, func(o *instance.Options) { o.Registerer = reg })
		setPool(t, c, "db", 1, time.Minute)
		families, err := reg.Gather()
		if err != nil || len(families) < 5 {
			t.Errorf("%d metrics, %v", len(families), err)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "berth_") {
				t.Errorf("%s does not belong to berth", f.GetName())
			}
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if left, err := reg.Gather(); err != nil || len(left) != 0 {
			t.Errorf("%d metrics are left, %v", len(left), err)
		}
	}
}
