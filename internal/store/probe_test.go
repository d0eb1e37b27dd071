package store_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testcert"
)

// closedPort is an address at which no process listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// probe connects, probes, and returns what the probe said.
func probe(t *testing.T, cfg store.Config) error {
	t.Helper()
	return newClient(t, cfg).Probe(long(t), "/berth/")
}

// mustSay checks the kind of an error and the words that its reader needs.
func mustSay(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("the probe ended with %v, want %v", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the probe ended with %q, want it to say %q", err, w)
		}
	}
}

func TestAProbeOfADeadEndpointNamesIt(t *testing.T) {
	dead := closedPort(t)
	begin := time.Now()
	mustSay(t, probe(t, store.Config{Endpoints: []string{dead}}), store.ErrUnavailable, dead, "connection refused")
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestAProbeOfAFrozenEndpointSaysHowLongItWaited(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for an answer that does not come")
	}
	t.Parallel()
	mustSay(t, probe(t, store.Config{Endpoints: []string{blackHole(t)}}), store.ErrUnavailable, "no answer within 3s")
}

func TestAProbeEndsWithItsContext(t *testing.T) {
	c := newClient(t, store.Config{Endpoints: []string{blackHole(t), blackHole(t)}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	mustSay(t, c.Probe(ctx, "/berth/"), store.ErrUnavailable)
}

func TestAProbeNamesEveryEndpointThatDoesNotAnswer(t *testing.T) {
	one, two := closedPort(t), closedPort(t)
	mustSay(t, probe(t, store.Config{Endpoints: []string{one, two}}), store.ErrUnavailable, one, two)
}

func TestAProbeFindsTheEndpointThatAnswers(t *testing.T) {
	srv := embedtest.New(t)
	c := newClient(t, store.Config{Endpoints: []string{closedPort(t), srv.Endpoint()}})
	if err := c.Probe(long(t), "/berth/"); err != nil {
		t.Fatal(err)
	}
	// All kinds of work are there now: none fails even once.
	id, _, err := c.Grant(long(t), time.Minute)
	if err != nil {
		t.Error(err)
	}
	if _, err := c.Txn(long(t), putReq("/berth/k", "", id)); err != nil {
		t.Error(err)
	}
	watched(t, c.Watch(long(t), "/berth/", 1))
}

// withUsers switches an etcd's users on: root, and berth, who may do everything
// under /berth/.
func withUsers(t *testing.T) *embed.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("to check a password takes many times as long under the race detector")
	}
	srv := embedtest.New(t)
	ctl, ctx := etcdctl(t, srv.Endpoint()), long(t)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range []string{"root", "berth", "other"} {
		must(ctl.UserAdd(ctx, user, "secret"))
		must(ctl.RoleAdd(ctx, user))
		must(ctl.UserGrantRole(ctx, user, user))
	}
	must(ctl.RoleGrantPermission(ctx, "berth", "/berth/", "/berth0", 2)) // read and write
	must(ctl.AuthEnable(ctx))
	return srv
}

func TestAnEtcdWithUsersRefusesOthers(t *testing.T) {
	srv := withUsers(t)
	as := func(user, password string) store.Config {
		return store.Config{Endpoints: []string{srv.Endpoint()}, Username: user, Password: password}
	}
	for name, tc := range map[string]struct {
		cfg  store.Config
		says string
	}{
		"no user":              {as("", ""), "user name is empty"},
		"a wrong password":     {as("berth", "guess"), "authentication failed"},
		"an unknown user":      {as("unknown", "secret"), "authentication failed"},
		"a user with no right": {as("other", "secret"), "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := store.NewClient(tc.cfg)
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
				err = c.Probe(long(t), "/berth/")
			}
			mustSay(t, err, store.ErrDenied, tc.says, srv.Endpoint())
			if store.OutcomeUnknown(err) {
				t.Error("its outcome is unknown")
			}
		})
	}
	c := newClient(t, as("berth", "secret"))
	if err := c.Probe(long(t), "/berth/"); err != nil {
		t.Fatal(err)
	}
	id, _, err := c.Grant(long(t), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Txn(long(t), putReq("/berth/k", "", id)); err != nil {
		t.Error(err)
	}
	if _, err := c.Renew(long(t), id); err != nil {
		t.Error(err)
	}
	if _, err := c.Txn(long(t), putReq("/elsewhere", "", 0)); !errors.Is(err, store.ErrDenied) || store.OutcomeUnknown(err) {
		t.Errorf("a write outside its prefix: %v", err)
	}
}

