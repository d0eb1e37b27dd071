package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/cluster"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/server"
)

func serverCommand() *cli.Command {
	return &cli.Command{
		Name:     "server",
		Category: serving,
		Usage:    "run a member of a cluster, with etcd, a sidecar and a coordinator in one process",
		Description: `Run it on three hosts with the same --cluster, and berth needs no other etcd. The cluster works
as long as two of the three do. A single server works too, and can grow to three: without
--cluster, it serves etcd at a socket in --data-dir that only its user can reach, and with
--cacert, --cert and --key instead at --etcd-listen, for other hosts and users.

At its first start, a server joins the cluster of the other members if there is one. If no
member has data, they form a new cluster once all of them are running. Other hosts of the fleet
run 'berth sidecar' with the servers as --endpoints.

Members and clients use the certificates of --cacert, --cert and --key (see 'berth certs').
Without TLS, all members of --cluster must have loopback addresses, and all users of the machine
can read and change everything.

On TERM or INT, the sidecar waits for the holders of this host ('berth sidecar --help'), and then
etcd stops. HUP is for restarts: the server stops at once and leaves its claims to the next
process.`,
		Flags:  append(config.Flags(config.Server, config.Dev, config.Instance, config.Serve, config.Lead, config.Claims), drainFlag()),
		Action: handle(serveServer),
	}
}

func serveServer(r *request) error {
	s, err := config.Load(config.FromCLI(r.Context), config.Common, config.Etcd, config.Server, config.Dev,
		config.Instance, config.Serve, config.Lead, config.Claims)
	if err != nil {
		return err
	}
	log := newLogger(r.App.ErrWriter, s, hclog.Info)
	if s.DataDir, err = filepath.Abs(s.DataDir); err != nil {
		return err
	}
	cfg, err := sidecarConfig(s, log)
	if err != nil {
		return err
	}
	cfg.Options.StateDir, cfg.Options.Kind = filepath.Join(s.DataDir, stateFolder), instance.Server
	if cfg.DrainTimeout, err = drainTimeout(r.Duration(drainFlagName)); err != nil {
		return err
	}
	etcd := startMember(s, log)
	cfg.Await, cfg.Waits, cfg.Explain, cfg.Persist = etcd.await, etcd.waits.Load, etcd.explain, true
	err = serveHost(r, s, cfg, true, etcd, func(at addresses) string {
		return fmt.Sprintf("berth server %s of host %s at %s, with etcd at %s%s", s.Name, s.Host, at, at.Etcd, etcd.host.note())
	})
	if cause := etcd.stop(); cause != nil {
		return cause // it caused the other errors
	}
	return err
}

// membersOf returns this member of the cluster in the settings, and the other members. All of them
// serve clients at the port of etcd_listen. A server alone has no address for other members.
func membersOf(s config.Settings) (self cluster.Member, others []cluster.Member) {
	if s.Alone() {
		return cluster.Member{Name: s.Name, PeerURL: embed.AloneURL, ClientURL: s.Endpoints[0]}, nil
	}
	_, port, _ := net.SplitHostPort(s.EtcdListen)
	for _, m := range s.Cluster {
		one := cluster.Member{Name: m.Name, PeerURL: m.URL(), ClientURL: m.ClientURL(port)}
		if m.Name == s.Name {
			self = one
		} else {
			others = append(others, one)
		}
	}
	return self, others
}

// etcdMember is the etcd member of a server. A nil etcdMember means that etcd runs elsewhere.
type etcdMember struct {
	s      config.Settings
	log    hclog.Logger
	cancel context.CancelFunc
	// serves is closed when the member serves clients of its cluster, and ended when it has ended; err is
	// then the reason, or nil if it was stopped.
	serves, ended chan struct{}
	err           error
	host          *hostOfServer
	// waits is what the member waits for; nil once it serves.
	waits atomic.Pointer[problem.Error]
}

