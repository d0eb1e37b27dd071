package server

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/testcert"
)

// clients returns a configuration that accepts the clients of an authority.
func clients(t *testing.T, server testcert.Pair, of *testcert.Authority) *tls.Config {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(server.CertFile, server.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(of.File)
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: x509.NewCertPool()}
	conf.ClientCAs.AppendCertsFromPEM(pem)
	return conf
}

// A connection may outlive the certificate that its client has shown, and its authority.
func TestACertificateCountsForAsLongAsItIsValid(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, current **tls.Config, server testcert.Pair){
		"another authority": func(t *testing.T, current **tls.Config, server testcert.Pair) {
			*current = clients(t, server, testcert.New(t))
		},
		"no client certificates": func(_ *testing.T, current **tls.Config, _ testcert.Pair) {
			*current = &tls.Config{Certificates: (*current).Certificates}
		},
		"a later time": func(*testing.T, **tls.Config, testcert.Pair) { time.Sleep(25 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca := testcert.New(t)
				server, own := ca.Server(t), ca.Client(t, "someone")
				current := clients(t, server, ca)
				cert, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
				if err != nil {
					t.Fatal(err)
				}
				a, b := net.Pipe()
				defer a.Close()
				defer b.Close()
				go func() {
					client := tls.Client(b, &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true})
					_, _ = client.Read(make([]byte, 1)) // until the end
				}()
				conn := tls.Server(a, current)
				if err := conn.HandshakeContext(t.Context()); err != nil {
					t.Fatal(err)
				}
				rule, err := access.ParseRule("cert:someone operate")
				if err != nil {
					t.Fatal(err)
				}
				g := &guard{policy: &access.Policy{Rules: []access.Rule{rule}}, tls: func() *tls.Config { return current }}
				who := g.certificate(conn)
				for range 2 {
					if id := who(); id.String() != "cert:someone" || !id.Grants.Has(access.Operate) {
						t.Fatalf("the identity is %s with %v", id, id.Grants)
					}
				}
				end(t, &current, server)
				if id := who(); id.Authenticated() || id.Grants.Has(access.Operate) {
					t.Errorf("afterwards the identity is %s with %v", id, id.Grants)
				}
			})
		})
	}
}
