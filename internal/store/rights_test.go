package store_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/internal/testcert"
)

// userOf returns the user under which etcd accepts a connection.
func userOf(t *testing.T, c *store.Client) string {
	t.Helper()
	user, err := c.User(long(t))
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func TestTheUserOfAConnectionIsTheOneThatEtcdHasAuthenticated(t *testing.T) {
	ca := testcert.New(t)
	pair, own := ca.Server(t), ca.Client(t, "berth")
	srv := embedtest.New(t, func(c *embed.Config) {
		c.TLS = &embed.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: ca.File}
	})
	cert, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	secure := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}}
	late := &tls.Config{RootCAs: secure.RootCAs, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }}
	always := func(c *tls.Config) func() *tls.Config { return func() *tls.Config { return c } }
	all := map[string]*store.Client{}
	for name, cfg := range map[string]store.Config{
		"certificate": {TLS: always(secure)}, "certificate that is loaded": {TLS: always(late)}, "password": {TLS: always(secure), Username: "ann", Password: "secret"},
	} {
		cfg.Endpoints = []string{srv.Endpoint()}
		all[name] = newClient(t, cfg)
		if user := userOf(t, all[name]); user != "" {
			t.Errorf("by %s: %q, and etcd has no users", name, user)
		}
	}
	ctl, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}, TLS: secure, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	for user, role := range map[string]string{"root": "root", "berth": "some", "ann": "some"} {
		_, err := ctl.UserAdd(long(t), user, "secret")
		_, exists := ctl.RoleAdd(long(t), role)
		_, granted := ctl.UserGrantRole(long(t), user, role)
		if err := errors.Join(err, granted); err != nil {
			t.Fatal(err, exists)
		}
	}
	if _, err := ctl.AuthEnable(long(t)); err != nil {
		t.Fatal(err)
	}
	// Etcd had no password to check before: the next login finds that it has now.
	all["password"] = newClient(t, store.Config{Endpoints: []string{srv.Endpoint()}, TLS: always(secure), Username: "ann", Password: "secret"})
	for name, want := range map[string]string{"certificate": "berth", "certificate that is loaded": "berth", "password": "ann"} {
		if user := userOf(t, all[name]); user != want {
			t.Errorf("by %s: %q, want %q", name, user, want)
		}
	}
}

func TestRightsAddUp(t *testing.T) {
	perm := func(kind authpb.Permission_Type, key, end string) *authpb.Permission {
		return &authpb.Permission{PermType: kind, Key: []byte(key), RangeEnd: []byte(end)}
	}
	for name, c := range map[string]struct {
		held    []*authpb.Permission
		missing int
	}{
		"none":                {nil, 2},
		"all keys":            {[]*authpb.Permission{perm(authpb.READWRITE, "\x00", "\x00")}, 0},
		"from a key on":       {[]*authpb.Permission{perm(authpb.READWRITE, "/b", "\x00")}, 0},
		"the prefix":          {[]*authpb.Permission{perm(authpb.READWRITE, "/b/", "/b0")}, 0},
		"two that touch":      {[]*authpb.Permission{perm(authpb.READWRITE, "/b/m", "/c"), perm(authpb.READWRITE, "/b/", "/b/m")}, 0},
		"two with a gap":      {[]*authpb.Permission{perm(authpb.READWRITE, "/b/n", "/c"), perm(authpb.READWRITE, "/b/", "/b/m")}, 2},
		"the first key alone": {[]*authpb.Permission{perm(authpb.READWRITE, "/b/", "")}, 2},
		"to read":             {[]*authpb.Permission{perm(authpb.READ, "/b/", "/b0")}, 1},
		"to write":            {[]*authpb.Permission{perm(authpb.WRITE, "/b/", "/b0")}, 1},
		"each by itself":      {[]*authpb.Permission{perm(authpb.WRITE, "/b/", "/b0"), perm(authpb.READ, "/", "/c")}, 0},
	} {
		r := store.NewRights("ann", c.held...)
		if missing := r.Missing(store.WriteRights(store.Prefix("/b/"))...); len(missing) != c.missing {
			t.Errorf("%s: missing are %v", name, missing)
		}
	}
	if missing := (store.Rights{}).Missing(store.WriteRights(store.Prefix("/b/"))...); len(missing) > 0 {
		t.Errorf("without users: %v", missing)
	}
}

// What etcd refuses names the user and the key; a requirement names the prefixes.
func TestARefusalNamesTheUserAndTheKey(t *testing.T) {
	srv := withUsers(t)
	as := func(user string) *store.Client {
		return newClient(t, store.Config{Endpoints: []string{srv.Endpoint()}, Username: user, Password: "secret"})
	}
	c := as("berth")
	nested := &pb.TxnRequest{Success: []*pb.RequestOp{store.Put("/berth/k", nil, 0), store.Nest(&pb.TxnRequest{Failure: []*pb.RequestOp{store.DeleteAll("/else/")}})}}
	_, wrote := c.Txn(long(t), nested)
	_, compared := c.Txn(long(t), &pb.TxnRequest{Compare: []*pb.Compare{store.NonePutSince("/else/", 1)}, Success: []*pb.RequestOp{store.Put("/berth/k", nil, 0)}})
	_, read := store.ReadAll(long(t), c, "/else/")
	watch := <-c.Watch(long(t), store.Prefix("/else/"), 1).Messages()
	for says, err := range map[string]error{"write /else/": wrote, "read /else/": errors.Join(compared, read, watch.Err)} {
		mustSay(t, err, store.ErrDenied, `user "berth" of etcd has no right to `+says)
	}
	for _, err := range []error{compared, read, watch.Err} {
		mustSay(t, err, store.ErrDenied, "read /else/")
	}

	if err := store.Require(long(t), c, store.WriteRights(store.Prefix("/berth/a/"))...); err != nil {
		t.Error(err)
	}
	if err := store.Require(long(t), as("root"), store.WriteRights(store.Prefix("/else/"))...); err != nil {
		t.Error(err)
	}
	missing := store.WriteRights(store.Prefix("/else/"), store.Prefix("/berth/"))
	for _, prefix := range []string{"/1", "/2", "/3", "/4"} {
		missing = append(missing, store.ReadRights(store.Prefix(prefix))...)
	}
	mustSay(t, store.Require(long(t), c, missing...),
		store.ErrDenied, `user "berth" of etcd has no right to write /else/, read /1, read /2, read /3 (and 1 more)`)
}

// A narrow user sweeps the guards of its own host, and leaves those of others.
func TestAUserOfAHostSweepsItsOwnGuards(t *testing.T) {
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	defer b.Close()
	keys := store.NewKeys("/b/")
	for _, host := range []string{"a", "b"} {
		if _, err := store.Commit(t.Context(), b, nil, store.Put(keys.Guard(host, "x"), []byte("{}"), 0)); err != nil {
			t.Fatal(err)
		}
	}
	n, err := store.SweepGuards(t.Context(), narrow{b, keys.GuardsAll()}, keys, "b")
	left, unread := store.ReadAll(t.Context(), b, keys.GuardsAll())
	if err != nil || unread != nil || n != 1 || len(left.KVs) != 1 || string(left.KVs[0].Key) != keys.Guard("a", "x") {
		t.Errorf("swept %d, left are %v: %v, %v", n, left.KVs, err, unread)
	}
}

// narrow refuses to read one range.
type narrow struct {
	store.Backend
	prefix string
}

func (n narrow) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if string(r.Key) == n.prefix {
		return nil, store.ErrDenied
	}
	return n.Backend.Range(ctx, r)
}
