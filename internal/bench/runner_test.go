package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// tiny is enough to see that everything works, and nothing more.
func tiny(t *testing.T, srv *embed.Server) Config {
	return Config{
		Etcd:     instance.Options{Endpoints: []string{srv.Endpoint()}},
		Duration: 40 * time.Millisecond, Rounds: 1, Clients: []int{1, 16}, Hosts: []int{1, 2},
		History: 200, HeldClaims: 100, Sidecars: fakeSidecars{t}, idle: time.Millisecond,
	}
}

// measureClaims measures all cases that a configuration selects.
func measureClaims(ctx context.Context, cfg Config) (*Report[*Row], error) {
	rows, err := cfg.Rows()
	if err != nil {
		return nil, err
	}
	r, err := NewRunner(ctx, cfg)
	if err != nil {
		return nil, err
	}
	report, err := Measure(ctx, r, rows, r.MeasureClaims)
	return report, errors.Join(err, r.Close())
}

func TestEachCaseIsMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("the tests of some cases show the race detector as much")
	}
	srv := embedtest.New(t)
	var lines []string
	cfg := tiny(t, srv)
	cfg.Progress = func(line string) { lines = append(lines, line) }
	report, err := measureClaims(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range report.Rows {
		if row.Error != "" {
			t.Errorf("%s: %s", row.Name, row.Error)
		}
		measured := row.Memory != nil && row.Memory.Holding > 0 || row.History != nil && row.History.Last > 0 ||
			row.Claim != nil && row.Release != nil && row.PerSecond > 0 && row.Ratio != nil
		if !measured {
			t.Errorf("%s has no figures: %+v", row.Name, row)
		}
		if (row.slots() > 0) != (row.Transfer != nil) {
			t.Errorf("%s has %d slots and transfers: %v", row.Name, row.slots(), row.Transfer)
		}
	}
	for i, row := range report.Rows {
		if want := fmt.Sprintf("%d/%d %s: ", i+1, len(lines), row.Name); !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %q does not begin with %q", lines[i], want)
		}
	}
	if _, err := json.Marshal(report); err != nil {
		t.Errorf("the report is no JSON: %v", err)
	}
	nothingIsLeft(t, srv)
}

// nothingIsLeft checks that all is deleted, but for the leases of sidecars that
// were stopped as if they were to come back.
func nothingIsLeft(t *testing.T, srv *embed.Server) {
	t.Helper()
	conn, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := conn.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		t.Errorf("%s is left", kv.Key)
	}
}

func TestACaseThatFailsLeavesTheOthers(t *testing.T) {
	cfg := tiny(t, embedtest.New(t))
	cfg.Cases = regexp.MustCompile("contended/.*/16c/1h/1p")
	cfg.Sidecars = brokenSidecars{}
	report, err := measureClaims(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range report.Rows {
		if failed := strings.Contains(row.Error, errBroken.Error()); failed != (row.API == HTTPAPI) {
			t.Errorf("%s: %q", row.Name, row.Error)
		}
	}
	if len(report.Rows) != 4 {
		t.Errorf("rows: %v", report.Rows)
	}
}

var errBroken = errors.New("no sidecar today")

type brokenSidecars struct{}

func (brokenSidecars) Start(context.Context, instance.Options) (Sidecar, error) {
	return nil, errBroken
}

func TestAnInterruptedRunReportsWhatItHas(t *testing.T) {
	cfg := tiny(t, embedtest.New(t))
	ctx, cancel := context.WithCancel(t.Context())
	cfg.Progress = func(string) { cancel() }
	report, err := measureClaims(ctx, cfg)
	if !errors.Is(err, context.Canceled) || report == nil || len(report.Rows) != 1 {
		t.Errorf("report %+v, %v", report, err)
	}
}

func TestWhatCantBeMeasuredIsRefused(t *testing.T) {
	tests := map[string]struct {
		config Config
		field  string
	}{
		"duration":         {Config{Duration: time.Nanosecond}, "duration"},
		"rounds":           {Config{Rounds: -1}, "rounds"},
		"clients":          {Config{Clients: []int{0}}, "clients"},
		"hosts":            {Config{Hosts: []int{1, 1001}}, "hosts"},
		"clients of hosts": {Config{ClientsPerHost: -1}, "clients-per-host"},
		"slots":            {Config{Slots: -1}, "slots"},
		"hold":             {Config{Hold: time.Nanosecond}, "hold"},
		"held claims":      {Config{HeldClaims: -5}, "held-claims"},
		"history":          {Config{History: 3}, "history"},
		"cases":            {Config{Cases: regexp.MustCompile("nothing")}, "cases"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := test.config.Rows()
			var p *problem.Error
			if !errors.As(err, &p) || p.Field != test.field {
				t.Errorf("error: %v", err)
			}
		})
	}
}

func TestAnEtcdThatIsNotThereIsAProblem(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := NewRunner(ctx, Config{Etcd: instance.Options{Endpoints: []string{"127.0.0.1:1"}}})
	if instance.ErrorCode(err) != string(problem.EtcdUnavailable) {
		t.Errorf("error: %v", err)
	}
}

// fakeSidecars serves just enough of the HTTP API for the benchmark, from this
// process.
type fakeSidecars struct{ t *testing.T }

type fakeSidecar struct {
	socket string
	client *instance.Client
	server *http.Server
	served chan struct{}
}

func (f fakeSidecars) Start(ctx context.Context, o instance.Options) (Sidecar, error) {
	client, err := instance.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &fakeSidecar{
		socket: filepath.Join(f.t.TempDir(), "s"), client: client,
		server: &http.Server{}, served: make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/claims", s.claim)
	mux.HandleFunc("DELETE /v1/claims/{id}", s.release)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "berth_claims_granted_total 5") })
	s.server.Handler = mux
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		return nil, errors.Join(err, client.Close(ctx))
	}
	go func() {
		defer close(s.served)
		_ = s.server.Serve(l)
	}()
	return s, nil
}

func (s *fakeSidecar) claim(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Pools map[string]int `json:"pools"`
		Wait  string         `json:"wait"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	wait, err := time.ParseDuration(body.Wait)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	cl, err := s.client.Claim(r.Context(), body.Pools, instance.WithWait(wait))
	if err != nil {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(map[string]string{"code": instance.ErrorCode(err)})
		return
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]string{"id": cl.ID})
}

func (s *fakeSidecar) release(w http.ResponseWriter, r *http.Request) {
	cl, err := s.client.Lookup(r.Context(), r.PathValue("id"))
	if err == nil && cl != nil {
		err = cl.Release(r.Context())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *fakeSidecar) Socket() string { return s.socket }

func (s *fakeSidecar) PID() int { return os.Getpid() }

// Stop leaves what is held to its lease, as a sidecar does that is to come back.
func (s *fakeSidecar) Stop() error {
	err := s.server.Close()
	<-s.served
	return errors.Join(err, s.client.Leave())
}
