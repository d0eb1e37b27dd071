package sidecar_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/testcert"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// Answers of the API are neither guessed to be of another type nor kept on the way, whether the
// request is refused or not.
func TestAnswersOfTheAPIAreNotKept(t *testing.T) {
	r := single(t)
	for path, want := range map[string]bool{
		"/v1/pools": true, "/v1/pools/none": true, "/v1/nothing": true, "/v1/claims?cursor=?": true, "/readyz": false,
	} {
		a := r.raw(request{method: http.MethodGet, path: path})
		got := a.header.Get("X-Content-Type-Options") == "nosniff" && a.header.Get("Cache-Control") == "no-store"
		if got != want {
			t.Errorf("%s (%d): %v", path, a.status, a.header)
		}
	}
}

func TestTheServerRefusesWhatIsNotMeantForIt(t *testing.T) {
	r := single(t, func(c *sidecar.Config) { c.Names = []string{"berth.internal", "*.Jobs.example"} })
	r.readDocument()
	port := r.server.Addr().(*net.TCPAddr).Port
	host := func(h string) func(*http.Request) { return func(q *http.Request) { q.Host = h } }
	header := func(name, value string) func(*http.Request) {
		return func(q *http.Request) { q.Header.Set(name, value) }
	}
	for what, test := range map[string]struct {
		request
		status int
		code   problem.Code
	}{
		"its address":            {request{change: host(fmt.Sprintf("127.0.0.1:%d", port))}, 200, ""},
		"localhost":              {request{change: host(fmt.Sprintf("LOCALHOST:%d", port))}, 200, ""},
		"without a port":         {request{change: host("localhost")}, 200, ""},
		"IPv6":                   {request{change: host(fmt.Sprintf("[::1]:%d", port))}, 200, ""},
		"a name of the settings": {request{change: host(fmt.Sprintf("Berth.internal:%d", port))}, 200, ""},
		"any label":              {request{change: host(fmt.Sprintf("one.jobs.Example:%d", port))}, 200, ""},
		"two labels for one":     {request{change: host("a.one.jobs.example")}, 403, problem.Forbidden},
		"no label":               {request{change: host("jobs.example")}, 403, problem.Forbidden},
		"an empty label":         {request{change: host(".jobs.example")}, 403, problem.Forbidden},
		"a label within a name":  {request{change: host("one.jobs.example.evil.example")}, 403, problem.Forbidden},
		"another name":           {request{change: host("evil.example")}, 403, problem.Forbidden},
		"a longer name":          {request{change: host("localhost.evil.example")}, 403, problem.Forbidden},
		"another address":        {request{change: host("10.0.0.1")}, 403, problem.Forbidden},
		"no name":                {request{change: host("[]")}, 403, problem.Forbidden},

		"its own page":          {request{change: header("Origin", fmt.Sprintf("http://127.0.0.1:%d", port))}, 200, ""},
		"another site's page":   {request{change: header("Origin", "http://evil.example")}, 403, problem.Forbidden},
		"another port's page":   {request{change: header("Origin", "http://127.0.0.1:1")}, 403, problem.Forbidden},
		"another scheme's page": {request{change: header("Origin", fmt.Sprintf("https://127.0.0.1:%d", port))}, 403, problem.Forbidden},
		"a sandboxed page":      {request{change: header("Origin", "null")}, 403, problem.Forbidden},
		"an image elsewhere":    {request{change: header("Sec-Fetch-Site", "cross-site")}, 403, problem.Forbidden},
		"a sister site":         {request{change: header("Sec-Fetch-Site", "same-site")}, 403, problem.Forbidden},
		"typed by the user":     {request{change: header("Sec-Fetch-Site", "none")}, 200, ""},

		"a page that is not there": {request{path: "/v1/nothing"}, 404, problem.NotFound},
		"no docs from elsewhere":   {request{path: "/docs"}, 404, problem.NotFound},
		"another method":           {request{method: "PATCH"}, 405, problem.NotAllowed},
		"a method of its own":      {request{method: "BREW"}, 405, problem.NotAllowed},
		"a form":                   {request{method: "POST", path: "/v1/claims", body: "pools=db", kind: "application/x-www-form-urlencoded"}, 415, problem.MediaType},
		"a page's plain text":      {request{method: "POST", path: "/v1/claims", body: `{"pools":{"db":1}}`, kind: "text/plain"}, 415, problem.MediaType},
		"JSON of plain curl":       {request{method: "POST", path: "/v1/claims", body: `{"pools":{"db":1}}`, kind: "application/x-www-form-urlencoded"}, 404, problem.PoolNotFound},
		"no type":                  {request{method: "POST", path: "/v1/claims", body: `{"pools":{"db":1}}`, kind: "none"}, 404, problem.PoolNotFound},
		"JSON in words":            {request{method: "POST", path: "/v1/claims", body: `{"pools":{"db":1}}`, kind: "application/json; charset=utf-8"}, 404, problem.PoolNotFound},
		"10 MB":                    {request{method: "POST", path: "/v1/claims", body: strings.Repeat(" ", 10<<20)}, 413, problem.TooLarge},
		"10 MB for a read":         {request{body: strings.Repeat(" ", 10<<20)}, 413, problem.TooLarge},
		"64 KB and a byte":         {request{method: "POST", path: "/v1/claims", body: strings.Repeat(" ", 64<<10+1)}, 413, problem.TooLarge},
		"64 KB of nothing":         {request{method: "POST", path: "/v1/claims", body: strings.Repeat(" ", 64<<10)}, 400, problem.Malformed},
		"chunks without end":       {request{method: "POST", path: "/v1/claims", body: strings.Repeat(" ", 1<<20), change: func(q *http.Request) { q.ContentLength = -1 }}, 413, problem.TooLarge},
	} {
		t.Run(what, func(t *testing.T) {
			q := test.request
			if q.method == "" {
				q.method = "GET"
			}
			if q.path == "" {
				q.path = "/v1/pools"
			}
			got := r.raw(q)
			if got.status != test.status {
				t.Errorf("%d %s", got.status, got.body)
			}
			if test.code != "" && got.problem(t).Code != string(test.code) {
				t.Errorf("%s", got.body)
			}
			if got.status == 405 && got.header.Get("Allow") == "" {
				t.Error("it does not say what is allowed")
			}
		})
	}
}

