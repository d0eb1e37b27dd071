package storetest

import (
	"sync"
	"time"
)

// hub is what all clients of one [Etcd] share.
type hub struct {
	manual bool // time passes by hand

	// mu guards all below, the etcd, and what the clients say it guards.
	mu       sync.Mutex
	etcd     *Etcd
	clients  map[*Backend]struct{}
	notified int64     // the revision up to which watches were woken
	clock    time.Time // up to when the etcd's time has passed
	timer    *time.Timer
	armed    time.Time // when timer fires
}

func newHub(e *Etcd, manual bool) *hub {
	return &hub{
		manual:   manual,
		etcd:     e,
		clients:  make(map[*Backend]struct{}),
		notified: e.Revision(),
		clock:    time.Now(),
	}
}

// client adds a client.
func (h *hub) client() *Backend {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := &Backend{hub: h, done: make(chan struct{}), watches: make(map[*watch]struct{}), replaced: make(chan struct{})}
	h.clients[b] = struct{}{}
	return b
}

// leave removes a client; h.mu is held.
func (h *hub) leave(b *Backend) {
	delete(h.clients, b)
	for w := range b.watches {
		w.cancel()
	}
	if len(h.clients) == 0 && h.timer != nil {
		h.timer.Stop()
	}
}

// do uses the etcd at the present time, and passes on what came of it.
func (h *hub) do(f func(*Etcd)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pass()
	f(h.etcd)
	h.arm()
	if h.notified == h.etcd.Revision() {
		return
	}
	h.notified = h.etcd.Revision()
	for b := range h.clients {
		b.wake()
	}
}

// pass lets as much time pass in the etcd as did outside.
func (h *hub) pass() {
	if h.manual {
		return
	}
	now := time.Now()
	h.etcd.Advance(now.Sub(h.clock))
	h.clock = now
}

// arm has the timer fire when the next lease ends.
func (h *hub) arm() {
	next, ok := h.etcd.NextExpiry()
	if h.manual || !ok || len(h.clients) == 0 {
		return
	}
	wait := next - h.etcd.Now()
	at := h.clock.Add(wait)
	if at.Equal(h.armed) {
		return
	}
	h.armed = at
	if h.timer == nil {
		h.timer = time.AfterFunc(wait, func() { h.do(func(*Etcd) {}) })
		return
	}
	h.timer.Reset(wait)
}
