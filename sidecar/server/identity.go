package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/proc"
)

// Peer is who is at the other end of a unix socket, as the kernel says. Nothing of it is
// known where the kernel does not say.
type Peer struct {
	Known bool
	// PID is the process that connected; 0 if it is in a pid namespace that this process can't see.
	PID int
	UID uint32
	// GIDs are its groups.
	GIDs []uint32
	// opened is when the connection was accepted: see [proc.PeerSharesPIDs].
	opened time.Duration
}

type (
	peerKey struct{}
	connKey struct{}
	addrKey struct{}
	nowKey  struct{}
)

// PeerOf returns who sent a request over the unix socket; false over TCP.
func PeerOf(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// SharesPIDs reports whether the process that sent a request over the unix socket is known to be in
// the pid namespace of this process.
func SharesPIDs(ctx context.Context) bool {
	peer, _ := PeerOf(ctx)
	c, ok := ctx.Value(connKey{}).(*clientConn)
	if !ok {
		return false
	}
	unix, ok := c.Conn.(*net.UnixConn)
	return ok && proc.PeerSharesPIDs(unix, peer.opened)
}

// AddressOf returns the address from which a request was sent; none over the unix socket.
func AddressOf(ctx context.Context) string {
	from, _ := ctx.Value(addrKey{}).(string)
	return from
}

// connContext notes who is at the other end of a connection. Requests that show a token
// have another identity: see [guard.identify].
func (g *guard) connContext(ctx context.Context, c net.Conn) context.Context {
	secure, _ := c.(*tls.Conn)
	if secure != nil {
		c = secure.NetConn()
	}
	client, ok := c.(*clientConn)
	if !ok {
		return ctx
	}
	ctx = context.WithValue(ctx, connKey{}, client)
	if _, ok := client.Conn.(*net.UnixConn); ok {
		peer := client.peer
		peer.opened = proc.Accepted()
		ctx = context.WithValue(ctx, peerKey{}, peer)
		return access.With(ctx, sync.OnceValue(func() access.Identity { return g.user(peer) }))
	}
	ctx = context.WithValue(ctx, addrKey{}, c.RemoteAddr().String())
	return access.With(ctx, g.certificate(secure))
}

// user returns the identity of a user of the host. Root and the server's own user can do
// whatever the server does in other ways: they are administrators.
func (g *guard) user(p Peer) access.Identity {
	id := access.Identity{Kind: access.User, Name: "unknown"}
	if p.Known {
		id.Name = g.users.name(p.UID)
		if g.policy.UsesGroups() {
			id.Names = g.users.groups(p.GIDs)
		}
	}
	if id.Grants = g.policy.Grants(id, nil); p.Known && (p.UID == 0 || int(p.UID) == os.Geteuid()) {
		id.Grants = access.AllGrants
	}
	return id
}

// certificate returns a function that returns the identity of the client certificate of a
// connection whose handshake is over; nil is one without TLS. A certificate that has expired
// since, or whose authority was removed, counts no longer: connections can last for days.
func (g *guard) certificate(c *tls.Conn) func() access.Identity {
	var mu sync.Mutex
	var last *tls.Config // that the certificate was verified with
	var id access.Identity
	var until time.Time // the end of the certificate; zero for none
	return func() access.Identity {
		mu.Lock()
		defer mu.Unlock()
		var conf *tls.Config
		if c != nil {
			conf = g.tls()
		}
		if id.Kind == "" || conf != last || !until.IsZero() && time.Now().After(until) {
			last, until, id = conf, time.Time{}, access.Identity{Kind: access.Anonymous}
			if c != nil {
				if cert := verified(c.ConnectionState().PeerCertificates, conf); cert != nil {
					id, until = identityOf(cert), cert.NotAfter
				}
			}
			id.Grants = g.policy.Grants(id, nil)
		}
		return id
	}
}

// verified returns the first of the certificates that a client has shown if the authorities of
// a configuration have signed it, and nil otherwise.
func verified(shown []*x509.Certificate, conf *tls.Config) *x509.Certificate {
	if len(shown) == 0 || conf.ClientAuth < tls.VerifyClientCertIfGiven {
		return nil
	}
	opts := x509.VerifyOptions{
		Roots: conf.ClientCAs, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, cert := range shown[1:] {
		opts.Intermediates.AddCert(cert)
	}
	if _, err := shown[0].Verify(opts); err != nil {
		return nil
	}
	return shown[0]
}

// identityOf returns the identity of a certificate: its common name, or else the first of its
// alternative names. A certificate without names gives no identity, nor does one whose first name is
// too long to be recorded.
func identityOf(cert *x509.Certificate) access.Identity {
	all := append([]string{cert.Subject.CommonName}, cert.DNSNames...)
	all = append(all, cert.EmailAddresses...)
	for _, uri := range cert.URIs {
		all = append(all, uri.String())
	}
	all = slices.DeleteFunc(all, func(name string) bool { return name == "" })
	if len(all) == 0 || access.NameOf(all[0]) == "" {
		return access.Identity{Kind: access.Anonymous}
	}
	names := make([]string, 0, len(all))
	for _, name := range all {
		if name = access.NameOf(name); name != "" {
			names = append(names, name)
		}
	}
	return access.Identity{Kind: access.Certificate, Name: names[0], Names: names[1:]}
}

// usersFor is how long names of users and groups are kept: a changed name is known a minute
// later, and connections that come one after the other read no files.
const usersFor = time.Minute

// users finds the names of users and groups. The zero value is ready.
type users struct {
	// mu guards what follows.
	mu    sync.Mutex
	read  time.Time
	names map[string]string // "u" or "g" and the number
}

// name returns the name of a user; the number if it has none.
func (u *users) name(uid uint32) string {
	return u.find("u", uid, func(string) (string, error) { return access.UserOf(uid).Name, nil })
}

// groups returns the names of groups; the number of one that has none.
func (u *users) groups(gids []uint32) []string {
	names := make([]string, len(gids))
	for i, gid := range gids {
		names[i] = u.find("g", gid, func(id string) (string, error) {
			found, err := user.LookupGroupId(id)
			if err != nil {
				return "", err
			}
			return found.Name, nil
		})
	}
	return names
}

func (u *users) find(kind string, number uint32, look func(id string) (string, error)) string {
	id := strconv.FormatUint(uint64(number), 10)
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := time.Now(); u.names == nil || now.Sub(u.read) > usersFor {
		u.names, u.read = map[string]string{}, now
	}
	name, ok := u.names[kind+id]
	if !ok {
		var err error
		if name, err = look(id); err == nil {
			name = access.NameOf(name)
		}
		if err != nil || name == "" {
			name = id
		}
		u.names[kind+id] = name
	}
	return name
}
