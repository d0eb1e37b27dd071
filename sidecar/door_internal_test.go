package sidecar

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// doorTo is a door with something of the test's behind it.
func doorTo(t *testing.T, log *strings.Builder, pattern string, f http.HandlerFunc) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc(pattern, f)
	srv := httptest.NewServer(&door{
		guard: newGuard(&Config{}), mux: mux, metrics: newMetrics(nil),
		log: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info}),
	})
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestAFaultIsAProblemAndIsTold(t *testing.T) {
	var log strings.Builder
	url := doorTo(t, &log, "GET /fault", func(http.ResponseWriter, *http.Request) { panic("by design") })
	resp, err := http.Get(url + "/fault")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var p Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || p.Status != 500 || p.Code != "internal" || resp.StatusCode != 500 {
		t.Errorf("%s %+v, %v", resp.Status, p, err)
	}
	if strings.Contains(p.Detail, "by design") {
		t.Errorf("it is told to the client: %s", p.Detail)
	}
	http.DefaultClient.CloseIdleConnections()
	if got := log.String(); !strings.Contains(got, "by design") || !strings.Contains(got, "door_internal_test.go") {
		t.Errorf("the log:\n%s", got)
	}
}

func TestHalfAnAnswerIsCutOff(t *testing.T) {
	var log strings.Builder
	url := doorTo(t, &log, "GET /half", func(w http.ResponseWriter, _ *http.Request) {
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

func TestAnErrorOfAnEndpointIsAProblem(t *testing.T) {
	p := problemOf(errors.New("no problem of ours"))
	if p.Status != 500 || p.Code != "internal" {
		t.Errorf("%+v", p)
	}
	q := newProblem("claim_lost", "it is lost")
	if got := problemOf(q.err()); got.Code != q.Code || got.Detail != q.Detail || got.Status != 409 {
		t.Errorf("there and back: %+v", got)
	}
	f := fieldProblem(FieldError{Field: "pools.db", Message: "too many"})
	if e := f.err(); e.Field != "pools.db" || e.Message != "too many" || e.Error() != "pools.db: too many" {
		t.Errorf("%+v", e)
	}
}
