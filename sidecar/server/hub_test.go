package server

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// fakeSource is what a hub listens to, and counts who does.
type fakeSource struct {
	notices   chan Notice // one without an event says that some were left out
	listening chan bool
}

func newFakeSource() *fakeSource {
	return &fakeSource{notices: make(chan Notice), listening: make(chan bool, 10)}
}

func (f *fakeSource) relay(ctx context.Context, h *Hub) (func(), error) {
	f.listening <- true
	context.AfterFunc(ctx, func() { f.listening <- false })
	return func() {
		for {
			select {
			case n := <-f.notices:
				if n.Event == "" {
					h.Lag()
				} else {
					h.Publish(n)
				}
			case <-ctx.Done():
				return
			}
		}
	}, nil
}

func TestAHubListensWhileThereAreStreams(t *testing.T) {
	src := newFakeSource()
	h := NewHub(src.relay)
	h.Publish(Notice{Event: "PoolChanged"}) // without subscribers
	a := h.Subscribe("", "")
	b := h.Subscribe("mine", "")
	if !<-src.listening {
		t.Error("it does not listen")
	}
	src.notices <- Notice{Event: "ClaimWaiting", Topic: "mine", Tags: []string{"db"}}
	src.notices <- Notice{}
	src.notices <- Notice{} // when it is taken, what came before was published
	h.Unsubscribe(b)
	h.Unsubscribe(a)
	if <-src.listening {
		t.Error("it listens on")
	}
	for what, s := range map[string]*Subscription{"of all": a, "of the claim": b} {
		queue, lagged, _, ended := s.Take()
		if len(queue) == 0 || queue[0].Event != "ClaimWaiting" || queue[0].ID != "1" || ended {
			t.Errorf("%s: %+v", what, queue)
		}
		if !lagged {
			t.Errorf("%s: it was not told that it missed some", what)
		}
	}
	h.Close()
	if _, _, _, ended := h.Subscribe("", "").Take(); !ended {
		t.Error("a stream of a closed hub goes on")
	}
}

func TestAStreamThatIsNotReadIsToldThatItMissedSome(t *testing.T) {
	src := newFakeSource()
	h := NewHub(src.relay)
	defer h.Close()
	s := h.Subscribe("", "db")
	for i := range 2 * subscriptionBuffer {
		h.Publish(Notice{Event: "ClaimGranted", Topic: fmt.Sprint(i), Tags: []string{"db"}, Data: i})
		h.Publish(Notice{Event: "ClaimGranted", Topic: fmt.Sprint(i), Tags: []string{"gpu"}, Data: i})
	}
	queue, lagged, _, _ := s.Take()
	if len(queue) != subscriptionBuffer || !lagged {
		t.Errorf("%d events, lagged %t", len(queue), lagged)
	}
	for i, m := range queue {
		if want := fmt.Sprint(i); string(m.Data) != want {
			t.Fatalf("event %d: %s", i, m.Data)
		}
	}
	h.Publish(Notice{Event: "ClaimGranted", Topic: "next", Tags: []string{"db"}})
	if queue, lagged, _, _ := s.Take(); len(queue) != 1 || lagged {
		t.Errorf("after that: %d events, lagged %t", len(queue), lagged)
	}
}

func TestAStopLeavesTheStreamsOfClaims(t *testing.T) {
	h := NewHub(newFakeSource().relay)
	all, mine := h.Subscribe("", ""), h.Subscribe("mine", "")
	h.Stop()
	if _, _, stopping, ended := all.Take(); !stopping || !ended {
		t.Errorf("of all: stopping %t, ended %t", stopping, ended)
	}
	if _, _, stopping, ended := mine.Take(); !stopping || ended {
		t.Errorf("of a claim: stopping %t, ended %t", stopping, ended)
	}
	h.Close()
	select {
	case <-mine.Wake():
	case <-time.After(time.Minute):
		t.Error("it is not woken for its end")
	}
}
