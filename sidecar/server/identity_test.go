package server

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"os"
	"strings"
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

// Names of certificates are what an authority has signed: not all of them can be in rules and
// records as they are.
func TestNamesOfCertificatesCanBeInRulesAndRecords(t *testing.T) {
	for name, want := range map[string]string{
		"airflow.example.com":    "cert:airflow.example.com",
		"bob admin":              "cert:bob%20admin",
		"*":                      "cert:%2A",
		"100%20":                 "cert:100%2520",
		"a\nlevel=error":         "cert:a%0Alevel=error",
		"J\u00fcrgen":            "cert:J%C3%BCrgen",
		"\xff":                   "cert:%FF",
		strings.Repeat("x", 128): "cert:" + strings.Repeat("x", 128),
		strings.Repeat("x", 129): "anonymous",
		strings.Repeat("\n", 43): "anonymous",
		"":                       "cert:ann@example.com",
	} {
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: name}, EmailAddresses: []string{"ann@example.com"}}
		id := identityOf(cert)
		if id.String() != want {
			t.Errorf("%q is %s, want %s", name, id, want)
		}
		if !id.Authenticated() {
			continue
		}
		rule, err := access.ParseRule(id.String() + " operate")
		if err != nil {
			t.Errorf("%q in a rule: %v", name, err)
		}
		p := access.Policy{Rules: []access.Rule{rule}}
		if !p.Grants(id, nil).Has(access.Operate) {
			t.Errorf("a rule for %s does not give it its role", id)
		}
		if other := (access.Identity{Kind: access.Certificate, Name: "bob"}); p.Grants(other, nil).Has(access.Operate) {
			t.Errorf("a rule for %s gives a role to %s", id, other)
		}
	}
}