// startMember starts the member in the background, since it may have to wait for other members.
func startMember(s config.Settings, log hclog.Logger) *etcdMember {
	ctx, cancel := context.WithCancel(context.Background())
	m := &etcdMember{
		s: s, log: log.Named("member"), cancel: cancel, serves: make(chan struct{}), ended: make(chan struct{}),
		host: newHostOfServer(s, log),
	}
	m.waitsFor("etcd is starting")
	go func() {
		defer close(m.ended)
		err := m.run(ctx)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil
			if waited := m.waits.Load(); waited != nil {
				m.log.Info("this server is stopped before its etcd has started", "it_waited", waited)
			}
		}
		m.err = m.fault(err)
	}()
	return m
}

// explain adds to an error of the sidecar what to do about leases that a server without its state directory
// finds. The sidecar of a server tries again by itself.
func (m *etcdMember) explain(err error) error {
	var e *problem.Error
	if !errors.As(err, &e) {
		return err
	}
	in, ok := e.Detail.(lease.InUse)
	if !ok || in.Leases == 0 {
		return err
	}
	return problem.New(e.Code, "host %q has leases (%d) of another %q than that of this server, which has lost its state directory, or has the name of another process. "+
		"If its state is lost, run '%s', which frees what these leases hold. If another process has the name, stop it, or give one of them another name with the setting host. "+
		"Otherwise, this server is ready when these leases have ended, in %s", in.Host, in.Leases, in.Instance, freeCommand(m.s.Name, in.Host), in.EndsWithin).WithDetail(in)
}

// waitsFor records what the member waits for.
func (m *etcdMember) waitsFor(what string) {
	m.waits.Store(problem.New(problem.EtcdUnavailable, "%s", what))
}

// fault names the setting because of which the member can't start. If clients and members have the same
// host, as by default, an address that this host does not have is that of cluster.
func (m *etcdMember) fault(err error) error {
	own, _ := m.s.Cluster.Find(m.s.Name)
	host, _, _ := net.SplitHostPort(m.s.EtcdListen)
	if errors.Is(err, embed.ErrAddress) && !errors.Is(err, embed.ErrAddressInUse) && host == own.Host() {
		err = fmt.Errorf("%w: %w", embed.ErrPeerAddress, err)
	}
	return etcdFault(err, ", the same port on all servers")
}

// run starts etcd, and serves until ctx ends, etcd fails, or another server serves another cluster.
func (m *etcdMember) run(ctx context.Context) error {
	founding, err := m.founding()
	if err != nil {
		return err
	}
	etcd, err := m.start(ctx, founding)
	if err != nil {
		return err
	}
	self := founding.Self
	var completing sync.WaitGroup
	completed, cancel := context.WithCancel(ctx)
	conflict := make(chan error, 1)
	completing.Go(func() {
		if err := founding.Watch(completed, etcd.Identity); completed.Err() == nil {
			conflict <- err
		}
	})
	completing.Go(func() { m.complete(completed, etcd.ID(), self.PeerURL) })
	completing.Go(func() {
		if m.awaitVote(completed, etcd.IsLearner) {
			if err := m.upgrade(completed); err != nil && completed.Err() == nil {
				m.log.Error("the data of an earlier berth can't be upgraded", "error", err)
			}
			m.waits.Store(nil)
			close(m.serves)
			m.watchLeader(completed, etcd, founding)
		}
	})
	select {
	case <-ctx.Done():
	case err = <-etcd.Err():
		err = fmt.Errorf("etcd has stopped: %w", err)
	case err = <-conflict:
	}
	cancel()
	completing.Wait()
	return errors.Join(err, etcd.Close())
}

// upgrade upgrades the data of a server alone. In a cluster, others may use the data: there, operators do it.
func (m *etcdMember) upgrade(ctx context.Context) error {
	if !m.s.Alone() {
		return nil
	}
	return upgradeOwn(ctx, m.s, m.log, m.waitsFor)
}

const (
	// learnerPatience is how long the sidecar and the coordinator of a learner wait for its vote. Then they
	// start, and use the other members.
	learnerPatience = 2 * time.Minute
	// voteEvery is the interval between checks whether a learner has a vote.
	voteEvery = 50 * time.Millisecond
)