func TestTheSocketAsksForNoNameAndTakesNoPages(t *testing.T) {
	r := single(t, func(c *sidecar.Config) { c.Listen, c.Tokens = "", accesstest.Tokens("ci", "secret", "admin") })
	via := func(change func(*http.Request)) int {
		t.Helper()
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", r.cfg.Socket)
		}}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://anything/v1/pools", nil)
		if err != nil {
			t.Fatal(err)
		}
		change(req)
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	if got := via(func(*http.Request) {}); got != http.StatusOK {
		t.Errorf("over the socket, without a token: %d", got)
	}
	if got := via(func(q *http.Request) { q.Header.Set("Origin", "http://anything") }); got != http.StatusForbidden {
		t.Errorf("for a page: %d", got)
	}
}

func TestATokenIsAskedForOverTCP(t *testing.T) {
	r := single(t, func(c *sidecar.Config) {
		c.Tokens, c.Policy = accesstest.Tokens("ci", "correct horse", "admin"), access.Policy{}
	})
	for what, test := range map[string]struct {
		path, header string
		status       int
	}{
		"none":               {"/v1/pools", "", 401},
		"a wrong one":        {"/v1/pools", "Bearer wrong", 401},
		"a part":             {"/v1/pools", "Bearer correct", 401},
		"empty":              {"/v1/pools", "Bearer ", 401},
		"another scheme":     {"/v1/pools", "Basic correct horse", 401},
		"the right one":      {"/v1/pools", "Bearer correct horse", 200},
		"metrics":            {"/metrics", "", 401},
		"the document":       {"/openapi.yaml", "", 200},
		"whether it lives":   {"/healthz", "", 200},
		"whether it's ready": {"/readyz", "", 200},
	} {
		got := r.raw(request{method: "GET", path: test.path, change: func(q *http.Request) {
			if test.header != "" {
				q.Header.Set("Authorization", test.header)
			}
		}})
		if got.status != test.status {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
		if got.status == 401 && (got.problem(t).Code != "unauthorized" || got.header.Get("WWW-Authenticate") == "") {
			t.Errorf("%s: %v %s", what, got.header, got.body)
		}
	}
	c, err := client.Dial(r.base, "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Pools(t.Context()); err != nil {
		t.Error(err)
	}
	log := r.log.String()
	if strings.Contains(log, "horse") || !strings.Contains(log, "status=401") {
		t.Errorf("the log:\n%s", log)
	}
}

func TestATokenThatCannotBeVerifiedIsRefusedEverywhere(t *testing.T) {
	headers := map[string][]string{
		"wrong":          {"Bearer wrong"},
		"empty":          {"Bearer "},
		"no token":       {"Bearer"},
		"no scheme":      {""},
		"another scheme": {"Basic cm9vdDpyb290"},
		"two":            {"Bearer secret", "Bearer wrong"},
		"two right ones": {"Bearer secret", "Bearer secret"},
	}
	for what, tokens := range map[string]func() access.Tokens{
		"without tokens": nil,
		"with tokens":    accesstest.Tokens("ci", "secret", "admin"),
	} {
		r := single(t, func(c *sidecar.Config) { c.Tokens = tokens })
		socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", r.cfg.Socket)
		}}
		defer socket.CloseIdleConnections()
		loopback := &http.Transport{}
		defer loopback.CloseIdleConnections()
		for where, tr := range map[string]*http.Transport{"the socket": socket, "loopback": loopback} {
			send := func(path string, headers ...string) answer {
				q, err := http.NewRequestWithContext(t.Context(), "GET", r.base+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range headers {
					q.Header.Add("Authorization", h)
				}
				return r.roundTrip(tr, q)
			}
			for name, h := range headers {
				for _, path := range []string{"/v1/pools", "/v1/whoami", "/healthz", "/pools"} {
					if got := send(path, h...); got.status != http.StatusUnauthorized {
						t.Errorf("%s, over %s, %s: %s: %d", what, where, name, path, got.status)
					}
				}
			}
			if got := send("/healthz"); got.status != http.StatusOK {
				t.Errorf("%s, over %s, no header: %d", what, where, got.status)
			}
			want := http.StatusOK
			if tokens == nil {
				want = http.StatusUnauthorized
			}
			if got := send("/v1/pools", "bearer  secret "); got.status != want && got.status != http.StatusTooManyRequests {
				t.Errorf("%s, over %s, the right one: %d, want %d", what, where, got.status, want)
			}
		}
	}
}

