//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
)

// etcdPart is what an etcd in a process of its own needs to know.
type etcdPart struct{ Dir, Listen string }

// playEtcd serves until its input ends.
func playEtcd(part []byte, in io.Reader, say func(report)) error {
	var p etcdPart
	if err := json.Unmarshal(part, &p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	s, err := embed.Start(ctx, embed.Config{
		DataDir: p.Dir, ClientListen: p.Listen,
		Tick: 10 * time.Millisecond, Election: 100 * time.Millisecond,
		UnsafeNoFsync: true, // a process that is killed loses nothing that it wrote
	})
	if err != nil {
		return err
	}
	say(report{Event: "serving"})
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	return s.Close()
}

// etcdProcess is an etcd in a process of its own, which can be killed, frozen
// and started again on the same data and address.
type etcdProcess struct {
	*process
	part etcdPart
}

func startEtcd(t testing.TB) *etcdProcess {
	t.Helper()
	e := &etcdProcess{part: etcdPart{Dir: filepath.Join(t.TempDir(), "etcd"), Listen: freeAddress(t)}}
	e.start(t)
	t.Cleanup(func() { e.kill() }) // the one that runs then
	return e
}

func (e *etcdProcess) start(t testing.TB) {
	t.Helper()
	e.process = begins(t, "etcd", "etcd", e.part)
	e.hear("serving", "")
}

// restart starts it again after a kill.
func (e *etcdProcess) restart() { e.start(e.t) }

func (e *etcdProcess) endpoints() []string { return []string{"http://" + e.part.Listen} }

// backend is a connection of the test's own.
func (e *etcdProcess) backend(t testing.TB) *store.Client { return connect(t, e.endpoints()...) }
