package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testcert"
)

// believing makes settings that believe an authority, and show a certificate if
// there is one to show.
func believing(t testing.TB, ca *testcert.Authority, own *testcert.Pair) func(*instance.Options) {
	t.Helper()
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{RootCAs: x509.NewCertPool()}
	cfg.RootCAs.AppendCertsFromPEM(pem)
	if own != nil {
		cert, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return func(o *instance.Options) { o.TLS = func() *tls.Config { return cfg } }
}

func TestBothEndsShowTheirCertificates(t *testing.T) {
	t.Parallel()
	ca, other := testcert.New(t), testcert.New(t)
	pair := ca.Server(t)
	srv := embedtest.New(t, func(c *embed.Config) {
		c.TLS = &embed.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: ca.File}
	})
	own, foreign := ca.Client(t, "berth"), other.Client(t, "berth")
	endpoints := []string{srv.Endpoint()}

	c := open(t, endpoints, "host0", believing(t, ca, &own))
	spec(t, []*instance.Client{c}, "db", 1)
	release(t, claim(t, c, "one", instance.Slots{"db": 1}))

	for name, x := range map[string]struct {
		change func(*instance.Options)
		says   string
	}{
		"a server of another authority": {believing(t, other, &own), "the authority that signed the certificate of this etcd is unknown"},
		"a client of another authority": {believing(t, ca, &foreign), "does not know the authority that signed the client certificate"},
		"a client without":              {believing(t, ca, nil), "wants a client certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := instance.Open(t.Context(), options(endpoints, "host1", x.change))
			if instance.ErrorCode(err) != "etcd_denied" || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%s: %v", instance.ErrorCode(err), err)
			}
			t.Log(err)
		})
	}
	t.Run("without TLS", func(t *testing.T) {
		plain := strings.Replace(srv.Endpoint(), "https", "http", 1)
		_, err := instance.Open(t.Context(), options([]string{plain}, "host1"))
		if instance.ErrorCode(err) != "etcd_unavailable" {
			t.Errorf("%s: %v", instance.ErrorCode(err), err)
		}
		t.Log(err)
	})
}
