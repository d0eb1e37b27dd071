package embed

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	etcd "go.etcd.io/etcd/server/v3/embed"
)

// Defaults of a [Config].
const (
	// DefaultName names the only member of a cluster of one.
	DefaultName = "berth"
	// DefaultClientListen is etcd's own default, so that etcdctl finds it.
	DefaultClientListen = "127.0.0.1:2379"
	// DefaultTick and DefaultElection are etcd's own defaults. Members notice the loss of a leader
	// after one to two election times.
	DefaultTick     = 100 * time.Millisecond
	DefaultElection = time.Second
	// DefaultQuotaBytes is the largest quota without a warning from etcd. When the quota is
	// exceeded, an operator has to act, and full load can exceed etcd's default of 2 GiB within
	// minutes.
	DefaultQuotaBytes = 8 << 30
	// DefaultCompactEvery keeps between two and four minutes of history: a few
	// hundred megabytes at full load, and far more than a watch lags behind.
	DefaultCompactEvery = 2 * time.Minute
	// CloseTimeout is the longest time of [Server.Close]. A single member usually stops within 10
	// ms, a member of a larger cluster within about a second.
	CloseTimeout = 10 * time.Second
)

// Config holds the data directory, the addresses and the settings of a member. Only DataDir is
// required.
type Config struct {
	// DataDir is created if it does not exist. One process at a time can use it.
	DataDir string
	// Dir is DataDir if this process has already locked it, otherwise nil.
	Dir *DataDir
	// ClientListen is "host:port" with an IP address or localhost, where port 0
	// chooses a free one, or the absolute path of a unix socket, with or without
	// "unix://". Only the user of this process, and SocketGroup, can connect to a socket in DataDir:
	// see [SocketPath]. Protect the folder of any other socket.
	ClientListen string
	// TLS makes the member serve clients over TLS. It is not available on a unix socket.
	TLS *TLS
	// Socket, if not empty, is the path of one more unix socket for clients, without TLS. See
	// [SocketPath].
	Socket string
	// SocketGroup is the id of a group whose members can connect to the sockets for clients in DataDir,
	// too, and so read and change everything. 0 is none.
	SocketGroup int

	// Name is this member's name in Members.
	Name string
	// Members are the peer addresses ("host:port") of all members of a cluster,
	// by name. Without them, the member is alone and listens to no peers. They are used at the
	// first start; later, etcd reads them from the data directory.
	Members map[string]string
	// Token makes the identity of the cluster unique; all members must have the same token. It is
	// used at the first start.
	Token string
	// Joins says that the cluster of Members exists, and that this member was added to
	// it. It is used at the first start.
	Joins bool
	// PeerTLS makes members use TLS between each other. It needs a ClientCAFile, and its
	// certificate must also be valid for clients.
	PeerTLS *TLS

	// Tick is the interval of a leader's heartbeats. Election is the time without a heartbeat after
	// which a leader is replaced: at least five ticks, at most 50 s. etcd extends leases that are
	// shorter than 1.5 times Election.
	Tick, Election time.Duration
	// QuotaBytes is the size of the database above which etcd accepts only deletes.
	QuotaBytes int64
	// CompactEvery is the interval of compactions, and the age from which they drop history. A
	// negative value disables them.
	CompactEvery time.Duration
	// UnsafeNoFsync lets the kernel decide when data reaches the disk. It is for tests: a crash of
	// the machine loses acknowledged writes.
	UnsafeNoFsync bool
	// PasswordCost is the bcrypt cost of the passwords of etcd's users, 4 to 31: each step doubles
	// the time. 0 is etcd's default, 10.
	PasswordCost uint

	// Logger receives etcd's warnings and errors, and the rest of its log at the level trace. A nil
	// Logger is silent.
	Logger hclog.Logger
}

// TLS names the PEM files of a member. etcd reads the certificate and the key again for each
// connection, but the authorities only at the start.
type TLS struct {
	CertFile, KeyFile string
	// ClientCAFile, if not empty, makes the member demand certificates of its
	// clients, signed by one of these authorities. If etcd has users, a certificate's common name
	// is the user.
	ClientCAFile string
}

