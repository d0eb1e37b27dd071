package embed_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/testcert"
)

// dial connects with TLS if the server asks for it, and with a certificate of
// the client's own if there is one.
func dial(t *testing.T, s *embed.Server, authority *testcert.Authority, own *testcert.Pair) *store.Client {
	t.Helper()
	cfg := store.Config{Endpoints: []string{s.Endpoint()}}
	if strings.HasPrefix(s.Endpoint(), "https://") {
		conf := clientTLS(t, authority, own)
		cfg.TLS = func() *tls.Config { return conf }
	}
	c, err := store.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func clientTLS(t *testing.T, authority *testcert.Authority, own *testcert.Pair) *tls.Config {
	t.Helper()
	pem, err := os.ReadFile(authority.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	cfg := &tls.Config{RootCAs: roots}
	if own != nil {
		pair, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}
