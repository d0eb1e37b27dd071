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
		s    Settings
		want bool
	}{
		"nothing":  {Settings{Endpoints: []string{"a:1", "http://b:1"}}, false},
		"https":    {Settings{Endpoints: []string{"a:1", "https://b:1"}}, true},
		"a cacert": {Settings{Endpoints: []string{"a:1"}, CACert: authority.File}, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := tc.s.ClientTLS()
			if err != nil || (cfg != nil) != tc.want {
				t.Errorf("TLS is %v, error %v", cfg, err)
			}
		})
	}
}

func TestBothSidesUnderstandEachOther(t *testing.T) {
	authority := testcert.New(t)
	server, client := authority.Server(t), authority.Client(t, "someone")
	s := Settings{
		CACert: authority.File, Cert: client.CertFile, Key: client.KeyFile,
		TLSCert: server.CertFile, TLSKey: server.KeyFile,
	}
	serverTLS, err := s.ServerTLS()
	if err != nil {
		t.Fatal(err)
	}
	clientTLS, err := s.ClientTLS()
	if err != nil {
		t.Fatal(err)
	}
	serverTLS.ClientAuth = tls.RequireAnyClientCert
	clientTLS.ServerName = "localhost"

	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error, 1)
	accepted := tls.Server(a, serverTLS)
	go func() { done <- accepted.HandshakeContext(t.Context()) }()
	if err := tls.Client(b, clientTLS).HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if name := accepted.ConnectionState().PeerCertificates[0].Subject.CommonName; name != "someone" {
		t.Errorf("the client shows the certificate of %q", name)
	}
}

func TestFilesThatFailAreNamed(t *testing.T) {
	_, err := Settings{CACert: "/no/ca.pem", Cert: "/no/cert.pem", Key: "/no/key.pem"}.ClientTLS()
	for _, file := range []string{"/no/ca.pem", "/no/cert.pem", "/no/key.pem"} {
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("the error %v does not name %s", err, file)
		}
	}
}
