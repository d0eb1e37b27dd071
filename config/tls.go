package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
)

// ClientTLS returns how to speak TLS with etcd, or nil for plain text: TLS is
// spoken if cacert or cert is set, or an endpoint begins with https. Without
// cacert the system's own authorities count. The error is [Problems].
func (s Settings) ClientTLS() (*tls.Config, error) {
	cfg, problems := s.clientTLS()
	return cfg, problems.err()
}

// SidecarTLS returns how to speak TLS with the sidecar, or nil for plain text: TLS
// is spoken if its address begins with https. Without sidecar_cacert the system's
// own authorities count. The error is [Problems].
func (s Settings) SidecarTLS() (*tls.Config, error) {
	cfg, problems := s.sidecarTLS()
	return cfg, problems.err()
}

// ServerTLS returns how the HTTP address speaks TLS, or nil for plain text. The
// error is [Problems].
func (s Settings) ServerTLS() (*tls.Config, error) {
	cfg, problems := s.serverTLS()
	return cfg, problems.err()
}

func (s *Settings) clientTLS() (*tls.Config, Problems) {
	secure := slices.ContainsFunc(s.Endpoints, func(e string) bool { return strings.HasPrefix(e, "https://") })
	if s.CACert == "" && s.Cert == "" && !secure {
		return nil, nil
	}
	return dialTLS("", s.CACert, s.Cert, s.Key)
}

func (s *Settings) sidecarTLS() (*tls.Config, Problems) {
	if !s.secureSidecar() {
		return nil, nil
	}
	return dialTLS("sidecar_", s.SidecarCACert, s.SidecarCert, s.SidecarKey)
}

// secureSidecar reports whether the sidecar is spoken to over TLS.
func (s *Settings) secureSidecar() bool { return strings.HasPrefix(s.Sidecar, "https://") }

// dialTLS reads the authorities and the certificate to use: the files of the fields
// cacert, cert and key whose names begin with prefix.
func dialTLS(prefix, cacert, cert, key string) (*tls.Config, Problems) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	var problems Problems
	if cacert != "" {
		roots, err := authorities(cacert)
		if err != nil {
			problems = append(problems, Problem{Field: prefix + "cacert", Message: err.Error()})
		}
		cfg.RootCAs = roots
	}
	if cert != "" && key != "" {
		pair, p := loadPair(prefix+"cert", cert, prefix+"key", key)
		problems = append(problems, p...)
		cfg.Certificates = pair
	}
	return cfg, problems
}

func (s *Settings) serverTLS() (*tls.Config, Problems) {
	if s.TLSCert == "" || s.TLSKey == "" {
		return nil, nil
	}
	pair, problems := loadPair("tls_cert", s.TLSCert, "tls_key", s.TLSKey)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: pair}, problems
}

func authorities(path string) (*x509.CertPool, error) {
	data, _, err := readAll(path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("there is no PEM certificate in %s", path)
	}
	return roots, nil
}

// loadPair reads a certificate and its key. A problem is put down to the file
// that has it.
func loadPair(certField, certFile, keyField, keyFile string) ([]tls.Certificate, Problems) {
	var problems Problems
	cert, _, err := readAll(certFile)
	if err != nil {
		problems = append(problems, Problem{Field: certField, Message: err.Error()})
	}
	key, err := readSecretFile(keyFile)
	if err != nil {
		problems = append(problems, Problem{Field: keyField, Message: err.Error()})
	}
	if len(problems) > 0 {
		return nil, problems
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, Problems{{
			Field:   certField,
			Message: fmt.Sprintf("%s and %s (%s) are no certificate and its key: %v", certFile, keyFile, keyField, err),
		}}
	}
	return []tls.Certificate{pair}, nil
}
