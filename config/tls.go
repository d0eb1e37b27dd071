package config

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
)

// ClientTLS returns how to speak TLS with etcd, or nil for plain text: TLS is
// spoken if cacert or cert is set, or an endpoint begins with https, but not
// if all endpoints are unix sockets. Without cacert the system's own authorities count. The error is [Problems].
//
// The function that it returns is to be called for each connection: the files are read again
// when they change, and a change is reported to log, unless that is nil. Its results
// are shared, and must not be changed.
func (s Settings) ClientTLS(log hclog.Logger) (func() *tls.Config, error) {
	get, problems := s.clientTLS(log)
	return get, problems.err()
}

// SidecarTLS returns how to speak TLS with the sidecar, or nil for plain text: TLS
// is spoken if its address begins with https. Without sidecar_cacert the system's
// own authorities count. The error is [Problems]. The function is as that of
// [Settings.ClientTLS].
func (s Settings) SidecarTLS(log hclog.Logger) (func() *tls.Config, error) {
	get, problems := s.sidecarTLS(log)
	return get, problems.err()
}

// ServerTLS returns how the HTTP address speaks TLS, or nil for plain text. The
// error is [Problems]. The function is as that of [Settings.ClientTLS].
func (s Settings) ServerTLS(log hclog.Logger) (func() *tls.Config, error) {
	get, problems := s.serverTLS(log)
	return get, problems.err()
}

func (s *Settings) clientTLS(log hclog.Logger) (func() *tls.Config, Problems) {
	secure := slices.ContainsFunc(s.Endpoints, func(e string) bool { return strings.HasPrefix(e, "https://") })
	if s.onSockets() || s.CACert == "" && s.Cert == "" && !secure {
		return nil, nil
	}
	return dialTLS(log, "", s.CACert, s.Cert, s.Key)
}

func (s *Settings) sidecarTLS(log hclog.Logger) (func() *tls.Config, Problems) {
	if !s.secureSidecar() {
		return nil, nil
	}
	return dialTLS(log, "sidecar_", s.SidecarCACert, s.SidecarCert, s.SidecarKey)
}

// secureSidecar reports whether the sidecar is spoken to over TLS.
func (s *Settings) secureSidecar() bool { return strings.HasPrefix(s.Sidecar, "https://") }

// dialTLS reads the authorities and the certificate to use: the files of the fields
// cacert, cert and key whose names begin with prefix.
func dialTLS(log hclog.Logger, prefix, cacert, cert, key string) (func() *tls.Config, Problems) {
	mine := pair{certField: prefix + "cert", certFile: cert, keyField: prefix + "key", keyFile: key}
	return reloadTLS(log, mine, file{field: prefix + "cacert", path: cacert}, func(own []tls.Certificate, roots *x509.CertPool) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: own, RootCAs: roots, GetClientCertificate: mine.shown(own)}
	})
}

func (s *Settings) serverTLS(log hclog.Logger) (func() *tls.Config, Problems) {
	if s.TLSCert == "" || s.TLSKey == "" {
		return nil, nil
	}
	own := pair{certField: "tls_cert", certFile: s.TLSCert, keyField: "tls_key", keyFile: s.TLSKey}
	return reloadTLS(log, own, file{field: "client_ca", path: s.ClientCA}, func(own []tls.Certificate, clients *x509.CertPool) *tls.Config {
		c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: own}
		if clients != nil {
			c.ClientCAs, c.ClientAuth = clients, tls.VerifyClientCertIfGiven
			// A resumed session has the client certificate of its first handshake. Without
			// tickets, every connection verifies it with the authorities of now, whatever
			// crypto/tls checks in a resumption.
			c.SessionTicketsDisabled = true
		}
		return c
	})
}

// reloadTLS reads a certificate and authorities, and makes a configuration of them. Either may
// be left out.
func reloadTLS(log hclog.Logger, own pair, ca file, make func([]tls.Certificate, *x509.CertPool) *tls.Config) (func() *tls.Config, Problems) {
	var files []file
	if ca.path != "" {
		files = append(files, ca)
	}
	if own.certFile != "" && own.keyFile != "" {
		files = append(files, file{field: own.certField, path: own.certFile}, file{field: own.keyField, path: own.keyFile, secret: true})
	}
	r, problems := reload(log, files, func(read contents) (*tls.Config, Problems) {
		var problems Problems
		pool, err := authorities(ca.path, read[ca.field])
		if err != nil {
			problems = append(problems, Problem{Field: ca.field, Message: err.Error()})
		}
		certs, err := own.parse(read)
		if err != nil {
			problems = append(problems, Problem{Field: own.certField, Message: err.Error()})
		}
		return make(certs, pool), problems
	}, aboutTLS)
	if len(problems) > 0 {
		return nil, problems
	}
	return r.get, nil
}

// aboutTLS says in a log which certificate is shown.
func aboutTLS(c *tls.Config) []any {
	if len(c.Certificates) == 0 {
		return nil
	}
	leaf := c.Certificates[0].Leaf
	return []any{"serial", leaf.SerialNumber.Text(16), "expires", leaf.NotAfter.UTC().Format(time.RFC3339)}
}

// authorities reads certificates of authorities; no data is no pool.
func authorities(path string, data []byte) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("there is no PEM certificate in %s", path)
	}
	// A file that is being written may end within a certificate.
	for block, rest := pem.Decode(data); ; block, rest = pem.Decode(rest) {
		if block == nil {
			if bytes.Contains(rest, []byte("-----BEGIN")) {
				return nil, fmt.Errorf("the last PEM block in %s is not complete", path)
			}
			return roots, nil
		}
	}
}

// pair names a certificate and its key.
type pair struct{ certField, certFile, keyField, keyFile string }

// parse returns the certificate; none if there are no files of it.
func (p pair) parse(read contents) ([]tls.Certificate, error) {
	if read[p.certField] == nil {
		return nil, nil
	}
	c, err := tls.X509KeyPair(read[p.certField], read[p.keyField])
	if err != nil {
		return nil, fmt.Errorf("%s and %s (%s) are not a certificate and its key: %w", p.certFile, p.keyFile, p.keyField, err)
	}
	return []tls.Certificate{c}, nil
}

// shown returns which certificate a server is shown that asks for one: as crypto/tls does, but for one that is
// not valid now it returns an error, since few servers say why they close the connection.
func (p pair) shown(own []tls.Certificate) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		for i := range own {
			if asked.SupportsCertificate(&own[i]) == nil {
				return &own[i], p.valid(own[i].Leaf, time.Now())
			}
		}
		return &tls.Certificate{}, nil
	}
}

// valid returns an error if a certificate of these files is not valid at a time.
func (p pair) valid(leaf *x509.Certificate, now time.Time) error {
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("%s: the certificate in %s has expired at %s, so nothing accepts it: replace it, for example with 'berth certs issue NAME --renew'",
			p.certField, p.certFile, leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("%s: the certificate in %s is not valid before %s: check the clock of this machine, or replace the certificate",
			p.certField, p.certFile, leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}
