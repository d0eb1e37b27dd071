//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/berthhq/berth/e2e"
	founding "github.com/berthhq/berth/internal/cluster"
	"github.com/berthhq/berth/internal/store/embed"
)

const (
	clientPort = 2379
	peerPort   = 2380
	// quotaBytes is small, so that a full etcd is soon had.
	quotaBytes = 160 << 20
)

// cluster is three members of etcd, each a process of its own on its own node. This
// process reaches each through a unix socket, whatever becomes of the network.
type cluster struct {
	dir     string
	net     network
	epoch   int    // restores so far
	token   string // makes the id of the cluster
	members []*member
	largest int64 // bytes that the data of a member had after a phase
}

// member is one of them.
type member struct {
	name string
	*process
	direct *clientv3.Client
	config string
}

// memberConfig is what the process of a member needs to know.
type memberConfig struct {
	Name, Dir, Listen, Socket string
	Members                   map[string]string
	Clients                   map[string]string // the addresses of the members for clients
	// Joins: it was added to the cluster that exists. Finds: it finds out how it starts as berth server
	// does, and makes itself a voter.
	Joins, Finds bool
}

func memberName(i int) string { return fmt.Sprintf("m%d", i) }

func newCluster(ps *processes, self, dir string, n int) (*cluster, error) {
	c := &cluster{dir: dir, net: ps.net, token: "etcd-cluster"}
	for i := range n {
		m := &member{name: memberName(i), config: filepath.Join(dir, memberName(i)+".json")}
		direct, err := clientv3.New(clientv3.Config{
			Endpoints: []string{"unix://" + c.socket(m)}, DialTimeout: time.Second, Logger: zap.NewNop(),
			DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		m.direct = direct
		c.members = append(c.members, m)
		m.process = ps.add(m.name, m.name, filepath.Join(dir, m.name+".log"), self, "member", m.config)
	}
	for i := range c.members {
		if err := c.configure(i, asConfigured); err != nil {
			return nil, err
		}
		c.members[i].want(true)
	}
	return c, nil
}

func (c *cluster) socket(m *member) string { return filepath.Join(c.dir, m.name+".sock") }

func (c *cluster) data(i int) string {
	return filepath.Join(c.dir, fmt.Sprintf("data%d", c.epoch), memberName(i))
}

func (c *cluster) peers() map[string]string { return c.listen(peerPort) }

// listen returns the addresses of all members at a port, by name.
func (c *cluster) listen(port int) map[string]string {
	all := map[string]string{}
	for i := range 3 {
		all[memberName(i)] = c.net.listen(memberName(i), port)
	}
	return all
}

// begins says how a member without data begins.
type begins int

const (
	asConfigured begins = iota // with the other members
	asAdded                    // as a member that was added
	asServer                   // as berth server finds out
)

// configure writes what a member reads when it starts.
func (c *cluster) configure(i int, how begins) error {
	m := c.members[i]
	text, err := json.Marshal(memberConfig{
		Name: m.name, Dir: c.data(i), Listen: c.net.listen(m.name, clientPort), Socket: c.socket(m),
		Members: c.peers(), Clients: c.listen(clientPort), Joins: how == asAdded, Finds: how == asServer,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(m.config, text, 0o600)
}

// endpoints are the addresses of all members, as a node reaches them.
func (c *cluster) endpoints(node string) string {
	var all []string
	for _, m := range c.members {
		all = append(all, c.net.reach(node, m.name, clientPort))
	}
	return strings.Join(all, ",")
}

// leader is the member that leads, or -1.
func (c *cluster) leader(ctx context.Context) int {
	for i, m := range c.members {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		s, err := m.direct.Status(ctx, "unix://"+c.socket(m))
		cancel()
		if err == nil && s.Leader == s.Header.MemberId {
			return i
		}
	}
	return -1
}

// do tries something with one member after the other until it is done, or ctx ends.
func (c *cluster) do(ctx context.Context, f func(context.Context, *clientv3.Client) error) error {
	var err error
	for i := 0; ctx.Err() == nil; i++ {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err = f(try, c.members[i%len(c.members)].direct)
		cancel()
		if err == nil {
			return nil
		}
		pause(ctx, 100*time.Millisecond)
	}
	return errors.Join(err, ctx.Err())
}

// revision is that of etcd now.
func (c *cluster) revision(ctx context.Context) (rev int64, err error) {
	err = c.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		resp, err := e.Get(ctx, "/", clientv3.WithCountOnly())
		if err == nil {
			rev = resp.Header.Revision
		}
		return err
	})
	return rev, err
}

// save writes a snapshot to a file, and returns its revision.
func (c *cluster) save(ctx context.Context, path string) (int64, error) {
	err := c.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		return e2e.SaveSnapshot(ctx, e, path)
	})
	if err != nil {
		return 0, err
	}
	status, err := snapshot.NewV3(zap.NewNop()).Status(path)
	return status.Revision, err
}

// down kills all members.
func (c *cluster) down(ctx context.Context) {
	for _, m := range c.members {
		m.want(false)
	}
	for _, m := range c.members {
		m.gone(ctx)
	}
}

