package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Source is where a [Hub] gets events from that are not published to it. It returns once none
// are missed from then on, with the function that publishes them until ctx ends.
type Source func(ctx context.Context, h *Hub) (relay func(), err error)

// Tagged is a [Source] of the events of one tag; without a tag, of all tags.
type Tagged func(ctx context.Context, h *Hub, tag string) (relay func(), err error)

// Notice is an event that is to be sent to the subscriptions that it concerns.
type Notice struct {
	Event string
	// Topic is what the event is about, and Tags are what else it concerns. A
	// subscription can be for one topic or one tag.
	Topic string
	Tags  []string
	// Owner is whose topic it is, since several owners can have one with the same name. It is empty if
	// the owner is not known.
	Owner string
	// Data is sent as JSON.
	Data any
}

// Selection is which events a subscription gets. Without a topic or a tag it gets those of all.
type Selection struct {
	Topic, Tag string
	// Owner is the owner of a topic for whom the subscription is.
	Owner string
	// Others adds the events of other owners of the topic until there is one of Owner.
	Others bool
}

// Hub hands events to subscriptions, in order. It never waits for a reader. It reads
// its source while there are subscriptions, and that of a tag while there are subscriptions
// without a topic for the tag. It goes on for a minute after the last, so that its reader can
// resume.
type Hub struct {
	source Source
	tagged Tagged
	// epoch begins the ids of this hub: those of an earlier process are none of them.
	epoch string
	// stopped is closed by Stop.
	stopped chan struct{}

	// mu guards what follows. It is the last lock to be taken.
	mu      sync.Mutex
	all     map[*Subscription]struct{} // for all topics
	byTopic map[string][]*Subscription // for one topic each
	seq     uint64                     // of the last event
	recent  []recentEvent              // the last events, all that came after whole
	whole   uint64
	quiet   func() // ends reading the source; nil while it is not read
	idling  *time.Timer
	tags    map[string]*tagSource
	closed  bool
	tasks   sync.WaitGroup
}

// tagSource is the source of a tag while it is read.
type tagSource struct {
	quiet  func() // ends reading it
	subs   int
	idling *time.Timer
	since  uint64 // all events of the tag after that one are published
}

// maxRecent is how many events are kept for streams that resume: some 300 KB.
const maxRecent = 1024

// keepReading is for how long the source is read without subscriptions.
const keepReading = time.Minute

type recentEvent struct {
	seq uint64
	Notice
	message Message
}

// NewHub returns a hub with its sources.
func NewHub(src Source, tagged Tagged) *Hub {
	return &Hub{
		source: src, tagged: tagged, tags: map[string]*tagSource{}, epoch: strings.ToLower(rand.Text()[:8]), stopped: make(chan struct{}),
		all: map[*Subscription]struct{}{}, byTopic: map[string][]*Subscription{},
	}
}

// Subscribe returns a subscription to the selected events from now on, to be ended with
// [Hub.Unsubscribe]. If the source has ended, the subscription has.
//
// With the id of an event it resumes after that one; if events since then are no longer
// known, the subscription has lagged. At is the id after which it begins.
func (h *Hub) Subscribe(which Selection, after string) (s *Subscription, at string) {
	topic, tag := which.Topic, which.Tag
	s = &Subscription{Selection: which, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.end()
		return s, after
	}
	if topic != "" {
		h.byTopic[topic] = append(h.byTopic[topic], s)
	} else {
		h.all[s] = struct{}{}
	}
	resting := h.quiet == nil
	if resting && !h.listen() {
		s.end()
	}
	if topic == "" {
		if s.listens = h.listenTo(tag, resting); !s.listens {
			s.end()
		}
	}
	if after == "" {
		return s, h.id(h.seq)
	}
	if !h.replay(s, after) {
		s.lag()
		return s, h.id(h.seq)
	}
	return s, after
}

// id returns the id of an event.
func (h *Hub) id(seq uint64) string { return h.epoch + "-" + strconv.FormatUint(seq, 10) }

// replay hands a subscription what came after the event with an id, and reports whether all
// of that is known.
func (h *Hub) replay(s *Subscription, after string) bool {
	epoch, number, _ := strings.Cut(after, "-")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil || epoch != h.epoch || seq < h.whole || seq > h.seq {
		return false
	}
	if t := h.tags[s.Tag]; s.Topic == "" && (t == nil || seq < t.since) {
		return false
	}
	for _, e := range h.recent {
		if e.seq > seq && (s.Topic == "" || s.Topic == e.Topic) && s.passes(&e.Notice) {
			s.change(func() { s.queue = append(s.queue, e.message) })
		}
	}
	return true
}

