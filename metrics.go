package berth

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// registrations remembers what a client registers, so that a closed client, or
// one that could not be opened, leaves nothing behind in the caller's registry.
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

// MustRegister is Register for several, and panics where one fails: two clients
// with one registry need to be told apart by prometheus.WrapRegistererWith.
func (r *registrations) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// end takes everything out of the registry again. A nil one has nothing.
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
