package embed_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testcert"
)

// answer bounds a request to a server that runs.
const answer = 30 * time.Second

func put(t *testing.T, c store.Backend, key, value string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answer)
	defer cancel()
	resp, err := c.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte(value), 0)}})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return resp.Header.Revision
}

func get(t *testing.T, c store.Backend, key string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answer)
	defer cancel()
	resp, err := c.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}

func TestServerAnswersAtTheEndpointItTells(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "etcd.sock")
	for name, tc := range map[string]struct{ listen, prefix string }{
		"port 0":         {"127.0.0.1:0", "http://127.0.0.1:"},
		"localhost":      {"localhost:0", "http://127.0.0.1:"},
		"all addresses":  {"0.0.0.0:0", "http://127.0.0.1:"},
		"a socket":       {socket, "unix://" + socket},
		"a socket's URL": {"unix://" + socket + "2", "unix://" + socket + "2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := embedtest.New(t, func(c *embed.Config) { c.ClientListen = tc.listen })
			if !strings.HasPrefix(s.Endpoint(), tc.prefix) || strings.HasSuffix(s.Endpoint(), ":0") {
				t.Errorf("endpoint %q, want it to begin with %q and to have a real port", s.Endpoint(), tc.prefix)
			}
			c := embedtest.Client(t, s)
			put(t, c, "k", "v")
			if got := get(t, c, "k"); got != "v" {
				t.Errorf("read %q, want %q", got, "v")
			}
			if !s.IsLeader() {
				t.Error("a member that is alone does not lead")
			}
		})
	}
}

func TestRestartOnTheSameDataDirKeepsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	here := func(c *embed.Config) { c.DataDir = dir }

	first := embedtest.New(t, here)
	put(t, embedtest.Client(t, first), "k", "kept")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := embedtest.New(t, here)
	if got := get(t, embedtest.Client(t, second), "k"); got != "kept" {
		t.Errorf("after a restart the key holds %q, want %q", got, "kept")
	}
}

func TestCloseDoesNotWaitForClients(t *testing.T) {
	authority := testcert.New(t)
	pair := authority.Server(t)
	for name, tls := range map[string]*embed.TLS{
		"plain": nil,
		"TLS":   {CertFile: pair.CertFile, KeyFile: pair.KeyFile},
	} {
		t.Run(name, func(t *testing.T) {
			s := embedtest.New(t, func(c *embed.Config) { c.TLS = tls })
			c := dial(t, s, authority, nil)
			rev := put(t, c, "k", "v")
			w := c.Watch(t.Context(), store.Prefix("k"), rev)
			if m := <-w.Messages(); m.Err != nil {
				t.Fatal(m.Err)
			}

			begin := time.Now()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			// etcd's own way takes 5 s and two election times.
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("close took %s with a watch open", took)
			}
			w.Abandon() // the client would wait for the server to come back
			for range w.Messages() {
			}
			select {
			case err := <-s.Err():
				t.Errorf("closing counts as failing: %v", err)
			default:
			}
		})
	}
}

func TestClosingTwiceIsClosingOnce(t *testing.T) {
	s := embedtest.New(t)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Kill(); err != nil {
		t.Error(err)
	}
}

func TestStartGivesUpWhenItsContextEnds(t *testing.T) {
	// A cluster of two of which only one is started.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "etcd")
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
	defer cancel()
	_, err = embed.Start(ctx, embed.Config{
		DataDir: dir, ClientListen: "127.0.0.1:0", UnsafeNoFsync: true,
		Name: "a", Members: map[string]string{"a": "127.0.0.1:0", "b": other},
	})
	if !errors.Is(err, cause) {
		t.Errorf("start ended with %v, want the context's cause", err)
	}
}

func TestCompactionIsOn(t *testing.T) {
	s := embedtest.New(t, func(c *embed.Config) { c.CompactEvery = 100 * time.Millisecond })
	c := embedtest.Client(t, s)
	rev := put(t, c, "k", "1")
	for n := 0; ; n++ {
		put(t, c, "k", "2")
		_, err := c.Range(t.Context(), &pb.RangeRequest{Key: []byte("k"), Revision: rev})
		if errors.Is(err, store.ErrCompacted) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestQuotaEndsInNoSpace(t *testing.T) {
	s := embedtest.New(t, func(c *embed.Config) { c.QuotaBytes = 2 << 20 })
	c := embedtest.Client(t, s)
	value := make([]byte, 512<<10)
	for n := range 100 {
		_, err := c.Txn(t.Context(), &pb.TxnRequest{
			Success: []*pb.RequestOp{store.Put(strings.Repeat("k", n+1), value, 0)},
		})
		if errors.Is(err, store.ErrNoSpace) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("50 MB fit into 2 MB")
}

func TestClientsNeedACertificateWhereOneIsDemanded(t *testing.T) {
	authority := testcert.New(t)
	pair := authority.Server(t)
	s := embedtest.New(t, func(c *embed.Config) {
		c.TLS = &embed.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: authority.File}
	})
	own := authority.Client(t, "someone")
	with := dial(t, s, authority, &own)
	put(t, with, "k", "v")

	without := dial(t, s, authority, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := without.Probe(ctx, "k"); !errors.Is(err, store.ErrInsecure) {
		t.Errorf("without a certificate the answer is %v, want %v", err, store.ErrInsecure)
	}
}
