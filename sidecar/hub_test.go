package sidecar

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/pool"
)

// fakeSource is what a hub listens to, and counts who does.
type fakeSource struct {
	events    chan pool.Event
	listening chan bool
}

func newFakeSource() *fakeSource {
	return &fakeSource{events: make(chan pool.Event), listening: make(chan bool, 10)}
}

func (f *fakeSource) subscribe(ctx context.Context) (<-chan pool.Event, error) {
	f.listening <- true
	context.AfterFunc(ctx, func() { f.listening <- false })
	return f.events, nil
}

func TestAHubListensWhileThereAreStreams(t *testing.T) {
	src := newFakeSource()
	h := newHub(src.subscribe)
	h.publish(Event{Type: EventPoolChanged}) // for nobody
	a := h.subscribe("", "")
	b := h.subscribe("mine", "")
	if !<-src.listening {
		t.Error("it does not listen")
	}
	src.events <- pool.Event{Type: pool.ClaimWaiting, Claim: "mine", Pools: []string{"db"}, Reason: "full"}
	src.events <- pool.Event{Type: pool.ClaimGranted, Claim: "mine"} // told by its holder
	src.events <- pool.Event{Type: pool.PoolChanged, Pools: []string{"db"}, Lagged: true}
	src.events <- pool.Event{} // when it is taken, what came before was told
	h.unsubscribe(b)
	h.unsubscribe(a)
	if <-src.listening {
		t.Error("it listens on")
	}
	for what, s := range map[string]*stream{"of all": a, "of the claim": b} {
		queue, lagged, _, ended := s.take()
		if len(queue) == 0 || queue[0].event != EventClaimWaiting || queue[0].id != "1" || ended {
			t.Errorf("%s: %+v", what, queue)
		}
		if !lagged {
			t.Errorf("%s: it was not told that it missed some", what)
		}
	}
	h.close()
	if _, _, _, ended := h.subscribe("", "").take(); !ended {
		t.Error("a stream of a closed hub goes on")
	}
}

func TestAStreamThatIsNotReadIsToldThatItMissedSome(t *testing.T) {
	src := newFakeSource()
	h := newHub(src.subscribe)
	defer h.close()
	s := h.subscribe("", "db")
	for i := range 2 * streamBuffer {
		h.publish(Event{Type: EventClaimGranted, Claim: fmt.Sprint(i), Pools: []string{"db"}})
		h.publish(Event{Type: EventClaimGranted, Claim: fmt.Sprint(i), Pools: []string{"gpu"}})
	}
	queue, lagged, _, _ := s.take()
	if len(queue) != streamBuffer || !lagged {
		t.Errorf("%d events, lagged %t", len(queue), lagged)
	}
	for i, m := range queue {
		if want := fmt.Sprintf(`{"type":"claim_granted","pools":["db"],"claim":"%d"}`, i); string(m.data) != want {
			t.Fatalf("event %d: %s", i, m.data)
		}
	}
	h.publish(Event{Type: EventClaimGranted, Claim: "next", Pools: []string{"db"}})
	if queue, lagged, _, _ := s.take(); len(queue) != 1 || lagged {
		t.Errorf("after that: %d events, lagged %t", len(queue), lagged)
	}
}

func TestAStopLeavesTheStreamsOfClaims(t *testing.T) {
	h := newHub(newFakeSource().subscribe)
	all, mine := h.subscribe("", ""), h.subscribe("mine", "")
	h.stop()
	if _, _, stopping, ended := all.take(); !stopping || !ended {
		t.Errorf("of all: stopping %t, ended %t", stopping, ended)
	}
	if _, _, stopping, ended := mine.take(); !stopping || ended {
		t.Errorf("of a claim: stopping %t, ended %t", stopping, ended)
	}
	h.close()
	select {
	case <-mine.wake:
	case <-time.After(time.Minute):
		t.Error("it is not woken for its end")
	}
}
