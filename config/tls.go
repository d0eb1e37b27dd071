package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
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
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	var problems Problems
	if s.CACert != "" {
		roots, err := authorities(s.CACert)
		if err != nil {
			problems = append(problems, Problem{Field: "cacert", Message: err.Error()})
		}
		cfg.RootCAs = roots
	}
	if s.Cert != "" && s.Key != "" {
		pair, p := loadPair("cert", s.Cert, "key", s.Key)
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
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("can't be read: %w", err)
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
	read := func(field, path string) []byte {
		data, err := os.ReadFile(path)
		if err != nil {
			problems = append(problems, Problem{Field: field, Message: fmt.Sprintf("can't be read: %v", err)})
		}
		return data
	}
	cert, key := read(certField, certFile), read(keyField, keyFile)
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
