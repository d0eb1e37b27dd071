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

// What a [Config] means where it says nothing.
const (
	// DefaultName names the only member of a cluster of one.
	DefaultName = "berth"
	// DefaultClientListen is etcd's own default, so that etcdctl finds it.
	DefaultClientListen = "127.0.0.1:2379"
	// DefaultTick and DefaultElection are etcd's own defaults. A leader is
	// missed after one to two election times.
	DefaultTick     = 100 * time.Millisecond
	DefaultElection = time.Second
	// DefaultQuotaBytes is the largest size of the database that etcd does not
	// warn of. A quota crossed is a state that an operator has to end, and
	// etcd's default of 2 GiB can be crossed within minutes of full load.
	DefaultQuotaBytes = 8 << 30
	// DefaultCompactEvery keeps between two and four minutes of history: a few
	// hundred megabytes at full load, and far more than a watch lags behind.
	DefaultCompactEvery = 2 * time.Minute
	// CloseTimeout bounds [Server.Close]. Members usually stop within 10 ms,
	// those of a cluster within about a second.
	CloseTimeout = 10 * time.Second
)

// Config says where a member keeps its data and how it is reached. Only DataDir
// is needed.
type Config struct {
	// DataDir is made if need be. One process at a time can use it.
	DataDir string
	// ClientListen is "host:port" with an IP address or localhost, where port 0
	// chooses a free one, or the absolute path of a unix socket, with or without
	// "unix://". Protect the folder of the socket: anybody may connect to it.
	ClientListen string
	// TLS makes the member ask for TLS. It can't be had on a unix socket.
	TLS *TLS

	// Name is this member's name in Members.
	Name string
	// Members are the peer addresses ("host:port") of all members of a cluster,
	// by name. Without them the member is alone and listens to no peers. They
	// count at the first start; later the data directory knows them.
	Members map[string]string
	// Joins says that the cluster of Members exists, and that this member was added to
	// it. It counts at the first start.
	Joins bool

	// Tick is how often a leader shows that it lives, Election the time after
	// which a silent one is replaced: at least five ticks, at most 50 s. Leases
	// shorter than 1.5 times Election are made longer by etcd.
	Tick, Election time.Duration
	// QuotaBytes is the size of the database above which etcd takes deletes only.
	QuotaBytes int64
	// CompactEvery is the interval at which history older than itself is
	// dropped. Below zero: never.
	CompactEvery time.Duration
	// UnsafeNoFsync leaves it to the kernel when data reaches the disk. For
	// tests: a crash of the machine loses what was acknowledged.
	UnsafeNoFsync bool
	// PasswordCost is that of hashing the passwords of etcd's users, 4 to 31: each more
	// doubles the time; 0 is etcd's default, 10.
	PasswordCost uint

	// Logger takes etcd's warnings and errors, and the rest of its log at the
	// level trace. Nil is silent.
	Logger hclog.Logger
}

// TLS names the PEM files of a member's client side.
type TLS struct {
	CertFile, KeyFile string
	// ClientCAFile, if not empty, makes the member demand certificates of its
	// clients, signed by one of these authorities. With etcd's users switched
	// on, a certificate's common name is the user.
	ClientCAFile string
}

// withDefaults fills in what was omitted.
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

// etcd spells the settings in etcd's words.
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
	// With port 0 this address is wrong, but only clients that ask etcd for the
	// addresses of its members get it; ours do not.
	ec.AdvertiseClientUrls = ec.ListenClientUrls
	if c.TLS != nil {
		ec.ClientTLSInfo = transport.TLSInfo{
			CertFile:       c.TLS.CertFile,
			KeyFile:        c.TLS.KeyFile,
			TrustedCAFile:  c.TLS.ClientCAFile,
			ClientCertAuth: c.TLS.ClientCAFile != "",
		}
	}
	return ec, c.peers(ec)
}

// aloneURL is the peer address of a member without peers. Nothing listens there.
const aloneURL = "http://127.0.0.1:2380"

func (c *Config) peers(ec *etcd.Config) error {
	self := aloneURL
	ec.ListenPeerUrls = nil
	ec.InitialCluster = c.Name + "=" + self
	if len(c.Members) > 0 {
		own, ok := c.Members[c.Name]
		if !ok {
			return fmt.Errorf("member %q is not among the members of the cluster", c.Name)
		}
		self = "http://" + own
		ec.InitialCluster = initialCluster(c.Members)
	}
	if c.Joins {
		ec.ClusterState = etcd.ClusterStateFlagExisting
	}
	u, err := url.Parse(self)
	if err != nil {
		return fmt.Errorf("peer address %q: %w", self, err)
	}
	ec.AdvertisePeerUrls = []url.URL{*u}
	if len(c.Members) > 0 {
		ec.ListenPeerUrls = ec.AdvertisePeerUrls
	}
	return nil
}

func initialCluster(members map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		all = append(all, name+"=http://"+members[name])
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
			return url.URL{}, fmt.Errorf("client address %q: TLS can't be had on a unix socket", c.ClientListen)
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
	return url.URL{Scheme: c.scheme(), Host: net.JoinHostPort(host, port)}, nil
}

// endpoint is how clients on this machine reach the listener at addr.
func (c *Config) endpoint(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return "unix://" + addr.String()
	}
	host := tcp.IP.String()
	if tcp.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return c.scheme() + "://" + net.JoinHostPort(host, fmt.Sprint(tcp.Port))
}

func (c *Config) scheme() string {
	if c.TLS != nil {
		return "https"
	}
	return "http"
}

func socketPath(addr string) (path string, ok bool) {
	if path, ok = strings.CutPrefix(addr, "unix://"); ok {
		return path, true
	}
	return addr, strings.HasPrefix(addr, "/")
}
