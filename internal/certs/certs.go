// Package certs creates the certificates of a cluster as PEM files: an authority, and the
// certificates that it signs for servers and clients.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

// Names of the files of an authority.
const (
	AuthorityCert = "ca.crt"
	AuthorityKey  = "ca.key"
)

const (
	// DefaultAuthorityLifetime is how long an authority is valid, and DefaultLifetime how long a
	// certificate that it signs. A server reads its certificate again when the files change, but
	// etcd reads its authorities only at the start, so an authority is valid for much longer.
	DefaultAuthorityLifetime = 10 * 365 * 24 * time.Hour
	DefaultLifetime          = 365 * 24 * time.Hour
	// MinLifetime is the shortest allowed lifetime of both.
	MinLifetime = time.Hour
	// backdate is how long before its creation a certificate is valid, for hosts whose clocks are
	// slow.
	backdate = 5 * time.Minute
)

// Pair holds the file names of a certificate and its key.
type Pair struct {
	CertFile string `json:"cert"`
	KeyFile  string `json:"key"`
}

// Authority is a certificate authority: its certificate and its private key.
type Authority struct {
	cert *x509.Certificate
	key  any
}

// Init creates an authority in dir, and the folder itself if it does not exist. It returns an error
// if one of the two files exists.
func Init(dir string, lifetime time.Duration) (Pair, error) {
	p := Pair{filepath.Join(dir, AuthorityCert), filepath.Join(dir, AuthorityKey)}
	key, err := newKey()
	if err != nil {
		return p, err
	}
	c, err := template("berth authority", lifetime)
	if err != nil {
		return p, err
	}
	c.IsCA, c.BasicConstraintsValid, c.MaxPathLenZero = true, true, true
	c.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return p, problem.Field("dir", "%w", err)
	}
	return p, (&Authority{c, key}).write(p, c, key, problem.Field("dir", "%s already has an authority, and the certificates that it signed would become invalid. Choose another folder", dir))
}

// Open reads the authority in dir.
func Open(dir string) (*Authority, error) {
	p := Pair{filepath.Join(dir, AuthorityCert), filepath.Join(dir, AuthorityKey)}
	if info, err := os.Stat(p.KeyFile); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, problem.Field("dir", "%s can be read or changed by others than its owner (mode %04o), who can then issue certificates: run chmod 600 %s, and create another authority if they may have read it", p.KeyFile, info.Mode().Perm(), p.KeyFile)
	}
	pair, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && isFile(p.CertFile):
		return nil, problem.Field("dir", "%s has no %s: use the folder in which the authority was created", dir, AuthorityKey)
	case errors.Is(err, fs.ErrNotExist):
		return nil, problem.Field("dir", "there is no authority in %s: create one with 'berth certs init --dir %s': %w", dir, dir, err)
	case err != nil:
		return nil, problem.Field("dir", "%s and %s are not a certificate and its key: %w", p.CertFile, p.KeyFile, err)
	case !pair.Leaf.IsCA:
		return nil, problem.Field("dir", "%s is not the certificate of an authority", p.CertFile)
	}
	return &Authority{pair.Leaf, pair.PrivateKey}, nil
}

