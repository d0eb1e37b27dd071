package config

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

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
			cfg, err := tc.s.ClientTLS(nil)
			if err != nil || (cfg != nil) != tc.etcd {
				t.Errorf("TLS with etcd is used: %v, error %v", cfg != nil, err)
			}
			cfg, err = tc.s.SidecarTLS(nil)
			if err != nil || (cfg != nil) != tc.sidecar {
				t.Errorf("TLS with the sidecar is used: %v, error %v", cfg != nil, err)
			}
		})
	}
}

// world are the files of both sides of connections, and what they make of them.
type world struct {
	t                         testing.TB
	log                       bytes.Buffer
	server, client, etcd      func() *tls.Config
	ca, cert, key             string // of the server
	clientCA, ownCert, ownKey string // of the client
}

// connected makes the settings of both sides, whose files are links.
func connected(t testing.TB, authority *testcert.Authority) *world {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	w := &world{
		t: t, ca: at("ca"), cert: at("cert"), key: at("key"), clientCA: at("client-ca"), ownCert: at("own-cert"), ownKey: at("own-key"),
	}
	w.serve(authority)
	w.dial(authority, authority)
	s := Settings{
		CACert: w.ca, Cert: w.ownCert, Key: w.ownKey,
		Sidecar: "https://localhost", SidecarCACert: w.ca, SidecarCert: w.ownCert, SidecarKey: w.ownKey,
		TLSCert: w.cert, TLSKey: w.key, ClientCA: w.clientCA,
	}
	log := hclog.New(&hclog.LoggerOptions{Output: &w.log, DisableTime: true})
	var errs [3]error
	w.server, errs[0] = s.ServerTLS(log)
	w.client, errs[1] = s.SidecarTLS(log)
	w.etcd, errs[2] = s.ClientTLS(log)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return w
}

// place has a path lead to a file, at once.
func (w *world) place(path, target string) {
	w.t.Helper()
	if err := errors.Join(os.Symlink(target, path+".new"), os.Rename(path+".new", path)); err != nil {
		w.t.Fatal(err)
	}
}

// serve gives the server a certificate of an authority, and has it accept its clients.
func (w *world) serve(by *testcert.Authority) {
	w.t.Helper()
	pair := by.Server(w.t)
	w.place(w.cert, pair.CertFile)
	w.place(w.key, pair.KeyFile)
	w.place(w.clientCA, by.File)
}

// dial has the client accept an authority, and gives it a certificate of another.
func (w *world) dial(accepts, by *testcert.Authority) {
	w.t.Helper()
	pair := by.Client(w.t, "someone")
	w.place(w.ca, accepts.File)
	w.place(w.ownCert, pair.CertFile)
	w.place(w.ownKey, pair.KeyFile)
}

// shake shakes hands, and returns the names in the certificate of the client, none if it
// showed none, and the errors of the server and of the client.
func shake(t testing.TB, server, client *tls.Config, name string) (who string, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	client = client.Clone()
	client.ServerName = name
	done := make(chan error, 1)
	accepted, dialed := tls.Server(a, server), tls.Client(b, client)
	go func() {
		err := accepted.HandshakeContext(t.Context())
		if err == nil {
			_, err = accepted.Write([]byte("x")) // after the tickets
		}
		done <- errors.Join(err, a.Close())
	}()
	if clientErr = dialed.HandshakeContext(t.Context()); clientErr == nil {
		_, clientErr = dialed.Read(make([]byte, 1))
	}
	if dialed.ConnectionState().DidResume {
		t.Error("a session with a client certificate was resumed")
	}
	b.Close()
	if serverErr = <-done; serverErr == nil && clientErr == nil {
		if certs := accepted.ConnectionState().PeerCertificates; len(certs) > 0 {
			who = certs[0].Subject.CommonName
		}
	}
	return who, serverErr, clientErr
}

// mustShake shakes hands with clients of both kinds, which must succeed or fail as is wanted.
func (w *world) mustShake(want bool) {
	w.t.Helper()
	for name, client := range map[string]func() *tls.Config{"the sidecar": w.client, "etcd": w.etcd} {
		for _, at := range []string{"localhost", "127.0.0.1"} {
			who, serverErr, clientErr := shake(w.t, w.server(), client(), at)
			if got := serverErr == nil && clientErr == nil; got != want || got && who != "someone" {
				w.t.Errorf("a client of %s at %s: %q, %v; %v", name, at, who, serverErr, clientErr)
			}
		}
	}
}

func TestBothSidesUnderstandEachOther(t *testing.T) {
	connected(t, testcert.New(t)).mustShake(true)
}

