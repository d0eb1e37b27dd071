//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testcert"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// serveTCP runs a sidecar with a pool of two slots, and returns where it serves.
func serveTCP(t *testing.T) (addr string, c *client.Client) {
	t.Helper()
	addr, c = serveOn(t, embedtest.New(t).Endpoint())
	limit := 2
	if _, err := c.SetPool(t.Context(), "demo", api.PoolChange{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	return addr, c
}

// serveOn runs a sidecar on an etcd, and returns where it serves.
func serveOn(t *testing.T, etcd string) (addr string, c *client.Client) {
	t.Helper()
	server := sidecar.New(sidecar.Config{
		Options: instance.Options{Endpoints: []string{etcd}, Host: "one"},
		Listen:  "127.0.0.1:0", DrainTimeout: -1, Policy: access.Policy{Open: true},
	})
	if err := server.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Run(context.Background()) }()
	addr = "http://" + server.Addr().String()
	c, err := client.Dial(addr, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.Stop(sidecar.Leave)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	deadline := time.After(scriptDeadline)
	for c.Ready(t.Context()) != nil {
		select {
		case <-time.After(scriptPoll):
		case <-deadline:
			t.Fatal("the sidecar is not ready")
		}
	}
	return addr, c
}

// loseAnswer stands before a sidecar, and loses its first answer to a claim, as a
// proxy does that says so. It counts how often one was asked for.
func loseAnswer(t *testing.T, to string) (addr string, asked *atomic.Int32) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	asked = new(atomic.Int32)
	transport := &http.Transport{}
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.Transport = transport
	proxy.ModifyResponse = func(resp *http.Response) error {
		if resp.Request.Method == http.MethodPost && resp.Request.URL.Path == "/v1/claims" && asked.Add(1) == 1 {
			return errors.New("lost")
		}
		return nil
	}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	front := httptest.NewServer(proxy)
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		transport.CloseIdleConnections()
	})
	return front.URL, asked
}

func TestAnExecWhoseAnswerIsLostFindsItsOwnClaim(t *testing.T) {
	addr, client := serveTCP(t)
	front, asked := loseAnswer(t, addr)
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ran")
	cmd := exec.Command(path, "exec", "--sidecar", front, "--pool", "demo", "--id", "job", "--", "sh", "-c", `echo "$BERTH_CLAIM_ID" >>"$0"`, file)
	cmd.Args[0] = "berth"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("it has asked %d times", n)
	}
	if ran, err := os.ReadFile(file); err != nil || string(ran) != "job\n" {
		t.Errorf("its command ran with the claims %q, %v", ran, err)
	}
	if p, err := client.Pool(t.Context(), "demo"); err != nil || p.Claimed != 0 {
		t.Errorf("the pool is %+v, %v", p, err)
	}
}

// openAt opens the holder of one exec.
func openAt(t *testing.T, s config.Settings) (holder, error) {
	t.Helper()
	h, err := openSidecar(t.Context(), s, hclog.NewNullLogger())
	if err == nil {
		t.Cleanup(func() { _ = h.close() })
	}
	return h, err
}

// TestAnExecThatStoodStillLeavesALaterClaimAlone has one exec stand still, as
// under SIGSTOP, while its claim ends and another gets one with the same id.
func TestAnExecThatStoodStillLeavesALaterClaimAlone(t *testing.T) {
	addr, client := serveTCP(t)
	r := pool.Request{ID: "job", Slots: map[string]int{"demo": 1}}
	claim := func() *sidecarHeld {
		h, err := openAt(t, config.Settings{Sidecar: addr})
		if err != nil {
			t.Fatal(err)
		}
		c, err := h.claim(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return c.(*sidecarHeld)
	}
	early := claim()
	early.stop()
	early.tasks.Wait()
	if err := client.Release(t.Context(), "job"); err != nil {
		t.Fatal(err)
	}
	late := claim()

	early.refresh(t.Context())
	if err := early.err(); problem.CodeOf(err) != problem.ClaimLost {
		t.Errorf("the early exec is notified of %v", err)
	}
	if err := early.release(t.Context()); err != nil {
		t.Error(err)
	}
	if c, err := client.Get(t.Context(), "job"); err != nil || c.Fence != late.fence() {
		t.Errorf("the later claim is %+v, %v", c, err)
	}
	late.refresh(t.Context())
	if err := late.err(); err != nil {
		t.Errorf("the later exec is notified of %v", err)
	}
	if err := late.release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestASidecarBehindAProxyIsShownACertificate(t *testing.T) {
	authority := testcert.New(t)
	server, me := authority.Server(t), authority.Client(t, "me")
	pair, err := tls.LoadX509KeyPair(server.CertFile, server.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(authority.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // ready
	front.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert}
	front.Config.ErrorLog = hclog.NewNullLogger().StandardLogger(nil)
	front.StartTLS()
	t.Cleanup(front.Close)

	s := config.Settings{Sidecar: front.URL, SidecarCACert: authority.File}
	if _, err := openAt(t, s); problem.CodeOf(err) != problem.Unavailable || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without one: %v", err)
	}
	s.SidecarCert, s.SidecarKey = me.CertFile, me.KeyFile
	if _, err := openAt(t, s); err != nil {
		t.Errorf("with one: %v", err)
	}
}
