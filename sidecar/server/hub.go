package server

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
)

// Source is where a [Hub] gets events from that are not published to it. It returns once none
// are missed from then on, with the function that publishes them until ctx ends.
type Source func(ctx context.Context, h *Hub) (relay func(), err error)

// Notice is an event that is to be sent to the subscriptions that it concerns.
type Notice struct {
	Event string
	// Topic is what the event is about, and Tags are what else it concerns. A
	// subscription can be for one topic or one tag.
	Topic string
	Tags  []string
	// Data is sent as JSON.
	Data any
}

// Hub hands events to subscriptions, in order. It never waits for a reader. It reads
// its source while there are subscriptions.
type Hub struct {
	source Source
	// stopped is closed by Stop.
	stopped chan struct{}

	// mu guards what follows. It is the last lock to be taken.
	mu      sync.Mutex
	all     map[*Subscription]struct{} // for all topics
	byTopic map[string][]*Subscription // for one topic each
	seq     uint64
	quiet   func() // ends reading the source; nil while it is not read
	closed  bool
	tasks   sync.WaitGroup
}

// NewHub returns a hub with a source.
func NewHub(src Source) *Hub {
	return &Hub{source: src, stopped: make(chan struct{}), all: map[*Subscription]struct{}{}, byTopic: map[string][]*Subscription{}}
}

// Subscribe returns a subscription to the events from now on, to be ended with
// [Hub.Unsubscribe]. An empty topic or tag lets all events pass. If the source has ended,
// the subscription has.
func (h *Hub) Subscribe(topic, tag string) *Subscription {
	s := &Subscription{topic: topic, tag: tag, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.end()
		return s
	}
	if topic != "" {
		h.byTopic[topic] = append(h.byTopic[topic], s)
	} else {
		h.all[s] = struct{}{}
	}
	if h.quiet == nil && !h.listen() {
		s.end()
	}
	return s
}

// listen begins to read the source. When it returns, nothing is missed.
func (h *Hub) listen() bool {
	ctx, cancel := context.WithCancel(context.Background())
	relay, err := h.source(ctx, h)
	if err != nil {
		cancel()
		return false
	}
	h.quiet = cancel
	h.tasks.Go(relay)
	return true
}

// Unsubscribe ends a subscription.
func (h *Hub) Unsubscribe(s *Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, s)
	if all, ok := h.byTopic[s.topic]; ok {
		all = slices.DeleteFunc(all, func(x *Subscription) bool { return x == s })
		if h.byTopic[s.topic] = all; len(all) == 0 {
			delete(h.byTopic, s.topic)
		}
	}
	if h.idle() && h.quiet != nil {
		h.quiet()
		h.quiet = nil
	}
}

func (h *Hub) idle() bool { return len(h.all) == 0 && len(h.byTopic) == 0 }

// Publish hands an event to the subscriptions that it concerns.
func (h *Hub) Publish(n Notice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.idle() {
		return
	}
	h.seq++
	m := Message{ID: strconv.FormatUint(h.seq, 10), Event: n.Event}
	send := func(s *Subscription) {
		if s.tag != "" && !slices.Contains(n.Tags, s.tag) {
			return
		}
		if m.Data == nil {
			m.Data = Encode(n.Data)
		}
		s.push(m)
	}
	if n.Topic != "" {
		for _, s := range h.byTopic[n.Topic] {
			send(s)
		}
	}
	for s := range h.all {
		send(s)
	}
}

// Lag notifies all subscriptions that events were dropped.
func (h *Hub) Lag() { h.each((*Subscription).lag) }

// each calls f with all subscriptions.
func (h *Hub) each(f func(*Subscription)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.all {
		f(s)
	}
	for _, all := range h.byTopic {
		for _, s := range all {
			f(s)
		}
	}
}

// Stop notifies all subscriptions that the server is stopping, and ends those for all
// topics. Those for one topic go on until [Hub.Close]: a holder must learn what becomes
// of its claim until the last moment. Stop may be called once.
func (h *Hub) Stop() {
	close(h.stopped)
	h.each(func(s *Subscription) {
		s.stop()
		if s.topic == "" {
			s.end()
		}
	})
}

// Stopped returns a channel that [Hub.Stop] closes.
func (h *Hub) Stopped() <-chan struct{} { return h.stopped }

// Close ends all subscriptions and waits for what the hub has started.
func (h *Hub) Close() {
	h.each((*Subscription).end)
	h.mu.Lock()
	h.closed = true
	if h.quiet != nil {
		h.quiet()
		h.quiet = nil
	}
	h.mu.Unlock()
	h.tasks.Wait()
}

// subscriptionBuffer is how many events a subscription may be behind before its reader
// is notified that it has missed some.
const subscriptionBuffer = 256

// Subscription is what one reader of a [Hub] gets.
type Subscription struct {
	topic, tag string
	wake       chan struct{} // coalesces: there is something to take

	// mu guards what follows.
	mu       sync.Mutex
	queue    []Message
	lagged   bool
	stopping bool // to be reported
	ended    bool // nothing follows
}

// Wake returns the channel that says that there is something to take.
func (s *Subscription) Wake() <-chan struct{} { return s.wake }

// Take returns what there is for the reader: messages in order, then whether some were
// left out after them, whether the server is stopping, and whether this is the end.
func (s *Subscription) Take() (queue []Message, lagged, stopping, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue, lagged, stopping = s.queue, s.lagged, s.stopping
	s.queue, s.lagged, s.stopping = nil, false, false
	return queue, lagged, stopping, s.ended
}

func (s *Subscription) change(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Subscription) push(m Message) {
	s.change(func() {
		if len(s.queue) >= subscriptionBuffer {
			s.lagged = true
			return
		}
		s.queue = append(s.queue, m)
	})
}

func (s *Subscription) lag()  { s.change(func() { s.lagged = true }) }
func (s *Subscription) stop() { s.change(func() { s.stopping = true }) }
func (s *Subscription) end()  { s.change(func() { s.ended = true }) }

// Encode returns the JSON of the data of an event: plain values, which can be encoded.
func Encode(data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("server: encode an event: %v", err))
	}
	return text
}
