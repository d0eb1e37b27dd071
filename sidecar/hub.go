package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/berthhq/berth/pool"
)

// source is where a [hub] hears of pools and of claims that wait. Its channel is
// never closed.
type source func(ctx context.Context) (<-chan pool.Event, error)

// hub hands events to streams, in order. It never waits for one. It listens to
// its source while there are streams.
type hub struct {
	source source
	// stopped is closed by stop.
	stopped chan struct{}

	// mu guards what follows. It is the last lock to be taken.
	mu      sync.Mutex
	streams map[*stream]struct{} // of all claims
	byClaim map[string][]*stream // of one claim each
	seq     uint64
	hush    func() // ends listening to the source; nil while nobody listens
	closed  bool
	tasks   sync.WaitGroup
}

func newHub(src source) *hub {
	return &hub{source: src, stopped: make(chan struct{}), streams: map[*stream]struct{}{}, byClaim: map[string][]*stream{}}
}

// subscribe opens a stream of the events from now on, to be closed with
// unsubscribe. The filters are those of a [stream]. If the source has ended, the
// stream has.
func (h *hub) subscribe(claim, pool string) *stream {
	s := &stream{claim: claim, pool: pool, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.end()
		return s
	}
	if claim != "" {
		h.byClaim[claim] = append(h.byClaim[claim], s)
	} else {
		h.streams[s] = struct{}{}
	}
	if h.hush == nil && !h.listen() {
		s.end()
	}
	return s
}

// listen begins to listen to the source. When it returns, nothing is missed.
func (h *hub) listen() bool {
	ctx, cancel := context.WithCancel(context.Background())
	events, err := h.source(ctx)
	if err != nil {
		cancel()
		return false
	}
	h.hush = cancel
	h.tasks.Go(func() { h.relay(ctx, events) })
	return true
}

func (h *hub) unsubscribe(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
	if all, ok := h.byClaim[s.claim]; ok {
		all = slices.DeleteFunc(all, func(x *stream) bool { return x == s })
		if h.byClaim[s.claim] = all; len(all) == 0 {
			delete(h.byClaim, s.claim)
		}
	}
	if h.idle() && h.hush != nil {
		h.hush()
		h.hush = nil
	}
}

func (h *hub) idle() bool { return len(h.streams) == 0 && len(h.byClaim) == 0 }

// publish hands an event to the streams that it concerns.
func (h *hub) publish(ev Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.idle() {
		return
	}
	h.seq++
	m := message{id: strconv.FormatUint(h.seq, 10), event: ev.Type}
	send := func(s *stream) {
		if s.pool != "" && !slices.Contains(ev.Pools, s.pool) {
			return
		}
		if m.data == nil {
			m.data = encodeEvent(ev)
		}
		s.push(m)
	}
	if ev.Claim != "" {
		for _, s := range h.byClaim[ev.Claim] {
			send(s)
		}
	}
	for s := range h.streams {
		send(s)
	}
}

// encodeEvent writes the data of an event: plain values, which can be written.
func encodeEvent(ev any) []byte {
	data, err := json.Marshal(ev)
	if err != nil {
		panic(fmt.Sprintf("sidecar: encode an event: %v", err))
	}
	return data
}

// each calls f with all streams.
func (h *hub) each(f func(*stream)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		f(s)
	}
	for _, all := range h.byClaim {
		for _, s := range all {
			f(s)
		}
	}
}

// relay hands on what the source tells of pools and of claims that wait. What
// becomes of claims after that is told by their [holders].
func (h *hub) relay(ctx context.Context, events <-chan pool.Event) {
	for {
		select {
		case ev := <-events:
			if ev.Lagged {
				h.each((*stream).lag)
			}
			switch ev.Type {
			case pool.PoolChanged:
				h.publish(Event{Type: EventPoolChanged, Pools: ev.Pools})
			case pool.ClaimWaiting:
				h.publish(Event{Type: EventClaimWaiting, Pools: ev.Pools, Claim: ev.Claim, Reason: ev.Reason})
			}
		case <-ctx.Done():
			return
		}
	}
}

// stop tells all streams that the server is stopping, and ends those that do not
// follow one claim: a holder has to hear of its claim until the last. It may be
// called once.
func (h *hub) stop() {
	close(h.stopped)
	h.each(func(s *stream) {
		s.stop()
		if s.claim == "" {
			s.end()
		}
	})
}

// close ends all streams and waits for what the hub has started.
func (h *hub) close() {
	h.each((*stream).end)
	h.mu.Lock()
	h.closed = true
	if h.hush != nil {
		h.hush()
		h.hush = nil
	}
	h.mu.Unlock()
	h.tasks.Wait()
}