func TestADeadEndpointKeepsNoUserOut(t *testing.T) {
	srv := withUsers(t)
	c := newClient(t, store.Config{
		Endpoints: []string{closedPort(t), srv.Endpoint(), closedPort(t)}, Username: "berth", Password: "secret",
	})
	begin := time.Now()
	if err := c.Probe(long(t), "/berth/"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("it took %s", took)
	}
	until(t, func(ctx context.Context) error { _, err := c.Txn(ctx, putReq("/berth/k", "", 0)); return err })
	watched(t, c.Watch(long(t), "/berth/", 1))
}

func TestWrongTLSIsUnavailableAndSaysWhy(t *testing.T) {
	authority := testcert.New(t)
	pair := authority.Server(t)
	secure := embedtest.New(t, func(c *embed.Config) {
		c.TLS = &embed.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: authority.File}
	})
	plain := embedtest.New(t)
	pem, err := os.ReadFile(authority.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	own := authority.Client(t, "berth")
	cert, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	good := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}}
	always := func(c *tls.Config) func() *tls.Config { return func() *tls.Config { return c } }
	for name, tc := range map[string]struct {
		endpoint string
		tls      func() *tls.Config
		says     string
	}{
		"an unknown authority": {secure.Endpoint(), always(&tls.Config{}), "unknown authority"},
		"no certificate":       {secure.Endpoint(), always(&tls.Config{RootCAs: roots}), ""},
		"plain text to TLS":    {strings.Replace(secure.Endpoint(), "https", "http", 1), nil, ""},
		"TLS to plain text":    {strings.Replace(plain.Endpoint(), "http", "https", 1), always(good), "handshake"},
	} {
		t.Run(name, func(t *testing.T) {
			mustSay(t, probe(t, store.Config{Endpoints: []string{tc.endpoint}, TLS: tc.tls}), store.ErrUnavailable, tc.says)
		})
	}
	if err := probe(t, store.Config{Endpoints: []string{secure.Endpoint()}, TLS: always(good)}); err != nil {
		t.Errorf("with the right certificates: %v", err)
	}
}

// Each connection is made with the authorities and the certificate of now.
func TestCertificatesOfARunningClientAreReplaced(t *testing.T) {
	one, two := testcert.New(t), testcert.New(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	serve := func(a *testcert.Authority, pair testcert.Pair) {
		t.Helper()
		for name, target := range map[string]string{"ca": a.File, "cert": pair.CertFile, "key": pair.KeyFile} {
			_ = os.Remove(at(name)) // there is none at first
			if err := os.Symlink(target, at(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var current atomic.Pointer[tls.Config]
	accept := func(a *testcert.Authority) {
		t.Helper()
		pem, err := os.ReadFile(a.File)
		if err != nil {
			t.Fatal(err)
		}
		own := a.Client(t, "berth")
		cert, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		conf := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{cert}}
		conf.RootCAs.AppendCertsFromPEM(pem)
		current.Store(conf)
	}
	serve(one, one.Server(t))
	accept(one)
	m := embedtest.Cluster(t, 1, func(c *embed.Config) {
		c.TLS = &embed.TLS{CertFile: at("cert"), KeyFile: at("key"), ClientCAFile: at("ca")}
	})
	c, err := store.NewClient(store.Config{Endpoints: m.Endpoints(), TLS: current.Load})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	read := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return c.Probe(ctx, "/berth/")
	}
	works := func(ctx context.Context) error { return c.Probe(ctx, "/berth/") }
	until(t, works)
	m.Stop(0)
	serve(two, two.Server(t))
	m.Restart(0)
	mustSay(t, read(), store.ErrUnavailable, "")
	accept(two)
	until(t, works)
	// A certificate of the right authority for another name is none.
	m.Stop(0)
	serve(two, two.Server(t, "etcd.example"))
	m.Restart(0)
	mustSay(t, read(), store.ErrUnavailable, "")
	m.Stop(0)
	serve(two, two.Server(t))
	m.Restart(0)
	until(t, works)
}
