package embedtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
)

// Members is a cluster whose members can be stopped and started again, with the
// same addresses and the same data. A cluster of one is a server that can be.
// Its methods are for one goroutine at a time.
type Members struct {
	t       testing.TB
	configs []embed.Config
	servers []*embed.Server // nil while stopped
}

// Cluster starts n members for a test and returns when all of them answer.
func Cluster(t testing.TB, n int, opts ...Option) *Members {
	t.Helper()
	dir := t.TempDir()
	// The ports are free when they are chosen; another process may take one
	// before it is listened to.
	for try := range 5 {
		m := &Members{
			t:       t,
			configs: configs(t, filepath.Join(dir, fmt.Sprint(try)), n, opts),
			servers: make([]*embed.Server, n),
		}
		err := m.start(m.all())
		if err == nil {
			t.Cleanup(func() { m.Kill(m.all()...) })
			return m
		}
		m.Kill(m.all()...)
		if !errors.Is(err, embed.ErrAddressInUse) {
			t.Fatal(err)
		}
	}
	t.Fatal("no free ports for a cluster")
	return nil
}

func configs(t testing.TB, dir string, n int, opts []Option) []embed.Config {
	t.Helper()
	ports := freePorts(t, 2*n)
	tick := 50 * time.Millisecond
	if n == 1 {
		tick = 10 * time.Millisecond // it never has to notice that it is gone
	}
	members := map[string]string{}
	all := make([]embed.Config, n)
	for i := range all {
		all[i] = embed.Config{
			Name:          fmt.Sprintf("m%d", i),
			DataDir:       filepath.Join(dir, fmt.Sprint(i)),
			ClientListen:  fmt.Sprintf("127.0.0.1:%d", ports[2*i]),
			Members:       members,
			Tick:          tick,
			Election:      10 * tick,
			UnsafeNoFsync: true,
		}
		members[all[i].Name] = fmt.Sprintf("127.0.0.1:%d", ports[2*i+1])
		for _, o := range opts {
			o(&all[i])
		}
	}
	return all
}

// Endpoints are the addresses of all members, running or not.
func (m *Members) Endpoints() []string {
	all := make([]string, len(m.configs))
	for i, c := range m.configs {
		all[i] = "http://" + c.ClientListen
		if c.TLS != nil {
			all[i] = "https://" + c.ClientListen
		}
	}
	return all
}

// Client connects to all members and disconnects before they are closed.
func (m *Members) Client(t testing.TB) *store.Client {
	t.Helper()
	return connect(t, m.Endpoints()...)
}

// Server returns a member, or nil while it is stopped.
func (m *Members) Server(i int) *embed.Server { return m.servers[i] }

// Leader returns the number of the member that leads, once there is one.
func (m *Members) Leader() int {
	m.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		for i, s := range m.servers {
			if s != nil && s.IsLeader() {
				return i
			}
		}
		select {
		case <-tick.C:
		case <-m.t.Context().Done():
			m.t.Fatal("the cluster has no leader")
		}
	}
}

// Stop stops members, all at the same time. A leader transfers leadership first.
func (m *Members) Stop(members ...int) { m.end(members, (*embed.Server).Close) }

// Kill stops members without a transfer of leadership.
func (m *Members) Kill(members ...int) { m.end(members, (*embed.Server).Kill) }

func (m *Members) end(members []int, how func(*embed.Server) error) {
	m.t.Helper()
	err := each(members, func(i int) error {
		s := m.servers[i]
		m.servers[i] = nil
		if s == nil {
			return nil
		}
		return how(s)
	})
	if err != nil {
		m.t.Errorf("stop etcd: %v", err)
	}
}

// Restart starts stopped members again, all at the same time, and returns when
// they answer: so enough of them to make a majority.
func (m *Members) Restart(members ...int) {
	m.t.Helper()
	if err := m.start(members); err != nil {
		m.t.Fatal(err)
	}
}

// Replace has a member that is stopped come back without its data: it is taken out of the
// cluster, added, and joins.
func (m *Members) Replace(i int) {
	m.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: m.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		m.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(m.t.Context(), startTimeout)
	defer cancel()
	cfg := &m.configs[i]
	healthy := func(change func() error) {
		m.t.Helper()
		for err = change(); errors.Is(err, rpctypes.ErrUnhealthy); err = change() {
			// The others have not known each other for long enough.
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		if err != nil {
			m.t.Fatalf("replace member %d: %v", i, err)
		}
	}
	list, err := c.MemberList(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, one := range list.Members {
		if one.Name == cfg.Name {
			healthy(func() error { _, err := c.MemberRemove(ctx, one.ID); return err })
		}
	}
	healthy(func() error { _, err := c.MemberAdd(ctx, []string{"http://" + cfg.Members[cfg.Name]}); return err })
	cfg.DataDir += "-again"
	cfg.Joins = true
	m.Restart(i)
}

func (m *Members) start(members []int) error {
	ctx, cancel := context.WithTimeout(m.t.Context(), startTimeout)
	defer cancel()
	return each(members, func(i int) error {
		if m.servers[i] != nil {
			return fmt.Errorf("member %d runs already", i)
		}
		s, err := embed.Start(ctx, m.configs[i])
		if err != nil {
			cancel() // the others may be waiting for this one
			return err
		}
		m.servers[i] = s
		return nil
	})
}

func (m *Members) all() []int {
	all := make([]int, len(m.configs))
	for i := range all {
		all[i] = i
	}
	return all
}

// each calls do for all members at the same time and waits for all of them.
func each(members []int, do func(int) error) error {
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for n, i := range members {
		wg.Go(func() { errs[n] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Ports are chosen below those that Linux gives to outgoing connections: a
// client that tries to reach a stopped member would otherwise get that member's
// port for its own end now and then.
const firstPort, lastPort = 15000, 32000

// freePorts returns n ports of the loopback address at which no process listens.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for range 100 * n {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close() // only when all are found, so that they differ
		if ports = append(ports, port); len(ports) == n {
			return ports
		}
	}
	t.Fatal("no free ports")
	return nil
}
