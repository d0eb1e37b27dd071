package server

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/testcert"
)

// TestWhatCallersCauseIsLoggedAtABoundedRate has requests refused for all reasons that are logged, and
// some that end with a fault.
func TestWhatCallersCauseIsLoggedAtABoundedRate(t *testing.T) {
	const many = 500
	for kind, c := range map[string]struct {
		code problem.Code
		line string
	}{
		"401": {problem.Unauthorized, "status=401"}, "403": {problem.Forbidden, "status=403"}, "408": {problem.SlowRequest, "status=408"},
		"413": {problem.TooLarge, "status=413"}, "429": {problem.TooManyRequests, "status=429"}, "panic": {"", "a request failed"},
	} {
		for _, level := range []hclog.Level{hclog.Info, hclog.Debug} {
			var log strings.Builder
			mux := http.NewServeMux()
			mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) { panic("by design") })
			h := NewHandler(Handler{
				Config: Config{Names: []string{"example.com"}}, Routes: mux, Metrics: NewMetrics(nil), Log: hclog.New(&hclog.LoggerOptions{Output: &log, Level: level}),
				Permit: func(*http.Request) error {
					if c.code == "" {
						return nil
					}
					return problem.New(c.code, "by design")
				},
				Refuse: func(w http.ResponseWriter, _ *http.Request, err error) int {
					http.Error(w, err.Error(), problem.CodeOf(err).Status())
					return problem.CodeOf(err).Status()
				},
			})
			for range many {
				h.ServeHTTP(recorder{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/", nil))
			}
			h.refusals.Flush()
			lines, suppressed := strings.Count(log.String(), c.line), fmt.Sprintf("kind=%s suppressed=%d", kind, many-lograte.Most)
			if lines != lograte.Most || strings.Count(log.String(), suppressed) != 1 {
				t.Errorf("%s: %d lines, want %d and %q:\n%.2000s", kind, lines, lograte.Most, suppressed, log.String())
			}
		}
	}
}

// TestFailedHandshakesAreLoggedAtABoundedRate sends to a server with TLS what is no TLS.
func TestFailedHandshakesAreLoggedAtABoundedRate(t *testing.T) {
	const many = 5 * lograte.Most
	cert := testcert.New(t).Server(t)
	pair, err := tls.LoadX509KeyPair(cert.CertFile, cert.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Listen: "127.0.0.1:0", TLS: func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{pair}} }}
	on, err := Listen(t.Context(), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder // hclog writes one line at a time
	h := NewHandler(Handler{Config: cfg, Routes: http.NewServeMux(), Metrics: NewMetrics(nil), Log: hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Debug})})
	s := Serve(on, h)
	for range many {
		c, err := net.Dial("tcp", on.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		_, _ = io.Copy(io.Discard, c) // until the server has closed it
		_ = c.Close()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_ = on.Close()
	if lines := strings.Count(log.String(), "TLS handshake error"); lines != lograte.Most || !strings.Contains(log.String(), fmt.Sprintf("kind=tls suppressed=%d", many-lograte.Most)) {
		t.Errorf("%d lines:\n%s", lines, log.String())
	}
}
