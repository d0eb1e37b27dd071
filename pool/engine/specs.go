package engine

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/singleflight"

	"github.com/berthhq/berth/internal/store"
)

const (
	// shareFor is for how long it is remembered whether there is a pool.
	shareFor = time.Second
	// specTimeout bounds reading whether there is a pool, and specPause is for how long it is not read again after a failure.
	specTimeout = 200 * time.Millisecond
	specPause   = time.Second
	// maxSpecs bounds the pools that are remembered.
	maxSpecs = 1000
)

// specs knows which pools there are, as of the last second.
type specs struct {
	backend store.Backend
	keys    store.Keys
	flights singleflight.Group

	mu     sync.Mutex // guards what follows
	known  map[string]knownSpec
	failed time.Time // the last read that failed
}

// knownSpec is whether there was a pool at some time.
type knownSpec struct {
	exists bool
	at     time.Time
}

func newSpecs(b store.Backend, keys store.Keys) *specs { return &specs{backend: b, keys: keys} }

// HasPool reports whether there is a pool of that name, as it was at most a second ago. While etcd does not answer it is
// what is known of it, and true if nothing is: a claim finds out.
func (e *Engine) HasPool(name string) bool { return e.specs.has(name) }

// has is [Engine.HasPool].
func (s *specs) has(name string) bool {
	exists, use := s.of(name)
	if use {
		return exists
	}
	seen, _, _ := s.flights.Do(name, func() (any, error) { return s.read(name, exists), nil })
	return seen.(bool)
}

// of returns what is known of a pool, and whether it is to be used without reading it.
func (s *specs) of(name string) (exists, use bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.known[name]
	return k.exists || !ok, ok && time.Since(k.at) < shareFor || time.Since(s.failed) < specPause
}

// read reads whether there is a pool, and otherwise returns what is known.
func (s *specs) read(name string, known bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), specTimeout)
	defer cancel()
	at := time.Now()
	resp, err := s.backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.keys.Spec(name)), CountOnly: true})
	if err != nil {
		s.fail()
		return known
	}
	s.note(name, knownSpec{exists: resp.Count > 0, at: at})
	return resp.Count > 0
}

func (s *specs) note(name string, k knownSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxSpecs {
		s.known = map[string]knownSpec{}
	}
	s.known[name] = k
}

// fail records that a pool could not be read.
func (s *specs) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = time.Now()
}

// forget has every pool read again.
func (s *specs) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
}