// restore gives all members, which are down, what a snapshot has, as docs/how-to/backup.md says: with
// --bump-revision and --mark-compacted.
func (c *cluster) restore(path string) error {
	c.epoch++
	var initial []string
	for name, addr := range c.peers() {
		initial = append(initial, name+"=http://"+addr)
	}
	for i, m := range c.members {
		err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: path, Name: m.name, OutputDataDir: c.data(i), PeerURLs: []string{"http://" + c.peers()[m.name]},
			InitialCluster: strings.Join(initial, ","), InitialClusterToken: c.token,
			RevisionBump: e2e.RevisionBump, MarkCompacted: true,
		})
		if err == nil {
			err = c.configure(i, asConfigured)
		}
		if err != nil {
			return fmt.Errorf("restore %s: %w", m.name, err)
		}
	}
	return nil
}

// up starts all members that do not run.
func (c *cluster) up() {
	for _, m := range c.members {
		m.want(true)
	}
}

// replace takes a member out of the cluster and adds it again, without its data.
func (c *cluster) replace(ctx context.Context, i int) error {
	peer := "http://" + c.peers()[memberName(i)]
	err := c.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		list, err := e.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, m := range list.Members {
			if m.PeerURLs[0] == peer && m.Name != "" {
				_, err = e.MemberRemove(ctx, m.ID)
				return errors.Join(err, errors.New("it was removed just now"))
			}
			if m.PeerURLs[0] == peer {
				return nil // it was added, and has not been started
			}
		}
		_, err = e.MemberAdd(ctx, []string{peer})
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(c.data(i)), c.configure(i, asAdded))
}

// replaceLost has an operator replace a member whose data is lost, until the list of members shows it.
func (c *cluster) replaceLost(ctx context.Context, i int, command func(context.Context) error) error {
	peer := "http://" + c.peers()[memberName(i)]
	var err error
	if !until(ctx, 500*time.Millisecond, func() bool {
		err = command(ctx)
		if err == nil {
			return true
		}
		replaced := false // its answer may be lost
		_ = c.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
			list, err := e.MemberList(ctx)
			if err == nil {
				replaced = slices.ContainsFunc(list.Members, func(m *pb.Member) bool { return m.IsLearner && m.PeerURLs[0] == peer })
			}
			return err
		})
		return replaced
	}) {
		return errors.Join(err, ctx.Err())
	}
	return c.configure(i, asServer)
}

// learners says which members have no vote.
func (c *cluster) learners(ctx context.Context) (all []string, err error) {
	err = c.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		list, err := e.MemberList(ctx)
		if err != nil {
			return err
		}
		all = nil
		for _, m := range list.Members {
			if m.IsLearner {
				all = append(all, fmt.Sprintf("member %s at %s has no vote", m.Name, m.PeerURLs[0]))
			}
		}
		return nil
	})
	return all, err
}

// full says which members have reached their space quota.
func (c *cluster) full(ctx context.Context) (all []string, err error) {
	err = c.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		list, err := e.AlarmList(ctx)
		if err != nil {
			return err
		}
		all = nil
		for _, a := range list.Alarms {
			all = append(all, fmt.Sprintf("member %x has the alarm %s", a.MemberID, a.Alarm))
		}
		return nil
	})
	return all, err
}

// measure notes the size of the data.
func (c *cluster) measure(ctx context.Context) {
	for _, m := range c.members {
		if s, err := m.direct.Status(ctx, "unix://"+c.socket(m)); err == nil {
			c.largest = max(c.largest, s.DbSize)
		}
	}
}

// playMember is the process of a member, until it is killed.
func playMember(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var c memberConfig
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	cfg := embed.Config{
		Name: c.Name, DataDir: c.Dir, ClientListen: c.Listen, Members: c.Members, Joins: c.Joins,
		QuotaBytes: quotaBytes, CompactEvery: -1,
		UnsafeNoFsync: true, // a process that is killed loses nothing that it wrote
		Logger:        logger("member"),
	}
	if c.Finds {
		if err := c.find(&cfg); err != nil {
			return err
		}
	}
	s, err := embed.Start(context.Background(), cfg)
	if err != nil {
		return err
	}
	if c.Finds {
		go c.complete(s, cfg.Logger)
	}
	if err := os.Remove(c.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", c.Socket)
	if err != nil {
		return err
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go passOn(in, c.Listen)
		}
	}()
	return <-s.Err()
}

// find has a member without data find out how it starts, as berth server does.
func (c *memberConfig) find(cfg *embed.Config) (err error) {
	if cfg.Dir, err = embed.OpenDataDir(c.Dir); err != nil || cfg.Dir.HasData() {
		return err
	}
	f := &founding.Founding{Listen: c.Listen, Log: cfg.Logger}
	for name, peer := range c.Members {
		m := founding.Member{Name: name, PeerURL: "http://" + peer, ClientURL: "http://" + c.Clients[name]}
		if name == c.Name {
			f.Self = m
		} else {
			f.Others = append(f.Others, m)
		}
	}
	begin, err := f.Run(context.Background())
	cfg.Members, cfg.Joins, cfg.Token = begin.Members, begin.Joins, begin.Token
	return err
}

// complete makes a member that has joined a voter.
func (c *memberConfig) complete(s *embed.Server, log hclog.Logger) {
	client, err := founding.Dial(founding.Config{Endpoints: slices.Collect(maps.Values(c.Clients))})
	if err == nil {
		defer client.Close()
		err = client.Complete(context.Background(), s.ID(), "http://"+c.Members[c.Name], func(err error) { log.Info("not a voter yet", "error", err) })
	}
	if err != nil {
		log.Error("the member is no voter", "error", err)
	}
}

// passOn connects a connection to an address of this node.
func passOn(in net.Conn, addr string) {
	defer in.Close()
	out, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		out.Close()
	}()
	_, _ = io.Copy(in, out)
}
