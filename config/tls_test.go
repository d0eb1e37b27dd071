package config

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/testcert"
)

func TestTLSIsSpokenOnlyWhereAskedFor(t *testing.T) {
	authority := testcert.New(t)
	for name, tc := range map[string]struct {
		s             Settings
		etcd, sidecar bool
	}{
		"nothing":   {s: Settings{Endpoints: []string{"a:1", "http://b:1"}, Sidecar: "http://a"}},
		"https":     {s: Settings{Endpoints: []string{"a:1", "https://b:1"}}, etcd: true},
		"a cacert":  {s: Settings{Endpoints: []string{"a:1"}, CACert: authority.File}, etcd: true},
		"a sidecar": {s: Settings{Sidecar: "https://a"}, sidecar: true},
		"a socket":  {s: Settings{Sidecar: "unix:///s", SidecarCACert: authority.File}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := tc.s.ClientTLS()
			if err != nil || (cfg != nil) != tc.etcd {
				t.Errorf("TLS with etcd is %v, error %v", cfg, err)
			}
			cfg, err = tc.s.SidecarTLS()
			if err != nil || (cfg != nil) != tc.sidecar {
				t.Errorf("TLS with the sidecar is %v, error %v", cfg, err)
			}
		})
	}
}

func TestBothSidesUnderstandEachOther(t *testing.T) {
	authority := testcert.New(t)
	server, client := authority.Server(t), authority.Client(t, "someone")
	s := Settings{
		CACert: authority.File, Cert: client.CertFile, Key: client.KeyFile,
		Sidecar: "https://localhost", SidecarCACert: authority.File, SidecarCert: client.CertFile, SidecarKey: client.KeyFile,
		TLSCert: server.CertFile, TLSKey: server.KeyFile,
	}
	for name, clientTLS := range map[string]func() (*tls.Config, error){"etcd": s.ClientTLS, "a sidecar": s.SidecarTLS} {
		t.Run(name, func(t *testing.T) {
			serverTLS, err := s.ServerTLS()
			if err != nil {
				t.Fatal(err)
			}
			serverTLS.ClientAuth = tls.RequireAnyClientCert
			conf, err := clientTLS()
			if err != nil {
				t.Fatal(err)
			}
			conf.ServerName = "localhost"
			if name := shake(t, serverTLS, conf); name != "someone" {
				t.Errorf("the client shows the certificate of %q", name)
			}
		})
	}
}

// shake shakes hands, and returns the name in the client's certificate.
func shake(t *testing.T, server, client *tls.Config) string {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error, 1)
	accepted := tls.Server(a, server)
	go func() { done <- accepted.HandshakeContext(t.Context()) }()
	if err := tls.Client(b, client).HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return accepted.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestFilesThatFailAreNamed(t *testing.T) {
	_, err := Settings{CACert: "/no/ca.pem", Cert: "/no/cert.pem", Key: "/no/key.pem"}.ClientTLS()
	for _, file := range []string{"/no/ca.pem", "/no/cert.pem", "/no/key.pem"} {
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("the error %v does not name %s", err, file)
		}
	}
}