func TestWhoIsNotMeantIsRefused(t *testing.T) {
	one, two := testcert.New(t), testcert.New(t)
	w := connected(t, one)
	for _, name := range []string{"localhost.example", "127.0.0.2", "::2"} {
		for _, client := range []func() *tls.Config{w.client, w.etcd} {
			var wrong x509.HostnameError
			if _, _, err := shake(t, w.server(), client(), name); !errors.As(err, &wrong) {
				t.Errorf("a server called %s: %v", name, err)
			}
		}
	}
	other := connected(t, two)
	var unknown x509.UnknownAuthorityError
	if _, _, err := shake(t, other.server(), w.client(), "localhost"); !errors.As(err, &unknown) {
		t.Errorf("a server of another authority: %v", err)
	}
	anonymous := w.client().Clone()
	anonymous.Certificates, anonymous.GetClientCertificate = nil, nil
	if who, serverErr, err := shake(t, w.server(), anonymous, "localhost"); who != "" || serverErr != nil || err != nil {
		t.Errorf("a client without a certificate: %q, %v, %v", who, serverErr, err)
	}
	foreign := w.client().Clone()
	foreign.Certificates = other.client().Certificates
	foreign.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &foreign.Certificates[0], nil }
	if _, err, _ := shake(t, w.server(), foreign, "localhost"); !errors.As(err, &unknown) {
		t.Errorf("a client of another authority: %v", err)
	}
}

// Most servers only close the connection.
func TestAClientSaysThatItsCertificateHasExpired(t *testing.T) {
	one := testcert.New(t)
	w := connected(t, one)
	expired := one.Expired(t)
	client, err := Settings{CACert: one.File, Cert: expired.CertFile, Key: expired.KeyFile}.ClientTLS(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := "cert: the certificate in " + expired.CertFile + " has expired at "
	if _, _, err := shake(t, w.server(), client(), "localhost"); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the handshake failed with %v, want %s…", err, want)
	}
	open := w.server().Clone() // it asks for no certificate
	open.ClientAuth = tls.NoClientCert
	if _, serverErr, err := shake(t, open, client(), "localhost"); serverErr != nil || err != nil {
		t.Errorf("a server that asks for no certificate: %v, %v", serverErr, err)
	}
}

func TestChangedFilesAreUsedASecondLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := testcert.New(t), testcert.New(t)
		w := connected(t, one)
		w.serve(two)
		w.mustShake(true) // the files were read less than a second ago
		time.Sleep(reloadInterval)
		w.mustShake(false)
		w.dial(two, one)
		time.Sleep(reloadInterval)
		w.mustShake(false) // the server knows the new authority only
		w.dial(two, two)
		time.Sleep(reloadInterval)
		w.mustShake(true)
		for _, fields := range []string{"client_ca,tls_cert,tls_key", "cacert,cert,key", "sidecar_cacert,sidecar_cert,sidecar_key"} {
			if !strings.Contains(w.log.String(), "changed files are in use: settings=\""+fields+"\" serial=") {
				t.Errorf("nothing tells of %s:\n%s", fields, w.log.String())
			}
		}
		if strings.Contains(w.log.String(), "ERROR") {
			t.Error(w.log.String())
		}
	})
}

func TestAResumedSessionDoesNotOutliveTheAuthorityOfItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := testcert.New(t), testcert.New(t)
		w := connected(t, one)
		client := w.client().Clone()
		client.ClientSessionCache = tls.NewLRUClientSessionCache(8)
		both := x509.NewCertPool()
		for _, ca := range []*testcert.Authority{one, two} {
			data, _, err := readAll(ca.File)
			if err != nil {
				t.Fatal(err)
			}
			both.AppendCertsFromPEM(data)
		}
		client.RootCAs = both
		outer := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return w.server().Clone(), nil }}
		for range 2 {
			if who, serverErr, err := shake(t, outer, client, "localhost"); who != "someone" || err != nil || serverErr != nil {
				t.Fatalf("%q, %v, %v", who, serverErr, err)
			}
		}
		w.place(w.clientCA, two.File)
		time.Sleep(reloadInterval)
		if who, err, _ := shake(t, outer, client, "localhost"); who != "" || err == nil {
			t.Errorf("a client whose authority was removed: %q, %v", who, err)
		}
	})
}

