package store_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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
	watched(t, c.Watch(long(t), store.Prefix("/berth/"), 1))
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
	watched(t, c.Watch(long(t), store.Prefix("/berth/"), 1))
}

// poolOf returns a pool with the authority of a file.
func poolOf(t *testing.T, a *testcert.Authority) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(a.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return roots
}

// shown returns how to speak TLS with the servers of an authority, and to show a certificate unless it is
// empty.
func shown(t *testing.T, a *testcert.Authority, own testcert.Pair) func() *tls.Config {
	t.Helper()
	conf := &tls.Config{RootCAs: poolOf(t, a)}
	if own.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return func() *tls.Config { return conf }
}

// secureEtcd starts an etcd that wants client certificates of an authority.
func secureEtcd(t *testing.T, a *testcert.Authority, pair testcert.Pair) *embed.Server {
	t.Helper()
	return embedtest.New(t, func(c *embed.Config) {
		c.TLS = &embed.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: a.File}
	})
}

// A certificate that is not accepted, here or by etcd, stays so while a command waits. A wrong scheme, or
// another process at the address, is named, but may be a mistake that an operator corrects.
func TestAProbeSaysWhyNoConnectionIsPossible(t *testing.T) {
	t.Parallel()
	authority, other := testcert.New(t), testcert.New(t)
	secure, plain := secureEtcd(t, authority, authority.Server(t)), embedtest.New(t)
	expired := secureEtcd(t, authority, authority.Expired(t))
	elsewhere := secureEtcd(t, authority, authority.Server(t, "etcd.example"))
	address := func(s *embed.Server) string { _, at, _ := strings.Cut(s.Endpoint(), "://"); return at }
	good, noOwn := shown(t, authority, authority.Client(t, "berth")), shown(t, authority, testcert.Pair{})
	for name, tc := range map[string]struct {
		endpoint string
		tls      func() *tls.Config
		kind     error
		says     string
	}{
		"an unknown authority":             {secure.Endpoint(), shown(t, other, other.Client(t, "berth")), store.ErrInsecure, "the authority that signed the certificate of this etcd is unknown: name its file in cacert"},
		"authorities of the system":        {secure.Endpoint(), nil, store.ErrInsecure, "the authority that signed the certificate of this etcd is unknown"},
		"a name not in the certificate":    {elsewhere.Endpoint(), good, store.ErrInsecure, "the certificate of this etcd is for etcd.example, not for 127.0.0.1"},
		"an expired certificate of etcd":   {expired.Endpoint(), good, store.ErrInsecure, `the certificate "expired" of this etcd has expired at `},
		"no certificate":                   {secure.Endpoint(), noOwn, store.ErrInsecure, "this etcd wants a client certificate, and none is set: name its files in cert and key"},
		"an expired certificate":           {secure.Endpoint(), shown(t, authority, authority.Expired(t)), store.ErrInsecure, `the client certificate "expired" in cert has expired at `},
		"a certificate of another one":     {secure.Endpoint(), shown(t, authority, other.Client(t, "visitor")), store.ErrInsecure, `this etcd does not know the authority that signed the client certificate "visitor"`},
		"plain text to TLS":                {"http://" + address(secure), nil, store.ErrUnavailable, address(secure) + ": this etcd wants TLS: begin its endpoint with https://"},
		"no scheme, but TLS":               {address(secure), nil, store.ErrUnavailable, address(secure) + ": this etcd wants TLS: begin its endpoint with https://"},
		"TLS to plain text":                {"https://" + address(plain), good, store.ErrUnavailable, address(plain) + ": this etcd speaks no TLS: begin its endpoint with http://"},
		"a server of HTTP/1.1":             {"http://" + says(t, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), nil, store.ErrUnavailable, " speaks HTTP/1.1: that is not an etcd"},
		"an old server of HTTP":            {says(t, "<!DOCTYPE HTML>\n<html>"), nil, store.ErrUnavailable, " speaks HTTP/1: that is not an etcd"},
		"a server of HTTP/1.1 without TLS": {"https://" + says(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), good, store.ErrUnavailable, " speaks HTTP/1.1: that is not an etcd"},
		"a server of SSH":                  {says(t, "SSH-2.0-OpenSSH_9.2\r\n"), nil, store.ErrUnavailable, " speaks another protocol: that is not an etcd"},
		"a port that hangs up":             {says(t, ""), nil, store.ErrUnavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			mustSay(t, probe(t, store.Config{Endpoints: []string{tc.endpoint}, TLS: tc.tls}), tc.kind, tc.says)
		})
	}
	if err := probe(t, store.Config{Endpoints: []string{secure.Endpoint()}, TLS: good}); err != nil {
		t.Errorf("with the right certificates: %v", err)
	}
}

