package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berthhq/berth/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority makes an authority in a folder.
func authority(t *testing.T, lifetime time.Duration) (dir string, a *Authority, pool *x509.CertPool) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "certs")
	if _, err := Init(dir, lifetime); err != nil {
		t.Fatal(err)
	}
	a, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(a.cert)
	return dir, a, pool
}

func TestACertificateIsForWhatItWasIssuedFor(t *testing.T) {
	dir, a, pool := authority(t, DefaultAuthorityLifetime)
	for name, c := range map[string]struct {
		hosts  []string
		server bool
	}{
		"server": {[]string{"10.0.0.1", "db.example.org", "::1"}, true},
		"client": {nil, false},
	} {
		pair, err := a.Issue(Request{Name: name, Hosts: c.hosts, Lifetime: DefaultLifetime}, filepath.Join(dir, "out"), false)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range c.hosts {
			if err := got.Leaf.VerifyHostname(host); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		verify := func(usage x509.ExtKeyUsage) error {
			_, err := got.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{usage}})
			return err
		}
		if err := verify(x509.ExtKeyUsageClientAuth); err != nil {
			t.Errorf("%s is not for clients: %v", name, err)
		}
		if err := verify(x509.ExtKeyUsageServerAuth); (err == nil) != c.server {
			t.Errorf("%s for servers: %v", name, err)
		}
		if got.Leaf.Subject.CommonName != name {
			t.Errorf("the common name is %q", got.Leaf.Subject.CommonName)
		}
		if info, err := os.Stat(pair.KeyFile); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key has mode %v, %v", info.Mode(), err)
		}
	}
}

func TestAKeyOfAnAuthorityThatOthersCanReadIsRefused(t *testing.T) {
	dir, _, _ := authority(t, DefaultAuthorityLifetime)
	key := filepath.Join(dir, AuthorityKey)
	for mode, refused := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: true, 0o644: true, 0o604: true, 0o620: true, 0o666: true} {
		if err := os.Chmod(key, mode); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir)
		if (err != nil) != refused || refused && (problem.CodeOf(err) != problem.Invalid || !strings.Contains(err.Error(), "chmod 600 "+key)) {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
}

