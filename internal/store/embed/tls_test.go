package embed_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
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

func TestTheSocketsOfAMemberAreInItsDataDirectory(t *testing.T) {
	pair := testcert.New(t).Server(t)
	dir := filepath.Join(t.TempDir(), "etcd")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := embedtest.New(t, func(c *embed.Config) {
		c.DataDir, c.Socket = dir, embed.SocketPath(dir)
		c.TLS = &embed.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: pair.CertFile}
	})
	sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	if err != nil || len(sockets) != 2 {
		t.Errorf("its sockets are %v, %v", sockets, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("others can reach them: %v, %v", info.Mode(), err)
	}
	if s.Addr().Network() != "tcp" {
		t.Errorf("its address is %s", s.Addr())
	}
	c, err := store.NewClient(store.Config{Endpoints: []string{"unix://" + embed.SocketPath(dir)}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	put(t, c, "k", "v")
}

func TestAPathThatIsTooLongForASocketIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", embed.MaxSocketPath))
	for name, change := range map[string]func(*embed.Config){
		"of clients": func(c *embed.Config) { c.ClientListen = embed.SocketPath(dir) },
		"of HTTP":    func(c *embed.Config) { c.TLS = &embed.TLS{} },
	} {
		cfg := embed.Config{DataDir: dir}
		change(&cfg)
		if _, err := embed.Start(t.Context(), cfg); !errors.Is(err, embed.ErrSocketPath) || !strings.Contains(err.Error(), "at most 107") {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}