// says listens at an address, and returns it. Each connection gets a text, and is closed.
func says(t *testing.T, text string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096)) // so that it is closed without a reset
			_, _ = conn.Write([]byte(text))
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

func TestWaitingHelpsIfOneEndpointCouldAnswerLater(t *testing.T) {
	t.Parallel()
	authority, other := testcert.New(t), testcert.New(t)
	secure, dead := secureEtcd(t, authority, authority.Server(t)), "https://"+closedPort(t)
	unknown, good := shown(t, other, testcert.Pair{}), shown(t, authority, authority.Client(t, "berth"))
	for name, endpoints := range map[string][]string{"the first": {secure.Endpoint(), dead}, "the last": {dead, secure.Endpoint()}} {
		t.Run(name, func(t *testing.T) {
			mustSay(t, probe(t, store.Config{Endpoints: endpoints, TLS: unknown}), store.ErrUnavailable, "unknown", "connection refused")
			if err := probe(t, store.Config{Endpoints: endpoints, TLS: good}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnyOfSeveralMembersWithAWrongPasswordIsRefusedByAll(t *testing.T) {
	srv := withUsers(t)
	wrong := func(endpoints ...string) store.Config {
		return store.Config{Endpoints: endpoints, Username: "berth", Password: "guess"}
	}
	again := strings.Replace(srv.Endpoint(), "127.0.0.1", "localhost", 1)
	mustSay(t, probe(t, wrong(srv.Endpoint(), again)), store.ErrDenied, srv.Endpoint(), again, `etcd has no user "berth" with this password`)
	mustSay(t, probe(t, wrong(srv.Endpoint(), closedPort(t))), store.ErrUnavailable, `no user "berth" with this password`, "connection refused")
}

func TestAProbeNamesTheEndpointThatItWaitsFor(t *testing.T) {
	srv, dead := embedtest.New(t), closedPort(t)
	var waits []string
	if err := probe(t, store.Config{Endpoints: []string{dead, srv.Endpoint()}, OnWait: func(why error) { waits = append(waits, why.Error()) }}); err != nil {
		t.Fatal(err)
	}
	if last := waits[len(waits)-1]; !strings.Contains(last, dead+": connection refused; "+srv.Endpoint()+" has not answered yet") {
		t.Errorf("it waited for %q", last)
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
	refused := func(ctx context.Context) error {
		if err := c.Probe(ctx, "/berth/"); !errors.Is(err, store.ErrInsecure) {
			return fmt.Errorf("%w: the probe ended with %v", store.ErrUnavailable, err)
		}
		return nil
	}
	works := func(ctx context.Context) error {
		if err := c.Probe(ctx, "/berth/"); err != nil {
			return fmt.Errorf("%w: the probe ended with %v", store.ErrUnavailable, err)
		}
		return nil
	}
	until(t, works)
	m.Stop(0)
	serve(two, two.Server(t))
	m.Restart(0)
	until(t, refused)
	accept(two)
	until(t, works)
	// A certificate of the right authority for another name is none.
	m.Stop(0)
	serve(two, two.Server(t, "etcd.example"))
	m.Restart(0)
	until(t, refused)
	m.Stop(0)
	serve(two, two.Server(t))
	m.Restart(0)
	until(t, works)
}