func TestFilesAreReplacedOnlyOnRequest(t *testing.T) {
	dir, a, _ := authority(t, DefaultAuthorityLifetime)
	if _, err := Init(dir, time.Hour); problem.CodeOf(err) != problem.Invalid {
		t.Errorf("an authority is replaced: %v", err)
	}
	req := Request{Name: "a", Lifetime: time.Hour}
	first, err := a.Issue(req, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(first.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	var e *problem.Error
	if _, err := a.Issue(req, dir, false); !errors.As(err, &e) || e.Field != "name" {
		t.Errorf("a certificate is replaced: %v", err)
	}
	if _, err := a.Issue(req, dir, true); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile(first.CertFile); err != nil || string(after) == string(before) {
		t.Errorf("the certificate was not renewed: %v", err)
	}
	if _, err := tls.LoadX509KeyPair(first.CertFile, first.KeyFile); err != nil {
		t.Errorf("the renewed certificate and its key: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestACertificateEndsWithItsAuthority(t *testing.T) {
	dir, a, _ := authority(t, MinLifetime)
	pair, err := a.Issue(Request{Name: "a", Lifetime: DefaultLifetime}, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil || !got.Leaf.NotAfter.Equal(a.cert.NotAfter) {
		t.Errorf("it ends at %v, the authority at %v, %v", got.Leaf.NotAfter, a.cert.NotAfter, err)
	}
	a.cert.NotAfter = time.Now().Add(-time.Hour)
	if _, err := a.Issue(Request{Name: "b", Lifetime: DefaultLifetime}, dir, false); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an authority that has expired signs: %v", err)
	}
}

func TestBadInputIsNamedByField(t *testing.T) {
	dir, a, _ := authority(t, DefaultAuthorityLifetime)
	leaf, err := a.Issue(Request{Name: "leaf", Lifetime: time.Hour}, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	foreign := t.TempDir()
	for from, to := range map[string]string{leaf.CertFile: AuthorityCert, leaf.KeyFile: AuthorityKey} {
		if err := os.Link(from, filepath.Join(foreign, to)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		field string
		do    func() error
	}{
		"a name with a slash":  {"name", func() error { _, err := a.Issue(Request{Name: "../a", Lifetime: time.Hour}, dir, false); return err }},
		"no name":              {"name", func() error { _, err := a.Issue(Request{Lifetime: time.Hour}, dir, false); return err }},
		"the authority's name": {"name", func() error { _, err := a.Issue(Request{Name: "ca", Lifetime: time.Hour}, dir, true); return err }},
		"a host that is none": {"hosts", func() error {
			_, err := a.Issue(Request{Name: "a", Hosts: []string{"https://a"}, Lifetime: time.Hour}, dir, false)
			return err
		}},
		"an empty host": {"hosts", func() error {
			_, err := a.Issue(Request{Name: "a", Hosts: []string{"a", ""}, Lifetime: time.Hour}, dir, false)
			return err
		}},
		"a lifetime too short":   {"lifetime", func() error { _, err := a.Issue(Request{Name: "a", Lifetime: time.Minute}, dir, false); return err }},
		"an authority too short": {"lifetime", func() error { _, err := Init(t.TempDir(), -time.Hour); return err }},
		"no authority":           {"dir", func() error { _, err := Open(t.TempDir()); return err }},
		"no certificate of one":  {"dir", func() error { _, err := Open(foreign); return err }},
	} {
		var e *problem.Error
		if err := c.do(); !errors.As(err, &e) || e.Field != c.field {
			t.Errorf("%s: %v, want a problem of %s", name, err, c.field)
		}
	}
}

func TestMakeAddsOnlyWhatIsMissing(t *testing.T) {
	dir, out := filepath.Join(t.TempDir(), "authority"), filepath.Join(t.TempDir(), "certs")
	a := Request{Name: "a", Hosts: []string{"a"}, Lifetime: DefaultLifetime}
	more := Request{Name: "a", Hosts: []string{"a", "10.0.0.1"}, Lifetime: DefaultLifetime}
	fleet := Request{Name: "fleet", Lifetime: DefaultLifetime}
	for _, step := range []struct {
		why  string
		all  []Request
		want []string
	}{
		{"nothing exists", []Request{a}, []string{"a"}},
		{"all exist", []Request{a}, []string{}},
		{"one is new", []Request{a, fleet}, []string{"fleet"}},
		{"a host is new", []Request{more, fleet}, []string{"a"}},
		{"there are more hosts than requested", []Request{a, fleet}, []string{}},
	} {
		made, err := Make(dir, out, DefaultAuthorityLifetime, step.all)
		if err != nil || !slices.Equal(made, step.want) {
			t.Fatalf("%s: made %q, %v, want %q", step.why, made, err, step.want)
		}
	}
	copied, err := os.ReadFile(filepath.Join(out, AuthorityCert))
	original, err2 := os.ReadFile(filepath.Join(dir, AuthorityCert))
	if err := errors.Join(err, err2); err != nil || string(copied) != string(original) {
		t.Errorf("the copy of the authority differs: %v", err)
	}

	authority, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	soon := Request{Name: "fleet", Lifetime: renewBefore - time.Hour}
	if _, err := authority.Issue(soon, out, true); err != nil {
		t.Fatal(err)
	}
	if made, err := Make(dir, out, DefaultAuthorityLifetime, []Request{a, fleet}); err != nil || !slices.Equal(made, []string{"fleet"}) {
		t.Errorf("one ends soon: made %q, %v", made, err)
	}

	if err := os.Remove(filepath.Join(dir, AuthorityKey)); err != nil {
		t.Fatal(err)
	}
	if _, err := Make(dir, out, DefaultAuthorityLifetime, []Request{a}); err == nil {
		t.Error("an authority without its key was replaced")
	}
	if _, err := Make(filepath.Join(dir, "new"), out, DefaultAuthorityLifetime, []Request{a, fleet}); err != nil {
		t.Fatal(err)
	}
	if made, err := Make(filepath.Join(dir, "new"), out, DefaultAuthorityLifetime, []Request{a}); err != nil || len(made) != 0 {
		t.Errorf("those of a new authority: made %q, %v", made, err)
	}
}

func TestARenewedCertificateKeepsItsHosts(t *testing.T) {
	dir, a, _ := authority(t, DefaultAuthorityLifetime)
	r := Request{Name: "a", Hosts: []string{"10.0.0.1", "db.example.org"}, Lifetime: time.Hour}
	if _, err := a.Issue(r, dir, true); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ hosts, want []string }{
		{nil, r.Hosts},
		{[]string{"10.0.0.2"}, []string{"10.0.0.2"}},
	} {
		pair, err := a.Issue(Request{Name: "a", Hosts: step.hosts, Lifetime: time.Hour}, dir, true)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range step.want {
			if err := got.Leaf.VerifyHostname(host); err != nil {
				t.Error(err)
			}
		}
		if !slices.Contains(got.Leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || len(got.Leaf.IPAddresses)+len(got.Leaf.DNSNames) != len(step.want) {
			t.Errorf("with hosts %q it is for %v, %v and %v", step.hosts, got.Leaf.IPAddresses, got.Leaf.DNSNames, got.Leaf.ExtKeyUsage)
		}
	}

	for _, text := range []string{"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if err := os.WriteFile(filepath.Join(dir, "a.crt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var e *problem.Error
		if _, err := a.Issue(Request{Name: "a", Lifetime: time.Hour}, dir, true); !errors.As(err, &e) || e.Field != "name" {
			t.Errorf("the hosts of %q are guessed: %v", text, err)
		}
	}
}

func TestAKeyIsNotReplacedIfItsCertificateCannotBeWritten(t *testing.T) {
	dir, a, _ := authority(t, DefaultAuthorityLifetime)
	pair, err := a.Issue(Request{Name: "a", Lifetime: time.Hour}, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	c, err := template("a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.write(Pair{filepath.Join(dir, "none", "a.crt"), pair.KeyFile}, c, key, nil); err == nil {
		t.Fatal("a certificate is written to a folder that does not exist")
	}
	if after, err := os.ReadFile(pair.KeyFile); err != nil || string(after) != string(before) {
		t.Errorf("the key was replaced: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".berth-*")); err != nil || len(left) != 0 {
		t.Errorf("temporary files remain: %q, %v", left, err)
	}
}
