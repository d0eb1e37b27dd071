package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Cluster are the members of a cluster of servers.
type Cluster []Member

// Member is one server of a cluster.
type Member struct {
	Name string
	// Address is "host:port" for the other members, Secure whether they use TLS.
	Address string
	Secure  bool
}

// URL returns the address with its scheme.
func (m Member) URL() string { return m.scheme() + m.Address }

// Host returns the host of the address.
func (m Member) Host() string {
	host, _, _ := net.SplitHostPort(m.Address)
	return host
}

// ClientURL returns the address for clients at a port.
func (m Member) ClientURL(port string) string { return m.scheme() + net.JoinHostPort(m.Host(), port) }

func (m Member) scheme() string {
	if m.Secure {
		return "https://"
	}
	return "http://"
}

// String lists the members as a settings file would.
func (c Cluster) String() string {
	all := make([]string, len(c))
	for i, m := range c {
		all[i] = m.Name + "=" + m.URL()
	}
	return strings.Join(all, ",")
}

// Find returns the member of a name.
func (c Cluster) Find(name string) (Member, bool) {
	i := slices.IndexFunc(c, func(m Member) bool { return m.Name == name })
	if i < 0 {
		return Member{}, false
	}
	return c[i], true
}

// clusterEndpoints returns the client addresses of the members, that of the named one first. All members
// have the port of etcd_listen.
func (s Settings) clusterEndpoints() []string {
	_, port, err := net.SplitHostPort(s.EtcdListen)
	if err != nil {
		return nil // that is a problem of its own
	}
	var all []string
	for _, m := range s.Cluster {
		at := m.ClientURL(port)
		if m.Name == s.Name {
			all = slices.Insert(all, 0, at)
		} else {
			all = append(all, at)
		}
	}
	return all
}

const (
	// maxMembers bounds a cluster. More than five make writes slower and availability no better.
	maxMembers = 9
)

// IsPeerURL reports whether a text is an address of a member as in cluster.
func IsPeerURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && text == u.Scheme+"://"+u.Host && isHostPort(u.Host)
}

func parseCluster(text string) (Cluster, bool) {
	var all Cluster
	for item := range strings.SplitSeq(text, ",") {
		name, at, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok || !IsPeerURL(at) {
			return nil, false
		}
		scheme, address, _ := strings.Cut(at, "://")
		m := Member{Address: address, Secure: scheme == "https"}
		if m.Name, ok = parseHost(name); !ok || slices.ContainsFunc(all, func(o Member) bool {
			return o.Name == m.Name || o.Address == m.Address || o.Secure != m.Secure
		}) {
			return nil, false
		}
		all = append(all, m)
	}
	return all, len(all) <= maxMembers
}

// member checks the settings of a server, and fills in those that depend on its cluster.
func (l *loader) member() {
	s := &l.settings
	if l.origins["data_dir"].strength == byDefault {
		s.DataDir = serverDataDir
	}
	if s.Name == "" && l.sound("name") && l.sound("host") {
		s.Name, l.origins["name"] = s.Host, l.origins["host"]
	}
	if !l.sound("name") || !l.sound("cluster") || s.Name == "" {
		return
	}
	if len(s.Cluster) == 0 {
		l.alone()
		return
	}
	own, ok := s.Cluster.Find(s.Name)
	if !ok {
		l.wrong("name", fmt.Sprintf("%q is not among the members of cluster: %s", s.Name, s.Cluster))
		return
	}
	if l.origins["etcd_listen"].strength == byDefault {
		_, port, _ := net.SplitHostPort(s.EtcdListen)
		s.EtcdListen = net.JoinHostPort(listenHost(own.Host()), port)
	}
	if _, port, _ := net.SplitHostPort(s.EtcdListen); l.sound("etcd_listen") && port == "0" {
		l.wrong("etcd_listen", "port 0 can't be used: all servers have the same port, which the others must know")
	}
	if l.sound("etcd_listen") {
		l.memberTLS(own)
		l.ownAddresses(own)
	}
}