// cut forgets the events so far: some between them and the next are not known.
func (h *Hub) cut() {
	h.seq++
	h.whole, h.recent = h.seq, nil
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

// listenTo begins to read the source of a tag, unless it is read. When it returns, nothing is
// missed. Resting is set if no id is from before.
func (h *Hub) listenTo(tag string, resting bool) bool {
	t := h.tags[tag]
	if t == nil {
		ctx, cancel := context.WithCancel(context.Background())
		relay, err := h.tagged(ctx, h, tag)
		if err != nil {
			cancel()
			return false
		}
		t = &tagSource{quiet: cancel}
		if all := h.tags[""]; all != nil {
			t.since = all.since
		} else {
			if !resting {
				h.seq++ // what happened to the tag before is not known
			}
			t.since = h.seq
		}
		h.tags[tag] = t
		h.tasks.Go(relay)
	}
	if t.subs++; t.idling != nil {
		t.idling.Stop()
		t.idling = nil
	}
	return true
}

// leave ends a subscription to a tag.
func (h *Hub) leave(tag string) {
	t := h.tags[tag]
	if t == nil {
		return // the hub is closed
	}
	if t.subs--; t.subs > 0 {
		return
	}
	t.idling = time.AfterFunc(keepReading, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if t.subs == 0 && h.tags[tag] == t {
			h.drop(tag)
		}
	})
}

// drop ends reading the source of a tag.
func (h *Hub) drop(tag string) {
	t := h.tags[tag]
	delete(h.tags, tag)
	t.quiet()
	if t.idling != nil {
		t.idling.Stop()
	}
}

// Unsubscribe ends a subscription.
func (h *Hub) Unsubscribe(s *Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.all[s]; ok {
		delete(h.all, s)
		if s.listens {
			h.leave(s.Tag)
		}
	}
	if all, ok := h.byTopic[s.Topic]; ok {
		all = slices.DeleteFunc(all, func(x *Subscription) bool { return x == s })
		if h.byTopic[s.Topic] = all; len(all) == 0 {
			delete(h.byTopic, s.Topic)
		}
	}
	if h.idle() && h.quiet != nil {
		if h.idling != nil {
			h.idling.Stop()
		}
		h.idling = time.AfterFunc(keepReading, h.rest)
	}
}

// rest ends reading the source unless there are subscriptions again.
func (h *Hub) rest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.idle() && h.quiet != nil {
		h.quiet()
		h.quiet = nil
		h.cut()
		for tag := range h.tags {
			h.drop(tag)
		}
	}
}

func (h *Hub) idle() bool { return len(h.all) == 0 && len(h.byTopic) == 0 }

// Publish hands an event to the subscriptions that it concerns.
func (h *Hub) Publish(n Notice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.quiet == nil {
		return // no id is from before
	}
	h.seq++
	m := Message{ID: h.id(h.seq), Event: n.Event, Data: Encode(n.Data)}
	n.Data = nil
	if len(h.recent) == maxRecent {
		h.whole = h.recent[0].seq
		h.recent = h.recent[1:]
	}
	h.recent = append(h.recent, recentEvent{h.seq, n, m})
	send := func(s *Subscription) {
		if s.passes(&n) {
			s.push(m)
		}
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
func (h *Hub) Lag() {
	h.mu.Lock()
	h.cut()
	h.mu.Unlock()
	h.each((*Subscription).lag)
}

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
		if s.Topic == "" {
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
	if h.idling != nil {
		h.idling.Stop()
	}
	if h.quiet != nil {
		h.quiet()
		h.quiet = nil
	}
	for tag := range h.tags {
		h.drop(tag)
	}
	h.mu.Unlock()
	h.tasks.Wait()
}

// subscriptionBuffer is how many events a subscription may be behind before its reader
// is notified that it has missed some.
const subscriptionBuffer = 256

// Subscription is what one reader of a [Hub] gets.
type Subscription struct {
	Selection // Others is guarded by mu of the hub

	listens bool          // to the source of the tag
	wake    chan struct{} // coalesces: there is something to take

	// mu guards what follows.
	mu       sync.Mutex
	queue    []Message
	lagged   bool
	stopping bool // to be reported
	ended    bool // nothing follows
}

// passes reports whether an event that has the topic of the subscription is for it.
func (s *Subscription) passes(n *Notice) bool {
	if s.Topic != "" {
		own := s.Owner != "" && n.Owner == s.Owner
		if s.Others = s.Others && !own; !own && !s.Others {
			return false
		}
	}
	return s.Tag == "" || slices.Contains(n.Tags, s.Tag)
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
