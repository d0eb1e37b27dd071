// Package testcert makes certificates for tests: an authority, and what it
// signs, as PEM files in a test's own folder. They are good for a day.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	// File is the authority's own certificate.
	File string

	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

// Pair names the files of a certificate and of its key.
type Pair struct{ CertFile, KeyFile string }

// New makes an authority whose files live as long as the test.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{dir: t.TempDir(), key: newKey(t)}
	a.cert = a.template("test authority")
	a.cert.IsCA = true
	a.cert.BasicConstraintsValid = true
	a.cert.KeyUsage = x509.KeyUsageCertSign
	a.File = a.write(t, "ca.crt", "CERTIFICATE", a.sign(t, a.cert, &a.key.PublicKey))
	return a
}

// Server returns a certificate for a server on this machine's loopback
// addresses, or only for some DNS names.
func (a *Authority) Server(t testing.TB, names ...string) Pair {
	t.Helper()
	c := a.template("server")
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	c.DNSNames = []string{"localhost"}
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if len(names) > 0 {
		c.DNSNames, c.IPAddresses = names, nil
	}
	return a.pair(t, c)
}

// Client returns a certificate for a client with that common name.
func (a *Authority) Client(t testing.TB, name string) Pair {
	t.Helper()
	c := a.template(name)
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.pair(t, c)
}

// Expired returns a certificate for a client and a server that has expired a minute ago.
func (a *Authority) Expired(t testing.TB) Pair {
	t.Helper()
	c := a.template("expired")
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	c.DNSNames, c.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	c.NotAfter = time.Now().Add(-time.Minute)
	return a.pair(t, c)
}

func (a *Authority) template(name string) *x509.Certificate {
	a.serial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func (a *Authority) pair(t testing.TB, c *x509.Certificate) Pair {
	t.Helper()
	key := newKey(t)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	name := c.SerialNumber.String()
	return Pair{
		CertFile: a.write(t, name+".crt", "CERTIFICATE", a.sign(t, c, &key.PublicKey)),
		KeyFile:  a.write(t, name+".key", "PRIVATE KEY", der),
	}
}

func (a *Authority) sign(t testing.TB, c *x509.Certificate, key *ecdsa.PublicKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func (a *Authority) write(t testing.TB, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(a.dir, name)
	block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