// withDefaults returns a copy of c in which empty fields have their defaults.
func (c Config) withDefaults() Config {
	fill(&c.Name, DefaultName)
	fill(&c.ClientListen, DefaultClientListen)
	fill(&c.Tick, DefaultTick)
	fill(&c.Election, DefaultElection)
	fill(&c.QuotaBytes, DefaultQuotaBytes)
	fill(&c.CompactEvery, DefaultCompactEvery)
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// etcd returns the settings as a configuration of etcd.
func (c *Config) etcd() (*etcd.Config, error) {
	if c.DataDir == "" {
		return nil, errors.New("no data directory is set")
	}
	client, err := c.clientURL()
	if err != nil {
		return nil, err
	}
	ec := etcd.NewConfig()
	ec.Name = c.Name
	ec.Dir = c.DataDir
	ec.TickMs = uint(c.Tick.Milliseconds())
	ec.ElectionMs = uint(c.Election.Milliseconds())
	ec.QuotaBackendBytes = c.QuotaBytes
	ec.UnsafeNoFsync = c.UnsafeNoFsync
	if c.PasswordCost > 0 {
		ec.BcryptCost = c.PasswordCost
	}
	if c.CompactEvery > 0 {
		ec.AutoCompactionMode = etcd.CompactorModePeriodic
		ec.AutoCompactionRetention = c.CompactEvery.String()
	}
	ec.EnableGRPCGateway = false // no client reads etcd's keys over HTTP
	ec.ListenClientUrls = []url.URL{client}
	// With port 0, this address is wrong. But only clients that ask etcd for the addresses of its
	// members use it, and berth's client does not.
	ec.AdvertiseClientUrls = ec.ListenClientUrls
	if c.Socket != "" {
		ec.ListenClientUrls = append(ec.ListenClientUrls, url.URL{Scheme: "unix", Path: c.Socket})
	}
	if c.TLS != nil {
		// If gRPC and HTTP share a port, gRPC runs inside Go's HTTP server: then watches starve
		// during large reads, and a member can't be stopped while clients keep sending requests.
		ec.ListenClientHttpUrls = []url.URL{{Scheme: "unix", Path: c.httpSocket()}}
	}
	ec.ClientTLSInfo, ec.PeerTLSInfo = c.TLS.etcd(), c.PeerTLS.etcd()
	// A peer may connect from an address that its certificate does not name: its host has several
	// addresses, or is behind NAT. It still has to present a certificate of the authority, which is
	// all that etcd requires of certificates without addresses, too.
	ec.PeerTLSInfo.SkipClientSANVerify = true
	return ec, c.peers(ec)
}

// SocketPath returns the path of the unix socket at which only the user of a member with a data
// directory, root and [Config.SocketGroup] can connect to it.
func SocketPath(dataDir string) string { return filepath.Join(dataDir, "etcd.sock") }

// httpSocket returns the path of the unix socket for etcd's HTTP server (health, metrics and
// version), which berth does not use.
func (c *Config) httpSocket() string {
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		dir = c.DataDir
	}
	return filepath.Join(dir, "http.sock")
}

// sockets returns the paths of all unix sockets of the member.
func (c *Config) sockets() (all []string) {
	if path, ok := socketPath(c.ClientListen); ok {
		all = append(all, path)
	}
	if c.Socket != "" {
		all = append(all, c.Socket)
	}
	if c.TLS != nil {
		all = append(all, c.httpSocket())
	}
	return all
}

// MaxSocketPath is the longest path of a unix socket, in bytes.
const MaxSocketPath = 107

// checkSockets returns an error if the system can't have a socket with one of the paths.
func (c *Config) checkSockets() error {
	for _, path := range c.sockets() {
		if len(path) > MaxSocketPath {
			return fmt.Errorf("%w: %s has %d bytes, and the path of a socket must have at most %d", ErrSocketPath, path, len(path), MaxSocketPath)
		}
	}
	return nil
}

