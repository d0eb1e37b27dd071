package sidecar_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
)

func TestTheHealthOfAProcessIsServed(t *testing.T) {
	reg := prometheus.NewRegistry()
	seen := prometheus.NewGauge(prometheus.GaugeOpts{Name: "seen", Help: "x"})
	reg.MustRegister(seen)
	var missing atomic.Pointer[error]
	h, err := sidecar.ServeHealth(t.Context(), sidecar.Config{Listen: "127.0.0.1:0", Tokens: accesstest.Tokens("prometheus", "0123456789abcdef", "view"), Gatherer: reg}, func() error {
		if why := missing.Load(); why != nil {
			return *why
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(path, token, host string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+h.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		req.Host = host
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	wants := func(path, token, host string, status int, text string) {
		t.Helper()
		if got, body := ask(path, token, host); got != status || !strings.Contains(body, text) {
			t.Errorf("%s: %d %s, want %d, %s", path, got, body, status, text)
		}
	}
	wants("/healthz", "", "", 200, `{"status":"ok"}`)
	wants("/readyz", "", "", 200, `{"status":"ready"}`)
	wants("/metrics", "0123456789abcdef", "", 200, "\nseen 0\n")
	wants("/metrics", "", "", 401, `"code":"unauthorized"`)
	wants("/metrics", "fedcba9876543210", "", 401, `"code":"unauthorized"`)
	wants("/healthz", "", "evil.example", 403, `"code":"forbidden"`)
	wants("/v1/runs", "0123456789abcdef", "", 404, `"code":"not_found"`)

	why := error(problem.New(problem.EtcdUnavailable, "etcd is away"))
	missing.Store(&why)
	wants("/readyz", "", "", 503, `"code":"etcd_unavailable"`)
	wants("/readyz", "", "", 503, `"not_ready":["etcd is away"]`)
	sulks := errors.New("it sulks")
	missing.Store(&sulks)
	wants("/readyz", "", "", 503, `"code":"unavailable"`)
	wants("/healthz", "", "", 200, "ok")

	_, err = sidecar.ServeHealth(t.Context(), sidecar.Config{Listen: h.Addr().String()}, nil)
	wantField(t, err, "listen")
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + h.Addr().String() + "/healthz"); err == nil {
		t.Error("it is served on")
	}
	for _, address := range []string{"0.0.0.0:0", "", "nowhere"} {
		_, err := sidecar.ServeHealth(t.Context(), sidecar.Config{Listen: address}, nil)
		wantField(t, err, "listen")
	}
}
