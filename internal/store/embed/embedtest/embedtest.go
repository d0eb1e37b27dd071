// Package embedtest gives tests a real etcd of their own: in a temporary
// folder, without fsync, with fast elections, and closed with the test.
//
// What a test connects through [Client] or [Members.Client] is closed before
// the server is; other clients are the test's own to close.
package embedtest

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
)

const (
	// startTimeout bounds the start of a server, also on a busy machine.
	startTimeout = time.Minute
	// segmentBytes is how much of its log etcd puts on disk in advance, twice per
	// server: instead of 64 MB, for the sake of tests with many servers.
	segmentBytes = 4 << 20
	// passwordCost is the least: under the race detector etcd's own takes seconds.
	passwordCost = 4
)

func init() { wal.SegmentSizeBytes = segmentBytes }

// Option changes what a server is started with.
type Option func(*embed.Config)

// New starts a server for a test.
func New(t testing.TB, opts ...Option) *embed.Server {
	t.Helper()
	cfg := embed.Config{
		DataDir:       filepath.Join(t.TempDir(), "etcd"),
		ClientListen:  "127.0.0.1:0",
		Tick:          10 * time.Millisecond,
		Election:      100 * time.Millisecond,
		UnsafeNoFsync: true,
		PasswordCost:  passwordCost,
	}
	for _, o := range opts {
		o(&cfg)
	}
	return start(t, cfg)
}

// Client connects to a server for a test, and disconnects before that server is
// closed.
func Client(t testing.TB, s *embed.Server) *store.Client {
	t.Helper()
	return connect(t, s.Endpoint())
}

func connect(t testing.TB, endpoints ...string) *store.Client {
	t.Helper()
	c, err := store.NewClient(store.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close the client of etcd: %v", err)
		}
	})
	return c
}

func start(t testing.TB, cfg embed.Config) *embed.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	s, err := embed.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, s) })
	return s
}

func closeServer(t testing.TB, s *embed.Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close etcd: %v", err)
	}
}