func TestTLSAndATokenOpenItToOthers(t *testing.T) {
	ca := testcert.New(t)
	pair := ca.Server(t)
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	r := single(t, func(c *sidecar.Config) {
		c.Listen, c.Tokens = "0.0.0.0:0", accesstest.Tokens("ci", "secret", "admin")
		c.TLS = func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} }
	})
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	addr := fmt.Sprintf("https://127.0.0.1:%d", r.server.Addr().(*net.TCPAddr).Port)
	for token, want := range map[string]problem.Code{"secret": "", "wrong": problem.Unauthorized} {
		c, err := client.Dial(addr, token, client.WithTLS(func() *tls.Config { return &tls.Config{RootCAs: roots} }))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Pools(t.Context()); want == "" && err != nil || want != "" && problem.CodeOf(err) != want {
			t.Errorf("with token %q: %v", token, err)
		}
	}
	plain, err := client.Dial(strings.Replace(addr, "https", "http", 1), "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	_, err = plain.Pools(t.Context())
	wantCode(t, err, problem.Unavailable)
}

func TestTheCertificateOfARunningServerIsReplaced(t *testing.T) {
	one, two := testcert.New(t), testcert.New(t)
	load := func(p testcert.Pair) *tls.Config {
		cert, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{Certificates: []tls.Certificate{cert}}
	}
	var current atomic.Pointer[tls.Config]
	current.Store(load(one.Server(t)))
	r := single(t, func(c *sidecar.Config) { c.TLS = current.Load })
	get := func(ca *testcert.Authority, name string) (status int, err error) {
		t.Helper()
		pem, err := os.ReadFile(ca.File)
		if err != nil {
			t.Fatal(err)
		}
		conf := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: name}
		conf.RootCAs.AppendCertsFromPEM(pem)
		tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: conf}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+r.server.Addr().String()+"/v1/pools", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = name
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		if resp.ProtoMajor != 2 {
			t.Errorf("it speaks %s", resp.Proto)
		}
		return resp.StatusCode, nil
	}
	if status, err := get(one, "localhost"); status != http.StatusOK {
		t.Fatal(status, err)
	}
	if status, err := get(two, "localhost"); err == nil {
		t.Errorf("a client that knows another authority: %d", status)
	}
	current.Store(load(two.Server(t, "berth.example", "*.jobs.example")))
	for _, name := range []string{"berth.example", "one.jobs.example"} {
		if status, err := get(two, name); status != http.StatusOK {
			t.Errorf("under the new name %s: %d, %v", name, status, err)
		}
	}
	if status, err := get(one, "localhost"); err == nil {
		t.Errorf("a client that knows the former authority: %d", status)
	}
	families, err := r.cfg.Gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "berth_tls_certificate_expiry_seconds" {
			if left := f.GetMetric()[0].GetGauge().GetValue(); left <= 23*3600 || left > 24*3600 {
				t.Errorf("the certificate of a day expires in %v s", left)
			}
			return
		}
	}
	t.Error("no metric says when the certificate expires")
}

