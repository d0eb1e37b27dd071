package bench

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthhq/berth"
)

// fakeSidecars serves just enough of the HTTP API for the benchmark, from this
// process.
type fakeSidecars struct{ t *testing.T }

type fakeSidecar struct {
	socket string
	client *berth.Client
	server *http.Server
	served chan struct{}
}

func (f fakeSidecars) Start(ctx context.Context, o berth.Options) (Sidecar, error) {
	client, err := berth.Open(ctx, o)
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
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	cl, err := s.client.Claim(r.Context(), body.Pools)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
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