func TestFilesThatAreBrokenForAWhileDoNotCount(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(w *world, next testcert.Pair)
		says  string
	}{
		"a certificate without its key": {func(w *world, next testcert.Pair) { w.place(w.cert, next.CertFile) }, "are not a certificate and its key"},
		"a key without its certificate": {func(w *world, next testcert.Pair) { w.place(w.key, next.KeyFile) }, "are not a certificate and its key"},
		"an empty certificate":          {func(w *world, _ testcert.Pair) { w.place(w.cert, write(w.t, "empty", "")) }, "are not a certificate and its key"},
		"a key that all may read": {func(w *world, next testcert.Pair) {
			w.place(w.cert, next.CertFile)
			w.place(w.key, next.KeyFile)
			if err := os.Chmod(next.KeyFile, 0o644); err != nil {
				w.t.Fatal(err)
			}
		}, "run chmod o-rwx"},
		"no certificate": {func(w *world, _ testcert.Pair) {
			if err := os.Remove(w.cert); err != nil {
				w.t.Fatal(err)
			}
		}, "no such file"},
		"half an authority": {func(w *world, _ testcert.Pair) {
			data, _, err := readAll(w.clientCA)
			if err != nil {
				w.t.Fatal(err)
			}
			w.place(w.clientCA, write(w.t, "half", string(data)+string(data[:len(data)/2])))
		}, "is not complete"},
		"no authority": {func(w *world, _ testcert.Pair) { w.place(w.clientCA, write(w.t, "none", "soon")) }, "no PEM certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := testcert.New(t), testcert.New(t)
				w := connected(t, a)
				test.spoil(w, b.Server(t))
				for range 3 {
					time.Sleep(reloadInterval)
					w.mustShake(true)
				}
				if got := w.log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, test.says) || !strings.Contains(got, "[ERROR] changed files can't be used, the former ones stay in use") {
					t.Errorf("the log is\n%s", got)
				}
				w.serve(b)
				w.dial(b, b)
				time.Sleep(reloadInterval)
				w.mustShake(true)
				if got := w.log.String(); !strings.Contains(got, "changed files are in use: settings=\"client_ca,tls_cert,tls_key\"") {
					t.Errorf("the log is\n%s", got)
				}
			})
		})
	}
}

func TestAFileThatIsRewrittenInPlaceIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "f", "one")
		old, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		r, problems := reload(nil, []file{{field: "f", path: path}}, func(c contents) (string, Problems) { return string(c["f"]), nil }, func(string) []any { return nil })
		if problems != nil || r.get() != "one" {
			t.Fatal(problems, r.get())
		}
		if err := errors.Join(os.WriteFile(path, []byte("two"), 0o600), os.Chtimes(path, old.ModTime(), old.ModTime())); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reloadInterval)
		var group sync.WaitGroup
		for range 8 { // one of them reads the file
			group.Go(func() { r.get() })
		}
		group.Wait()
		if got := r.get(); got != "two" {
			t.Errorf("a file of the same size and time: %q", got)
		}
	})
}

func TestFilesThatFailAreNamed(t *testing.T) {
	_, err := Settings{CACert: "/no/ca.pem", Cert: "/no/cert.pem", Key: "/no/key.pem"}.ClientTLS(nil)
	for _, file := range []string{"/no/ca.pem", "/no/cert.pem", "/no/key.pem"} {
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("the error %v does not name %s", err, file)
		}
	}
}

func TestAFileOfTokensIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entry := func(name, digit string) string {
			return "- {name: " + name + ", hash: sha256:" + strings.Repeat(digit, 64) + ", roles: [view]}\n"
		}
		path := write(t, "tokens", entry("one", "1"))
		var log bytes.Buffer
		get, err := Settings{TokensFile: path}.ServerTokens(hclog.New(&hclog.LoggerOptions{Output: &log, DisableTime: true}))
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct{ text, want, says string }{
			{entry("one", "1") + entry("two", "2"), "one two", "changed files are in use: settings=tokens_file tokens=2"},
			{"- {name: one", "one two", "[ERROR] changed files can't be used"},
			{entry("two", "2"), "two", "tokens=1"},
			{"", "", "tokens=0"},
		} {
			if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(reloadInterval)
			var names []string
			for _, token := range get().List {
				names = append(names, token.Name)
			}
			if got := strings.Join(names, " "); got != step.want || !strings.Contains(log.String(), step.says) {
				t.Errorf("after %q: %q, log\n%s", step.text, got, log.String())
			}
		}
	})
	path := write(t, "tokens", "[]")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (Settings{TokensFile: path}).ServerTokens(nil); err == nil || !strings.Contains(err.Error(), "tokens_file: "+path+" holds a secret") {
		t.Errorf("a file that all may read: %v", err)
	}
}
