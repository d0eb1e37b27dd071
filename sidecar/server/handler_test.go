package server

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berthhq/berth/internal/problem"
)

// serve serves an endpoint of the test.
func serve(t *testing.T, log *strings.Builder, pattern string, f http.HandlerFunc) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc(pattern, f)
	srv := httptest.NewServer(NewHandler(Handler{
		Routes: mux, Metrics: NewMetrics(nil), Log: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info}),
		Refuse: func(w http.ResponseWriter, _ *http.Request, err error) int {
			http.Error(w, err.Error(), problem.CodeOf(err).Status())
			return problem.CodeOf(err).Status()
		},
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestAFaultIsAProblemAndIsLogged(t *testing.T) {
	var log strings.Builder
	url := serve(t, &log, "GET /fault", func(http.ResponseWriter, *http.Request) { panic("by design") })
	resp, err := http.Get(url + "/fault")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 500 || strings.Contains(string(body), "by design") {
		t.Errorf("%s %s, %v", resp.Status, body, err)
	}
	http.DefaultClient.CloseIdleConnections()
	if got := log.String(); !strings.Contains(got, "by design") || !strings.Contains(got, "handler_test.go") {
		t.Errorf("the log:\n%s", got)
	}
}

// Of a client that is gone, only that an answer could not be written is no fault.
func TestAFaultIsLoggedAlsoIfItsClientIsGone(t *testing.T) {
	for what, fault := range map[string]struct {
		value  any
		logged bool
	}{
		"a text": {"by design", true}, "a fault of the program": {new(runtime.TypeAssertionError), true},
		"a failed write": {net.ErrClosed, false}, "an aborted answer": {http.ErrAbortHandler, false},
	} {
		var log strings.Builder
		mux := http.NewServeMux()
		mux.HandleFunc("GET /fault", func(http.ResponseWriter, *http.Request) { panic(fault.value) })
		h := NewHandler(Handler{
			Config: Config{Names: []string{"example.com"}}, Routes: mux, Metrics: NewMetrics(nil), Log: hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info}),
			Refuse: func(w http.ResponseWriter, _ *http.Request, err error) int {
				http.Error(w, err.Error(), problem.CodeOf(err).Status())
				return problem.CodeOf(err).Status()
			},
		})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		w := httptest.NewRecorder()
		aborted := func() (aborted bool) {
			defer func() { aborted = recover() != nil }()
			h.ServeHTTP(recorder{w}, httptest.NewRequest(http.MethodGet, "/fault", nil).WithContext(gone))
			return false
		}()
		counted := testutil.ToFloat64(h.Metrics.panics)
		if logged := strings.Contains(log.String(), "a request failed"); logged != fault.logged || aborted == fault.logged || (counted == 1) != fault.logged {
			t.Errorf("%s: logged: %t, aborted: %t, counted: %v, status %d", what, logged, aborted, counted, w.Code)
		}
	}
}

func TestHalfAnAnswerIsCutOff(t *testing.T) {
	var log strings.Builder
	url := serve(t, &log, "GET /half", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(strings.Repeat("x", longAnswer)))
		panic("by design")
	})
	resp, err := http.Get(url + "/half")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var nothing any
	if err := json.NewDecoder(resp.Body).Decode(&nothing); err == nil {
		t.Error("half of it looks whole")
	}
}