// ownAddresses checks that a server does not listen twice at one address.
func (l *loader) ownAddresses(own Member) {
	s := &l.settings
	peer := net.JoinHostPort(listenHost(own.Host()), portOf(own.Address))
	switch {
	case overlap(s.EtcdListen, peer):
		l.wrong("etcd_listen", fmt.Sprintf("%q is the address of this server in cluster: choose another port, the same on all servers, or another one in cluster", s.EtcdListen))
	case overlap(s.Listen, peer):
		l.wrong("listen", fmt.Sprintf("%q is the address of this server in cluster: choose another port", s.Listen))
	case overlap(s.Listen, s.EtcdListen):
		l.wrong("listen", fmt.Sprintf("%q is the address of etcd_listen: choose another port", s.Listen))
	}
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// overlap reports whether a process can't listen at both addresses.
func overlap(a, b string) bool {
	aHost, aPort, aErr := net.SplitHostPort(a)
	bHost, bPort, bErr := net.SplitHostPort(b)
	if aErr != nil || bErr != nil || aPort != bPort || aPort == "0" {
		return false
	}
	return aHost == bHost || isEverywhere(aHost) || isEverywhere(bHost)
}

// isEverywhere reports whether a host is all addresses of the machine.
func isEverywhere(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// Alone reports whether a server has no other servers, and so no address for them.
func (s Settings) Alone() bool { return len(s.Cluster) == 0 }

// alone checks the settings of a server without a cluster, and says where its etcd is. The server uses no
// other etcd.
func (l *loader) alone() {
	s := &l.settings
	if s.CACert == "" && s.Cert == "" && s.Key == "" {
		if l.origins["etcd_listen"].strength != byDefault {
			l.wrong("etcd_listen", fmt.Sprintf("can't be set without cacert, cert and key: all users of the machine could read and change everything there. Without them, a server that is alone serves etcd at a socket that only its user can reach, %s", EtcdSocket(s.DataDir)))
			return
		}
		dir, err := filepath.Abs(s.DataDir)
		if err != nil {
			l.wrong("data_dir", err.Error())
			return
		}
		s.EtcdListen = unixScheme + EtcdSocket(dir)
		s.Endpoints = []string{s.EtcdListen}
		return
	}
	if !l.sound("etcd_listen") {
		return
	}
	host, port, _ := net.SplitHostPort(s.EtcdListen)
	switch ip := net.ParseIP(host); {
	case port == "0":
		l.wrong("etcd_listen", "port 0 can't be used: others must know the port")
	case ip != nil && ip.IsUnspecified():
		l.wrong("etcd_listen", fmt.Sprintf("%q does not say at which address others reach this server: name one, or set cluster to %s=https://HOST:7423", s.EtcdListen, s.Name))
	default:
		s.Endpoints = []string{"https://" + s.EtcdListen}
		if overlap(s.Listen, s.EtcdListen) {
			l.wrong("listen", fmt.Sprintf("%q is the address of etcd_listen: choose another port", s.Listen))
		}
		l.memberFiles(host, "and a server with one of cacert, cert and key needs all three")
	}
}

// listenHost returns where to listen for connections to a host: at its address, or at all
// addresses if it is a name, which may be that of a proxy or a container.
func listenHost(host string) string {
	if net.ParseIP(host) == nil && host != "localhost" {
		return "0.0.0.0"
	}
	return host
}

// memberTLS checks that what other machines can reach is protected.
func (l *loader) memberTLS(own Member) {
	s := &l.settings
	if !own.Secure {
		for _, m := range s.Cluster {
			if !isLoopback(m.Address) {
				l.wrong("cluster", fmt.Sprintf("%s can be reached from other machines, and has no TLS: write https://, and set cacert, cert and key (see 'berth certs')", m.URL()))
				return
			}
		}
		if !isLoopback(s.EtcdListen) {
			l.wrong("etcd_listen", fmt.Sprintf("%q can be reached from other machines: everyone who can connect can write. Write https:// in cluster, and set cacert, cert and key", s.EtcdListen))
		}
		return
	}
	l.memberFiles(own.Host(), "and the members of the cluster use TLS")
}

// memberFiles checks that a server at a host has certificates for it. Text why says why it needs them.
func (l *loader) memberFiles(host, why string) {
	s := &l.settings
	for field, file := range map[string]string{"cacert": s.CACert, "cert": s.Cert, "key": s.Key} {
		if file == "" {
			l.wrong(field, fmt.Sprintf("is not set, %s: see 'berth certs'", why))
		}
	}
	if s.CACert == "" || s.Cert == "" || s.Key == "" || !l.sound("cert") || !l.sound("key") {
		return
	}
	pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		return // a problem already
	}
	l.signedByAuthority(pair)
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if !slices.Contains(pair.Leaf.ExtKeyUsage, usage) && !slices.Contains(pair.Leaf.ExtKeyUsage, x509.ExtKeyUsageAny) {
			l.wrong("cert", fmt.Sprintf("%s is not for both servers and clients: a member is both. Issue it with --hosts %s", s.Cert, host))
			return
		}
	}
	if err := pair.Leaf.VerifyHostname(host); err != nil {
		l.wrong("cert", fmt.Sprintf("%s is not for %s, which is the host of this member: issue it with --hosts %s", s.Cert, host, host))
	}
}

// signedByAuthority checks that the processes that use this authority, of which this server is one, accept its
// certificate.
func (l *loader) signedByAuthority(pair tls.Certificate) {
	s := &l.settings
	data, err := os.ReadFile(s.CACert)
	if err != nil || !l.sound("cacert") {
		return // a problem already
	}
	roots, err := authorities(s.CACert, data)
	if err != nil {
		return
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		// A certificate that has expired can be replaced while the server runs.
		CurrentTime: pair.Leaf.NotAfter,
	})
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		l.wrong("cert", fmt.Sprintf("%s is not signed by an authority in %s (cacert), so nothing accepts it: use the files of one authority", s.Cert, s.CACert))
	}
}