// awaitVote waits until the member is not a learner, which serves no clients, but not longer than
// learnerPatience. It returns false if ctx has ended.
func (m *etcdMember) awaitVote(ctx context.Context, isLearner func() bool) bool {
	if !isLearner() {
		return true
	}
	m.waitsFor("this server is a learner: it waits until it has the data of the cluster, and a vote ('berth cluster status')")
	m.log.Info("this server is a learner: its sidecar and coordinator start when it has the data of the cluster, and a vote", "at_most", learnerPatience)
	tick := time.NewTicker(voteEvery)
	defer tick.Stop()
	patience := time.NewTimer(learnerPatience)
	defer patience.Stop()
	for isLearner() {
		select {
		case <-tick.C:
		case <-patience.C:
			m.log.Warn("this server is still a learner: its sidecar and coordinator use the etcd of the other servers")
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// leaderEvery is the interval between checks whether the cluster has a leader.
const leaderEvery = time.Second

// watchLeader records, while the cluster has no leader, which other members do not answer.
func (m *etcdMember) watchLeader(ctx context.Context, etcd *embed.Server, founding *cluster.Founding) {
	for checkUntil(ctx, leaderEvery, func() bool { return !etcd.HasLeader() }) {
		checking, led := context.WithCancel(ctx)
		var task sync.WaitGroup
		if others := othersOf(etcd.Identity()); len(others) > 0 {
			task.Go(func() { founding.Majority(checking, others) })
		}
		checkUntil(ctx, leaderEvery, etcd.HasLeader)
		led()
		task.Wait()
		m.waits.Store(nil)
	}
}

// checkUntil checks a condition at intervals until it holds. It returns false if ctx has ended.
func checkUntil(ctx context.Context, interval time.Duration, holds func() bool) bool {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// complete finishes joining the cluster, and then watches its members.
func (m *etcdMember) complete(ctx context.Context, id uint64, peerURL string) {
	client := m.dial(ctx)
	if client == nil {
		return
	}
	defer client.Close()
	err := client.Complete(ctx, id, peerURL, func(err error) { m.log.Info("this server can't finish joining the cluster yet", "error", err) })
	if err != nil && ctx.Err() == nil {
		m.log.Error("this server cannot finish joining the cluster", "error", err)
	}
	m.compare(ctx, client)
}

// dial returns a client of the cluster, nil if ctx has ended. A user logs in first, which needs a
// majority.
func (m *etcdMember) dial(ctx context.Context) *cluster.Client {
	for {
		client, err := dialCluster(m.s, m.log)
		if err == nil {
			return client
		}
		m.log.Warn("this member cannot log in to etcd yet", "error", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// compareEvery is how often compare compares the members with the setting cluster.
const compareEvery = 10 * time.Minute

// compare logs a warning if the setting cluster differs from the members of the cluster. With a
// wrong setting, a server that loses its data would contact the wrong members, or form a second
// cluster.
func (m *etcdMember) compare(ctx context.Context, client *cluster.Client) {
	if m.s.Alone() {
		return
	}
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	var configured []string
	for _, one := range m.s.Cluster {
		configured = append(configured, one.URL())
	}
	for {
		unknown, gone, err := client.Missing(ctx, configured)
		if err == nil && len(unknown) > 0 {
			m.log.Warn("the setting cluster does not name all members of the cluster: correct it before the next restart",
				"missing", strings.Join(unknown, ","), "no_member", strings.Join(gone, ","))
		} else if err == nil && len(gone) > 0 {
			m.log.Warn("the setting cluster names servers that are not members of the cluster yet: start them, and they join it, or remove them from the setting",
				"no_member", strings.Join(gone, ","))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// founding returns how this server meets the others.
func (m *etcdMember) founding() (*cluster.Founding, error) {
	tls, err := m.s.ClientTLS(m.log)
	if err != nil {
		return nil, err
	}
	self, others := membersOf(m.s)
	return &cluster.Founding{Self: self, Others: others, Listen: m.s.EtcdListen, TLS: tls, Username: m.s.User, Password: m.s.Password.Reveal(), Waits: m.waitsFor, Log: m.log}, nil
}

// start starts etcd with the data in the data directory or, if there is none, as a member of a
// cluster that it joins or forms.
func (m *etcdMember) start(ctx context.Context, founding *cluster.Founding) (_ *embed.Server, err error) {
	s := m.s
	cfg := embed.Config{
		DataDir: filepath.Join(s.DataDir, config.EtcdFolder), Name: s.Name, ClientListen: s.EtcdListen,
		Logger: m.log,
	}
	if strings.HasPrefix(founding.Self.ClientURL, "https://") {
		cfg.TLS = &embed.TLS{CertFile: s.Cert, KeyFile: s.Key, ClientCAFile: s.CACert}
		cfg.PeerTLS = cfg.TLS
	} else if !s.Alone() {
		m.log.Warn("etcd is open: all users of this machine can read and change everything; write https:// in the setting cluster, and set cacert, cert and key")
	}
	if s.Alone() && cfg.TLS == nil && s.SocketGroup != "" {
		if cfg.SocketGroup, err = server.GroupID(s.SocketGroup); err != nil {
			return nil, problem.Field("socket_group", "%w", err)
		}
	}
	if cfg.Dir, err = embed.OpenDataDir(cfg.DataDir); err != nil {
		return nil, err
	}
	begin, others, err := m.begin(ctx, founding, cfg.Dir)
	if err != nil {
		return nil, errors.Join(err, cfg.Dir.Close())
	}
	cfg.Joins, cfg.Token = begin.Joins, begin.Token
	if !s.Alone() {
		cfg.Members = begin.Members
	}
	m.waitsFor("etcd is starting")
	starting, started := context.WithCancel(ctx)
	var task sync.WaitGroup
	defer task.Wait()
	defer started()
	if len(others) > 0 {
		task.Go(func() { founding.Majority(starting, others) })
	}
	return embed.Start(ctx, cfg)
}

// begin returns how the member begins with a data directory, and the other members of a cluster that it can't
// start without.
func (m *etcdMember) begin(ctx context.Context, founding *cluster.Founding, dir *embed.DataDir) (_ cluster.Start, others []cluster.Member, err error) {
	if dir.HasData() {
		data, err := dir.Identity()
		if err == nil && m.s.Alone() && len(data.Members) > 1 {
			err = problem.Field("cluster", "is not set, and the data directory has the data of a cluster of %d members: set it to all of them", len(data.Members))
		}
		if err == nil {
			err = founding.CheckData(ctx, data)
		}
		return founding.Together(), othersOf(data), err
	}
	begin, err := founding.Run(ctx)
	if err != nil {
		err = embed.Explain(err)
	}
	if err == nil {
		err = dir.Clear()
	}
	if !begin.Joins {
		others = founding.Others
	}
	return begin, others, err
}

// othersOf returns the other members of the cluster whose data a member has.
func othersOf(data embed.Identity) (all []cluster.Member) {
	for _, m := range data.Members {
		if m.ID != data.MemberID && len(m.PeerURLs) > 0 {
			all = append(all, cluster.Member{Name: cmp.Or(m.Name, "a member"), PeerURL: m.PeerURLs[0]})
		}
	}
	return all
}

// await waits until the member serves, and returns the name of the host. If the member has ended, the server
// ends, and ctx with it.
func (m *etcdMember) await(ctx context.Context) (host string, err error) {
	select {
	case <-m.serves:
		return m.host.name(ctx)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// runCandidate runs a candidate for coordinator until it is stopped. If it fails, it starts again.
func (m *etcdMember) runCandidate(cfg sidecar.Config) *process {
	return runProcess(nil, func(ctx context.Context) error {
		for tries := new(lograte.Tries); ; {
			err := m.campaign(ctx, cfg)
			if ctx.Err() != nil || m.hasEnded() { // the server ends
				return nil
			}
			switch {
			case err != nil && !tries.Allow(err):
			case problem.CodeOf(err) == problem.EtcdUnavailable:
				cfg.Logger.Warn("the coordinator can't start yet, and tries again", "error", err, "retry", againEvery)
			default:
				cfg.Logger.Error("the coordinator has ended, and starts again; etcd continues", "error", err, "retry", againEvery)
			}
			select {
			case <-time.After(againEvery):
			case <-m.ended:
				return nil
			case <-ctx.Done():
				return nil
			}
		}
	}, func() error { return nil })
}

// campaign runs one candidate. Its metrics end with it.
func (m *etcdMember) campaign(ctx context.Context, cfg sidecar.Config) error {
	host, err := m.await(ctx)
	if err != nil {
		return err
	}
	s := m.s
	s.Host = host
	backend, err := newBackend(s, cfg.Logger, cfg.Options.Cluster, nil)
	if err != nil {
		return err
	}
	own := prometheus.NewRegistry()
	candidate := newCandidate(s, cfg.Logger, own, backend)
	if err := cfg.Registerer.Register(own); err != nil {
		return errors.Join(err, backend.Close())
	}
	defer cfg.Registerer.Unregister(own)
	return errors.Join(candidate.Run(ctx), backend.Close())
}

// hasEnded reports whether the member has ended.
func (m *etcdMember) hasEnded() bool {
	select {
	case <-m.ended:
		return true
	default:
		return false
	}
}

// failed returns a channel that is closed when the member has ended.
func (m *etcdMember) failed() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.ended
}

// stop stops the member, and returns the error of a member that had already ended.
func (m *etcdMember) stop() error {
	m.cancel()
	<-m.ended
	return m.err
}

// addresses adds the address of the member to the addresses of a server.
func (m *etcdMember) addresses(at addresses) addresses {
	if m != nil {
		self, _ := membersOf(m.s)
		at.Etcd, at.DataDir = self.ClientURL, m.s.DataDir
	}
	return at
}

// drainFlagName is the name of the flag for the longest wait for holders.
const drainFlagName = "drain-timeout"

func drainFlag() cli.Flag {
	return &cli.DurationFlag{Name: drainFlagName, Value: sidecar.DefaultDrainTimeout, Usage: "longest `TIME` to wait for holders before stopping; 0 does not wait"}
}

// stateFolder is the folder of the sidecar in the data directory of dev and of a server.
const stateFolder = "state"

// etcdFault returns a problem that names the setting because of which an embedded etcd can't start.
// The hint is added to the advice if the address is in use.
func etcdFault(err error, hint string) error {
	if errors.Is(err, embed.ErrDataDir) && errors.Is(err, fs.ErrPermission) {
		return problem.Field("data_dir", "%w; run berth as the owner of that folder, or choose another with --data-dir", err)
	}
	if errors.As(err, new(*problem.Error)) {
		return err // it names a setting
	}
	inUse := errors.Is(err, embed.ErrAddressInUse)
	switch {
	case errors.Is(err, embed.ErrPeerAddress) && inUse:
		return problem.Field("cluster", "%w; stop the other process, or choose another port of this server in the setting cluster of all servers", err)
	case errors.Is(err, embed.ErrPeerAddress):
		return problem.Field("cluster", "%w; write an address of this host there, or the setting name of this host", err)
	case errors.Is(err, embed.ErrAddress) && !inUse:
		return problem.Field("etcd_listen", "%w; choose an address of this host with --etcd-listen", err)
	}
	for kind, what := range map[error]struct{ field, todo string }{
		embed.ErrAddressInUse:  {"etcd_listen", "choose another with --etcd-listen" + hint},
		embed.ErrDataDirLocked: {"data_dir", "stop the other process, or choose another with --data-dir"},
		embed.ErrSocketPath:    {"data_dir", "choose a directory with a shorter path with --data-dir"},
		embed.ErrDataDir:       {"data_dir", "choose another with --data-dir"},
		embed.ErrDiskFull:      {"data_dir", "free disk space, or choose another with --data-dir"},
		embed.ErrDataTooNew:    {"data_dir", "use the version of berth that wrote it, or choose another with --data-dir"},
		embed.ErrRemoved:       {"data_dir", "to join again, move the folder etcd in it away, and start this server again"},
	} {
		if errors.Is(err, kind) {
			return problem.Field(what.field, "%w; %s", err, what.todo)
		}
	}
	return err
}
