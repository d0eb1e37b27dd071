package instance

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// registrations remembers the collectors that a client registers, so that a closed
// client, or one that failed to open, leaves none in the caller's registry.
type registrations struct {
	prometheus.Registerer

	mu  sync.Mutex
	all []prometheus.Collector
}

// Register registers a collector until [registrations.end].
func (r *registrations) Register(c prometheus.Collector) error {
	err := r.Registerer.Register(c)
	if err == nil {
		r.mu.Lock()
		r.all = append(r.all, c)
		r.mu.Unlock()
	}
	return err
}

// MustRegister is Register for several collectors, and panics on the first error. Two
// clients with one registry need prometheus.WrapRegistererWith to distinguish them.
func (r *registrations) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// end unregisters all collectors. It does nothing on a nil receiver.
func (r *registrations) end() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.all {
		r.Unregister(c)
	}
	r.all = nil
}