func TestARunningClientAcceptsTheAuthorityOfNow(t *testing.T) {
	one, two := testcert.New(t), testcert.New(t)
	var serves, accepts atomic.Pointer[tls.Config]
	serve := func(p testcert.Pair) {
		t.Helper()
		cert, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		serves.Store(&tls.Config{Certificates: []tls.Certificate{cert}})
	}
	accept := func(ca *testcert.Authority) {
		t.Helper()
		pem, err := os.ReadFile(ca.File)
		if err != nil {
			t.Fatal(err)
		}
		conf := &tls.Config{RootCAs: x509.NewCertPool()}
		conf.RootCAs.AppendCertsFromPEM(pem)
		accepts.Store(conf)
	}
	serve(one.Server(t))
	accept(one)
	r := single(t, func(c *sidecar.Config) { c.TLS = serves.Load })
	c, err := client.Dial("https://"+r.server.Addr().String(), "", client.WithTLS(accepts.Load))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func() error {
		c.Close() // so that it connects again
		_, err := c.Pools(t.Context())
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	serve(two.Server(t))
	var unknown x509.UnknownAuthorityError
	if err := ask(); !errors.As(err, &unknown) {
		t.Errorf("a server of another authority: %v", err)
	}
	accept(two)
	if err := ask(); err != nil {
		t.Errorf("with the new authority: %v", err)
	}
	serve(two.Server(t, "berth.example"))
	var wrong x509.HostnameError
	if err := ask(); !errors.As(err, &wrong) {
		t.Errorf("a server with the certificate of another name: %v", err)
	}
}

// conn opens a connection to say on it what no client of HTTP would.
func (r *running) conn() net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.server.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestHeadersAreBounded(t *testing.T) {
	r := single(t)
	c := r.conn()
	go func() { // the answer comes before all of it is taken
		_, _ = fmt.Fprintf(c, "GET /v1/pools HTTP/1.1\r\nHost: localhost\r\nX-Much: %s\r\n\r\n", strings.Repeat("x", 32<<10))
	}()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Error(resp.Status)
	}
}

func TestASlowBodyIsNotWaitedForForEver(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 10 s")
	}
	t.Parallel()
	r := single(t)
	c := r.conn()
	fmt.Fprintf(c, "POST /v1/claims HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusRequestTimeout || !bytes.Contains(body, []byte(`"slow_request"`)) {
		t.Errorf("%s %s %v", resp.Status, body, err)
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("the connection is kept: %v", err)
	}
}

func TestAWaitIsNotBoundedByTheTimeForItsBody(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 11 s")
	}
	t.Parallel()
	r := single(t)
	r.pool("db", 1)
	c := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	done := r.waiting(t.Context(), api.ClaimRequest{ID: "late", Pools: api.Slots{"db": 1}})
	select {
	case err := <-done:
		t.Fatalf("it ended: %v", err)
	case <-time.After(11 * time.Second):
	}
	if err := r.client.Release(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestADoorThatWouldStandOpenIsRefused(t *testing.T) {
	for what, change := range map[string]func(*sidecar.Config){
		"nothing to listen on": func(c *sidecar.Config) { c.Listen, c.Socket = "", "" },
		"all addresses":        func(c *sidecar.Config) { c.Listen = ":0" },
		"all addresses, a token": func(c *sidecar.Config) {
			c.Listen, c.Tokens = "0.0.0.0:0", accesstest.Tokens("ci", "x", "admin")
		},
		"no address": func(c *sidecar.Config) { c.Listen = "127.0.0.1" },
		"no port":    func(c *sidecar.Config) { c.Listen = "127.0.0.1:x" },
	} {
		cfg := config(t, "127.0.0.1:1")
		change(&cfg)
		err := sidecar.New(cfg).Run(t.Context())
		var p *problem.Error
		if p, _ = err.(*problem.Error); p == nil || p.Code != problem.Invalid || p.Field != "listen" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestASocketThatIsInUseIsLeftAlone(t *testing.T) {
	cfg := config(t, "127.0.0.1:1")
	cfg.Listen = ""
	first := launch(t, cfg)
	info, err := os.Stat(cfg.Socket)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Dir(cfg.Socket)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its folder: %v, %v", info, err)
	}
	err = sidecar.New(cfg).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second one: %v", err)
	}
	if err := first.client.Ready(t.Context()); problem.CodeOf(err) != problem.EtcdUnavailable {
		t.Errorf("the first one: %v", err)
	}
	first.server.Stop(sidecar.Leave)
	if err := first.wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestASocketThatNobodyListensOnIsReplaced(t *testing.T) {
	cfg := config(t, "127.0.0.1:1")
	cfg.Listen = ""
	if err := os.MkdirAll(filepath.Dir(cfg.Socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	launch(t, cfg)
}

func TestAFileInThePlaceOfTheSocketIsLeftAlone(t *testing.T) {
	cfg := config(t, "127.0.0.1:1")
	cfg.Listen = ""
	if err := os.MkdirAll(filepath.Dir(cfg.Socket), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sidecar.New(cfg).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Error(err)
	}
	if data, err := os.ReadFile(cfg.Socket); string(data) != "precious" {
		t.Errorf("%q, %v", data, err)
	}
}
