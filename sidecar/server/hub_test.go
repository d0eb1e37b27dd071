package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
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

// quietTags is a source of tags without events.
func quietTags(context.Context, *Hub, string) (func(), error) { return func() {}, nil }

// sub subscribes to the events from now on.
func sub(h *Hub, topic, tag string) *Subscription {
	s, _ := h.Subscribe(Selection{Topic: topic, Tag: tag, Others: true}, "")
	return s
}

func TestAHubListensWhileThereAreStreams(t *testing.T) {
	synctest.Test(t, testListens)
}

func testListens(t *testing.T) {
	src := newFakeSource()
	h := NewHub(src.relay, quietTags)
	h.Publish(Notice{Event: "PoolChanged"}) // without subscribers
	a := sub(h, "", "")
	b := sub(h, "mine", "")
	if !<-src.listening {
		t.Error("it does not listen")
	}
	src.notices <- Notice{Event: "ClaimWaiting", Topic: "mine", Tags: []string{"db"}}
	src.notices <- Notice{}
	src.notices <- Notice{} // when it is taken, what came before was published
	h.Unsubscribe(b)
	h.Unsubscribe(a)
	unsubscribed := time.Now()
	if <-src.listening {
		t.Error("it listens on")
	}
	if d := time.Since(unsubscribed); d != keepReading {
		t.Errorf("it listened for %s", d)
	}
	for what, s := range map[string]*Subscription{"of all": a, "of the claim": b} {
		queue, lagged, _, ended := s.Take()
		if len(queue) == 0 || queue[0].Event != "ClaimWaiting" || queue[0].ID != h.id(1) || ended {
			t.Errorf("%s: %+v", what, queue)
		}
		if !lagged {
			t.Errorf("%s: it was not notified that it missed some", what)
		}
	}
	h.Close()
	if _, _, _, ended := sub(h, "", "").Take(); !ended {
		t.Error("a stream of a closed hub goes on")
	}
}

func TestAStreamThatIsNotReadIsNotifiedThatItMissedSome(t *testing.T) {
	src := newFakeSource()
	h := NewHub(src.relay, quietTags)
	defer h.Close()
	s := sub(h, "", "db")
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

// resumed returns the data of what a subscription begins with, and whether it has lagged.
func resumed(h *Hub, topic, tag, after string) (got []string, lagged bool) {
	s, _ := h.Subscribe(Selection{Topic: topic, Tag: tag, Others: true}, after)
	defer h.Unsubscribe(s)
	queue, lagged, _, _ := s.Take()
	for _, m := range queue {
		got = append(got, string(m.Data))
	}
	return got, lagged
}

func TestAStreamResumesAfterTheLastEventItHas(t *testing.T) {
	synctest.Test(t, testResumes)
}

func testResumes(t *testing.T) {
	h := NewHub(newFakeSource().relay, quietTags)
	defer h.Close()
	publish := func(n int) {
		h.Publish(Notice{Event: "ClaimGranted", Topic: fmt.Sprint("c", n%2), Tags: []string{fmt.Sprint("p", n%3)}, Data: n})
	}
	s, begun := h.Subscribe(Selection{}, "")
	for n := range 6 {
		publish(n)
	}
	queue, _, _, _ := s.Take()
	h.Unsubscribe(s)
	publish(6) // while none listens
	for what, test := range map[string]struct {
		topic, tag, after string
		want              string
	}{
		"from the begin": {"", "", begun, "[0 1 2 3 4 5 6] false"},
		"from an event":  {"", "", queue[3].ID, "[4 5 6] false"},
		"of a topic":     {"c0", "", queue[1].ID, "[2 4 6] false"},
		"of a tag":       {"", "p1", begun, "[1 4] false"},
		"nothing new":    {"", "", h.id(7), "[] false"},
		"of the future":  {"", "", h.id(8), "[] true"},
		"another epoch":  {"", "", "abcdefgh-3", "[] true"},
		"of no hub":      {"", "", "7", "[] true"},
		"no number":      {"", "", h.epoch + "-x", "[] true"},
	} {
		got, lagged := resumed(h, test.topic, test.tag, test.after)
		if text := fmt.Sprint(got, " ", lagged); text != test.want {
			t.Errorf("%s: %s, want %s", what, text, test.want)
		}
	}

	for n := range maxRecent - 3 {
		publish(n)
	}
	if got, lagged := resumed(h, "", "", queue[2].ID); len(got) > 0 || !lagged {
		t.Errorf("too old: %d events, lagged %t", len(got), lagged)
	}
	if got, lagged := resumed(h, "", "", queue[3].ID); len(got) != maxRecent || lagged {
		t.Errorf("just known: %d events, lagged %t", len(got), lagged)
	}
	last := h.id(h.seq)
	h.Lag() // the source has dropped some
	if _, lagged := resumed(h, "", "", last); !lagged {
		t.Error("what the source dropped is not missed")
	}
	_, now := h.Subscribe(Selection{}, last)
	if got, lagged := resumed(h, "", "", now); len(got) > 0 || lagged {
		t.Errorf("resumed where a stream that lagged goes on: %v, %t", got, lagged)
	}
}

func TestAStreamOfATopicShowsTheEventsOfItsOwnerOnly(t *testing.T) {
	h := NewHub(newFakeSource().relay, quietTags)
	defer h.Close()
	begun, at := h.Subscribe(Selection{}, "")
	defer h.Unsubscribe(begun)
	selections := map[string]struct {
		which Selection
		want  string
	}{
		"own":                        {Selection{Topic: "c", Owner: "a"}, "[2 5]"},
		"own and a tag":              {Selection{Topic: "c", Owner: "a", Tag: "q"}, "[5]"},
		"others until there are own": {Selection{Topic: "c", Owner: "a", Others: true}, "[1 2 5]"},
		"others, of a tag":           {Selection{Topic: "c", Owner: "a", Tag: "q", Others: true}, "[1 5]"},
		"others":                     {Selection{Topic: "c", Owner: "none", Others: true}, "[1 2 3 4 5]"},
		"of no owner":                {Selection{Topic: "c"}, "[]"},
		"others, of no owner":        {Selection{Topic: "c", Others: true}, "[1 2 3 4 5]"},
	}
	live := map[string]*Subscription{}
	for what, one := range selections {
		s, _ := h.Subscribe(one.which, "")
		live[what] = s
		defer h.Unsubscribe(s)
	}
	for n, owner := range []string{"b", "a", "b", "", "a"} {
		h.Publish(Notice{Event: "ClaimGranted", Topic: "c", Owner: owner, Tags: []string{"p", map[bool]string{true: "q"}[n%2 == 0]}, Data: n + 1})
		h.Publish(Notice{Event: "ClaimGranted", Topic: "d", Owner: "a", Tags: []string{"q"}, Data: "of another topic"})
	}
	for what, one := range selections {
		s, _ := h.Subscribe(one.which, at)
		for how, s := range map[string]*Subscription{"live": live[what], "resumed": s} {
			queue, lagged, _, _ := s.Take()
			got := []string{}
			for _, m := range queue {
				got = append(got, string(m.Data))
			}
			if text := fmt.Sprint(got); text != one.want || lagged {
				t.Errorf("%s, %s: %s, want %s; lagged: %t", what, how, text, one.want, lagged)
			}
		}
		h.Unsubscribe(s)
	}
}

func TestAStreamDoesNotResumeFromBeforeTheHubRested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(newFakeSource().relay, quietTags)
		defer h.Close()
		s, at := h.Subscribe(Selection{}, "")
		h.Unsubscribe(s)
		time.Sleep(keepReading - time.Second)
		s, again := h.Subscribe(Selection{}, at)
		if again != at {
			t.Errorf("resumed at %s, want %s", again, at)
		}
		time.Sleep(keepReading)
		if _, lagged := resumed(h, "", "", at); lagged {
			t.Error("it rested while there was a stream")
		}
		h.Unsubscribe(s)
		time.Sleep(keepReading + time.Second)
		if _, lagged := resumed(h, "", "", at); !lagged {
			t.Error("what happened while it rested is not missed")
		}
	})
}

