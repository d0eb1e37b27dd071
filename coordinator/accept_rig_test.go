package coordinator

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// groundWait bounds each wait of a test.
const groundWait = 20 * time.Second

// ground is a real etcd, with everything that is ever seen of it, and a worker that
// takes and finishes instances when the test says so.
type ground struct {
	t       *testing.T
	client  func() *store.Client // each with connections of its own
	backend *store.Client
	keys    store.Keys
	runs    run.Store
	steps   step.Store

	lease  store.LeaseID
	mine   map[string]*step.Taken // by STEP[INDEX]
	probes int

	mu   sync.Mutex // guards what follows
	seen *groundSeen
	news chan struct{} // closed with the next revision
}

// groundSeen is what was seen of an etcd.
type groundSeen struct {
	keys     store.Keys
	queue    map[string]*step.Published // by key; but for probes
	statuses map[string][]step.Status   // all that an instance ever was
	runs     map[string]run.Status
	works    map[string][]int64 // keys of work, with the revisions of their writes
	// firstReady is the revision of the first publication, and rev the last that was seen.
	firstReady, rev int64
	// most is how many were in flight at most: of a run, and of each of its steps.
	most, inFlight map[string]int
}

func newGround(t *testing.T) *ground {
	t.Helper()
	etcd := embedtest.New(t)
	g := &ground{
		t: t, client: func() *store.Client { return embedtest.Client(t, etcd) }, keys: store.NewKeys(store.DefaultPrefix),
		mine: map[string]*step.Taken{}, news: make(chan struct{}),
	}
	g.seen = &groundSeen{
		keys: g.keys, queue: map[string]*step.Published{}, statuses: map[string][]step.Status{}, runs: map[string]run.Status{},
		works: map[string][]int64{}, most: map[string]int{}, inFlight: map[string]int{},
	}
	g.backend = g.client()
	journal := run.NewJournal(g.backend, g.keys, "test/test", 0)
	g.runs = run.Store{Backend: g.backend, Keys: g.keys, Journal: journal}
	g.steps = step.Store{Backend: g.backend, Keys: g.keys, Journal: journal, Group: &store.Group{}}
	g.grant()
	ctx, cancel := context.WithCancel(context.Background())
	watch := g.client().Watch(ctx, store.Prefix(g.keys.Prefix()), 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range watch.Messages() {
			if m.Err == nil {
				g.take(m.Events)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return g
}

func (g *ground) grant() {
	g.t.Helper()
	id, _, err := g.backend.Grant(g.t.Context(), time.Hour)
	if err != nil {
		g.t.Fatal(err)
	}
	g.lease = id
}

// take takes events, a revision at a time.
func (g *ground) take(events []*mvccpb.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(events) > 0 {
		n := slices.IndexFunc(events, func(ev *mvccpb.Event) bool { return ev.Kv.ModRevision != events[0].Kv.ModRevision })
		if n < 0 {
			n = len(events)
		}
		for _, ev := range events[:n] {
			g.seen.event(g.t, ev)
		}
		g.seen.count(events[0].Kv.ModRevision)
		events = events[n:]
	}
	close(g.news)
	g.news = make(chan struct{})
}

// event takes one.
func (s *groundSeen) event(t *testing.T, ev *mvccpb.Event) {
	key, put := string(ev.Kv.Key), ev.Type == mvccpb.Event_PUT
	in := func(prefix string) bool { return strings.HasPrefix(key, prefix) }
	switch {
	case in(s.keys.ReadyAll()) && !put:
		delete(s.queue, key)
	case in(s.keys.ReadyAll()):
		p, err := step.DecodeReady(s.keys, ev.Kv)
		if err != nil {
			t.Error(err)
			return
		}
		if p.Queue != step.DefaultQueue {
			return
		}
		s.queue[key] = p
		if s.firstReady == 0 {
			s.firstReady = ev.Kv.ModRevision
		}
	case in(s.keys.StepsAll()) && strings.Count(key[len(s.keys.StepsAll()):], "/") == 2 && put:
		i, err := step.Decode(s.keys, ev.Kv)
		if err != nil {
			t.Error(err)
			return
		}
		id := i.String()
		if was := s.statuses[id]; len(was) > 0 && was[len(was)-1].InFlight() {
			s.move(i.StepID, -1)
		}
		if i.Status.InFlight() {
			s.move(i.StepID, 1)
		}
		s.statuses[id] = append(s.statuses[id], i.Status)
	case in(s.keys.Runs()) && put:
		if r, err := run.Decode(s.keys, ev.Kv); err == nil {
			s.runs[r.ID] = r.Status
		}
	case in(s.keys.Works("r")) && put:
		s.works[key] = append(s.works[key], ev.Kv.ModRevision)
	}
}

func (s *groundSeen) move(id store.StepID, by int) {
	s.inFlight[id.Run] += by
	s.inFlight[id.Run+"/"+id.Step] += by
}

// count notes the peaks, at the end of a revision.
func (s *groundSeen) count(rev int64) {
	s.rev = rev
	for what, n := range s.inFlight {
		s.most[what] = max(s.most[what], n)
	}
}

// ready is what can be taken, in order, as STEP[INDEX].
func (s *groundSeen) ready() string {
	var all []string
	for _, p := range s.inOrder() {
		all = append(all, p.ID().Text())
	}
	return strings.Join(all, " ")
}

func (s *groundSeen) inOrder() (all []*step.Published) {
	for _, p := range s.queue {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *step.Published) int { return strings.Compare(a.Order, b.Order) })
	return all
}

// look calls f with everything that was written up to now.
func (g *ground) look(f func(*groundSeen)) {
	g.t.Helper()
	g.caughtUp()
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g.seen)
}

// publications are what can be taken now, in order.
func (g *ground) publications() (all []*step.Published) {
	g.t.Helper()
	g.look(func(s *groundSeen) { all = s.inOrder() })
	return all
}

// caughtUp waits until all was seen that is written now: only what is under the prefix
// makes revisions.
func (g *ground) caughtUp() {
	g.t.Helper()
	resp, err := g.backend.Range(g.t.Context(), &pb.RangeRequest{Key: []byte(g.keys.Limits())})
	if err != nil {
		g.t.Fatal(err)
	}
	g.until("all is seen", func(s *groundSeen) bool { return s.rev >= resp.Header.Revision })
}

// until waits until something was seen.
func (g *ground) until(what string, so func(*groundSeen) bool) {
	g.t.Helper()
	deadline := time.After(groundWait)
	for {
		g.mu.Lock()
		is, news := so(g.seen), g.news
		g.mu.Unlock()
		if is {
			return
		}
		select {
		case <-news:
		case <-deadline:
			g.look(func(s *groundSeen) {
				g.t.Fatalf("waited in vain: %s; %q can be taken, runs are %v, %v", what, s.ready(), s.runs, s.statuses)
			})
		}
	}
}