// etcd returns the files as a TLS configuration of etcd; a nil TLS returns an empty one.
func (t *TLS) etcd() transport.TLSInfo {
	if t == nil {
		return transport.TLSInfo{}
	}
	return transport.TLSInfo{
		CertFile: t.CertFile, KeyFile: t.KeyFile, TrustedCAFile: t.ClientCAFile, ClientCertAuth: t.ClientCAFile != "",
	}
}

// scheme returns the scheme of addresses: https, or http for a nil TLS.
func (t *TLS) scheme() string {
	if t != nil {
		return "https"
	}
	return "http"
}

// AloneURL is the peer address of a member without peers. It listens to no peers.
const AloneURL = "http://127.0.0.1:2380"

func (c *Config) peers(ec *etcd.Config) error {
	self := AloneURL
	ec.ListenPeerUrls = nil
	ec.InitialCluster = c.Name + "=" + self
	if len(c.Members) > 0 {
		own, ok := c.Members[c.Name]
		if !ok {
			return fmt.Errorf("member %q is not among the members of the cluster", c.Name)
		}
		self = c.PeerTLS.scheme() + "://" + own
		ec.InitialCluster = c.initialCluster()
	}
	if c.Token != "" {
		ec.InitialClusterToken = c.Token
	}
	if c.Joins {
		ec.ClusterState = etcd.ClusterStateFlagExisting
	}
	u, err := url.Parse(self)
	if err != nil {
		return fmt.Errorf("peer address %q: %w", self, err)
	}
	ec.AdvertisePeerUrls = []url.URL{*u}
	if len(c.Members) == 0 {
		return nil
	}
	listen := *u
	if host := u.Hostname(); net.ParseIP(host) == nil && host != "localhost" { // of a proxy, or a container
		listen.Host = net.JoinHostPort("0.0.0.0", u.Port())
	}
	ec.ListenPeerUrls = []url.URL{listen}
	if client := ec.ListenClientUrls[0]; client.Port() != "" {
		client.Host = net.JoinHostPort(u.Hostname(), client.Port())
		ec.AdvertiseClientUrls = []url.URL{client}
	}
	return nil
}

func (c *Config) initialCluster() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.Members)) {
		all = append(all, name+"="+c.PeerTLS.scheme()+"://"+c.Members[name])
	}
	return strings.Join(all, ",")
}

// clientURL reads ClientListen.
func (c *Config) clientURL() (url.URL, error) {
	if path, ok := socketPath(c.ClientListen); ok {
		if !filepath.IsAbs(path) {
			return url.URL{}, fmt.Errorf("client address %q: the path of a socket must be absolute", c.ClientListen)
		}
		if c.TLS != nil {
			return url.URL{}, fmt.Errorf("client address %q: TLS is not available on a unix socket", c.ClientListen)
		}
		return url.URL{Scheme: "unix", Path: path}, nil
	}
	host, port, err := net.SplitHostPort(c.ClientListen)
	if err != nil {
		return url.URL{}, fmt.Errorf("client address %q: %w", c.ClientListen, err)
	}
	if host != "localhost" && net.ParseIP(host) == nil {
		return url.URL{}, fmt.Errorf("client address %q: the host must be an IP address or localhost", c.ClientListen)
	}
	return url.URL{Scheme: c.TLS.scheme(), Host: net.JoinHostPort(host, port)}, nil
}

// endpoint returns the address at which clients on this machine reach the listener at addr.
func (c *Config) endpoint(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return "unix://" + addr.String()
	}
	host := tcp.IP.String()
	if tcp.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return c.TLS.scheme() + "://" + net.JoinHostPort(host, fmt.Sprint(tcp.Port))
}

func socketPath(addr string) (path string, ok bool) {
	if path, ok = strings.CutPrefix(addr, "unix://"); ok {
		return path, true
	}
	return addr, strings.HasPrefix(addr, "/")
}