func TestAStopLeavesTheStreamsOfClaims(t *testing.T) {
	h := NewHub(newFakeSource().relay, quietTags)
	all, mine := sub(h, "", ""), sub(h, "mine", "")
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

// A tag is read while there are streams of it, and for a minute after the last.
func TestATagIsReadForItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards read
		read, notices := map[string]int{}, make(chan Notice)
		add := func(tag string, n int) {
			mu.Lock()
			defer mu.Unlock()
			read[tag] += n
		}
		h := NewHub(newFakeSource().relay, func(ctx context.Context, h *Hub, tag string) (func(), error) {
			add(tag, 1)
			context.AfterFunc(ctx, func() { add(tag, -1) })
			return func() {
				for {
					select {
					case n := <-notices:
						h.Publish(n)
					case <-ctx.Done():
						return
					}
				}
			}, nil
		})
		defer h.Close()
		want := func(what string, tags ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for _, tag := range []string{"", "db", "gpu"} {
				n := 0
				if slices.Contains(tags, tag) {
					n = 1
				}
				if read[tag] != n {
					t.Errorf("%s, %q is read %d times, want %d", what, tag, read[tag], n)
				}
			}
		}
		claim := sub(h, "a", "")
		want("for a claim")
		db, again := sub(h, "", "db"), sub(h, "", "db")
		want("for a pool", "db")
		notices <- Notice{Event: "PoolChanged", Tags: []string{"db"}}
		synctest.Wait()
		queue, _, _, _ := db.Take()
		if len(queue) != 1 {
			t.Fatalf("%d events", len(queue))
		}
		last := queue[0].ID
		h.Unsubscribe(db)
		h.Unsubscribe(again)
		time.Sleep(keepReading - time.Second)
		want("a little later", "db")
		if _, lagged := resumed(h, "", "db", last); lagged {
			t.Error("a stream that resumes has missed something")
		}
		time.Sleep(keepReading + time.Second)
		want("later, for a claim")
		if _, lagged := resumed(h, "", "db", last); !lagged {
			t.Error("a stream that resumes has missed nothing while its pool was not read")
		}
		all := sub(h, "", "")
		gpu, at := h.Subscribe(Selection{Tag: "gpu"}, "")
		want("for all", "", "db", "gpu")
		h.Unsubscribe(gpu)
		time.Sleep(keepReading + time.Second)
		want("while all are read", "")
		if _, lagged := resumed(h, "", "gpu", at); lagged {
			t.Error("a stream has missed what was read for all")
		}
		h.Unsubscribe(all)
		h.Unsubscribe(claim)
	})
}