// isFile reports whether a file or folder of that name exists.
func isFile(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// Request describes a certificate to issue.
type Request struct {
	// Name is the common name: the identity of a client, and its user in an etcd with
	// authentication.
	Name string
	// Hosts are the names and IP addresses of a server. If it is empty, the certificate is only for
	// a client.
	Hosts []string
	// Lifetime is how long the certificate is valid; it never outlives its authority.
	Lifetime time.Duration
}

// named matches valid names of any length: a name becomes part of file names, and an identity.
var named = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]*$`)

// check returns an error if the name or a host is invalid.
func (r *Request) check() error {
	if err := ValidateName(r.Name); err != nil {
		return err
	}
	for _, host := range r.Hosts {
		if net.ParseIP(host) == nil && !validHost(host) {
			return problem.Field("hosts", "%s is neither a host name nor an IP address", problem.Quote(host))
		}
	}
	return nil
}

// ValidateName returns an error if a name cannot be the name of a certificate.
func ValidateName(name string) error {
	if len(name) > maxName || !named.MatchString(name) || name == "ca" {
		return problem.Field("name", "invalid certificate name %s: use 1 to 63 letters, digits, '.', '_', '@' and '-', the first a letter or digit, but not ca", problem.Quote(name))
	}
	return nil
}

// maxName is the maximum length of a name, and of a label of a host name, in bytes.
const maxName = 63

// label matches the labels of host names, of any length.
var label = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)

// validHost reports whether a host name is valid. It can begin with a wildcard.
func validHost(name string) bool {
	for one := range strings.SplitSeq(strings.TrimPrefix(name, "*."), ".") {
		if len(one) > maxName || !label.MatchString(one) {
			return false
		}
	}
	return true
}

// Issue signs a certificate, and writes it and its key to NAME.crt and NAME.key in dir. If one of
// the files exists, Issue replaces both with renew set, and otherwise returns an error. A renewed
// certificate keeps the hosts of the old one if the request has none.
func (a *Authority) Issue(r Request, dir string, renew bool) (Pair, error) {
	p := r.files(dir)
	if err := r.check(); err != nil {
		return p, err
	}
	if renew && len(r.Hosts) == 0 {
		hosts, err := hostsOf(p.CertFile)
		if err != nil {
			return p, err
		}
		r.Hosts = hosts
	}
	return p, a.issue(r, dir, renew)
}

// files returns the file names of the certificate in dir.
func (r *Request) files(dir string) Pair {
	return Pair{filepath.Join(dir, r.Name+".crt"), filepath.Join(dir, r.Name+".key")}
}

// hostsOf returns the hosts of a certificate, or none if the file does not exist.
func hostsOf(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, problem.Field("name", "%w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		block = &pem.Block{}
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, problem.Field("name", "%s is not a certificate, so its hosts are unknown: set --hosts, or remove the file to issue the certificate of a client: %w", file, err)
	}
	hosts := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts, nil
}

// issue is [Authority.Issue] for a request that was checked. The certificate has exactly the hosts
// of the request.
func (a *Authority) issue(r Request, dir string, renew bool) error {
	p := r.files(dir)
	c, err := template(r.Name, r.Lifetime)
	if err != nil {
		return err
	}
	if c.NotAfter.After(a.cert.NotAfter) {
		c.NotAfter = a.cert.NotAfter
	}
	if !c.NotAfter.After(time.Now()) {
		return problem.Field("dir", "the authority expired on %s", a.cert.NotAfter.UTC().Format(time.DateOnly))
	}
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(r.Hosts) > 0 {
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, host)
		}
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return problem.Field("out", "%w", err)
	}
	var exists *problem.Error
	if !renew {
		exists = problem.Field("name", "%s already has a certificate of %q: replace it with --renew, or choose another name", dir, r.Name)
	}
	return a.write(p, c, key, exists)
}

// renewBefore is how long before its expiry [Make] replaces a certificate.
const renewBefore = 30 * 24 * time.Hour

// Make creates missing files: an authority in dir, and a copy of its certificate and the
// certificates of the requests in out. It replaces certificates that expire soon, that lack a host,
// or that another authority signed. It returns the names of the certificates that it created.
func Make(dir, out string, authorityLifetime time.Duration, requests []Request) (made []string, err error) {
	for _, r := range requests {
		if err := r.check(); err != nil {
			return nil, err
		}
	}
	_, certErr := os.Lstat(filepath.Join(dir, AuthorityCert))
	_, keyErr := os.Lstat(filepath.Join(dir, AuthorityKey))
	if errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist) {
		if _, err := Init(dir, authorityLifetime); err != nil {
			return nil, err
		}
	}
	a, err := Open(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(out, 0o700); err != nil {
		return nil, problem.Field("out", "%w", err)
	}
	if err := writeFiles(file{filepath.Join(out, AuthorityCert), &pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}, 0o644}); err != nil {
		return nil, err
	}
	made = []string{}
	for _, r := range requests {
		if a.current(filepath.Join(out, r.Name), r) {
			continue
		}
		if err := a.issue(r, out, true); err != nil {
			return made, err
		}
		made = append(made, r.Name)
	}
	return made, nil
}

// current reports whether this authority signed the certificate in the files, for all hosts of the
// request, and whether it does not expire soon.
func (a *Authority) current(path string, r Request) bool {
	pair, err := tls.LoadX509KeyPair(path+".crt", path+".key")
	if err != nil || pair.Leaf.CheckSignatureFrom(a.cert) != nil {
		return false
	}
	for _, host := range r.Hosts {
		if net.ParseIP(host) != nil && pair.Leaf.VerifyHostname(host) != nil ||
			net.ParseIP(host) == nil && !slices.Contains(pair.Leaf.DNSNames, host) {
			return false
		}
	}
	return time.Until(pair.Leaf.NotAfter) > min(renewBefore, r.Lifetime/2)
}

func template(name string, lifetime time.Duration) (*x509.Certificate, error) {
	if lifetime < MinLifetime {
		return nil, problem.Field("lifetime", "%s is too short: the minimum is %s", lifetime, MinLifetime)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(lifetime), KeyUsage: x509.KeyUsageDigitalSignature,
	}, nil
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// write signs a certificate for key, and writes the certificate and the key. If one of the files
// exists, it returns the error exists, or replaces both files if exists is nil.
func (a *Authority) write(p Pair, c *x509.Certificate, key *ecdsa.PrivateKey, exists *problem.Error) error {
	cert, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return fmt.Errorf("sign %s: %w", p.CertFile, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for _, path := range []string{p.KeyFile, p.CertFile} {
		if _, err := os.Lstat(path); err == nil && exists != nil {
			return exists
		}
	}
	return writeFiles(
		file{p.KeyFile, &pem.Block{Type: "PRIVATE KEY", Bytes: secret}, 0o600},
		file{p.CertFile, &pem.Block{Type: "CERTIFICATE", Bytes: cert}, 0o644},
	)
}

// file is a PEM file to write.
type file struct {
	path  string
	block *pem.Block
	mode  fs.FileMode
}

// writeFiles writes files atomically: a process that reads a file gets either the old or the new
// one. All new files are complete on the disk before the first one is replaced, so a full disk or a
// crash during the write changes no file.
func writeFiles(files ...file) error {
	var written []string
	defer func() {
		for _, path := range written {
			_ = os.Remove(path) // those that were not renamed
		}
	}()
	for _, f := range files {
		temporary, err := os.CreateTemp(filepath.Dir(f.path), ".berth-*")
		if err != nil {
			return err
		}
		written = append(written, temporary.Name())
		if err := errors.Join(temporary.Chmod(f.mode), pem.Encode(temporary, f.block), temporary.Sync(), temporary.Close()); err != nil {
			return err
		}
	}
	for i, f := range files {
		if err := os.Rename(written[i], f.path); err != nil {
			return err
		}
	}
	return nil
}
