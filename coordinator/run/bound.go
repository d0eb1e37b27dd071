package run

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// DefaultMaxEvents is the default of how many events a run has.
	DefaultMaxEvents = 500
	// ofRun is how many of them only the run itself can have: its steps and claims leave them.
	ofRun = 20
	// uncounted is how many events of a run a process writes between two counts.
	uncounted = 50
	// boundRuns bounds the runs of which a process remembers how many events they have.
	boundRuns = 10_000
	// recount is how long a run that has all its events gets no more: some may expire.
	recount = time.Minute
)

// eventBound bounds the events of each run. Processes count the events in etcd, after every few
// of their own: so a write needs no read, and a run can exceed the bound by what several
// processes write at the same time.
type eventBound struct {
	most int

	mu   sync.Mutex // guards what follows
	runs map[string]*eventCount
}

// eventCount is what a process knows of the events of a run.
type eventCount struct {
	// known is the number of events that it has at least, and left how many more are written
	// before they are counted.
	known, left int
	counted     time.Time
}

// take reports whether one more event of a type can be written, and counts it. count counts the
// events in etcd.
func (b *eventBound) take(run string, t EventType, now time.Time, count func() (int, error)) (bool, error) {
	most := b.most
	if strings.HasPrefix(string(t), "Step") {
		most -= ofRun
	}
	if b.spend(run, most) {
		return true, nil
	}
	if b.refused(run, most, now) {
		return false, nil
	}
	n, err := count()
	if err != nil {
		return false, err
	}
	b.learn(run, n, now)
	return b.spend(run, most), nil
}

// of returns the count of a run. The caller holds mu.
func (b *eventBound) of(run string) *eventCount {
	c := b.runs[run]
	if c != nil {
		return c
	}
	if len(b.runs) >= boundRuns { // those with few events are not missed
		maps.DeleteFunc(b.runs, func(_ string, c *eventCount) bool { return c.known < uncounted/2 })
	}
	if b.runs == nil || len(b.runs) >= boundRuns {
		b.runs = map[string]*eventCount{}
	}
	c = &eventCount{left: uncounted}
	b.runs[run] = c
	return c
}

// spend counts one more event, unless the events have to be counted first.
func (b *eventBound) spend(run string, most int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.of(run)
	if c.left == 0 || c.known >= most {
		return false
	}
	c.left--
	c.known++
	return true
}

// refused reports whether the run had all its events when they were counted last, a moment ago.
func (b *eventBound) refused(run string, most int, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.of(run)
	return c.known >= most && !c.counted.IsZero() && now.Sub(c.counted) < recount
}

// learn takes the number of events that a run has in etcd. Events of this process may not be
// among them yet.
func (b *eventBound) learn(run string, n int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.of(run)
	if now.Sub(c.counted) >= recount && !c.counted.IsZero() {
		c.known = n
	}
	c.known, c.left, c.counted = max(c.known, n), uncounted, now
}

const (
	// claimEventsMost bounds the events of claims of one identity that a process writes within
	// claimEventsWindow: some 250 MiB a day.
	claimEventsMost   = 36_000
	claimEventsWindow = time.Hour
)

// claimBound bounds the events of the claims of each identity, which can make claims as fast as
// it can send requests. The zero value is ready.
type claimBound struct {
	begun time.Time      // of the window
	of    map[string]int // events within it, by identity
}

// take reports whether one more event of a claim can be written, and counts it.
func (b *claimBound) take(by string, most int, now time.Time) bool {
	if age := now.Sub(b.begun); b.of == nil || age >= claimEventsWindow || age < 0 {
		b.begun, b.of = now, map[string]int{}
	}
	if b.of[by] >= most {
		return false
	}
	b.of[by]++
	return true
}

// Bound sets how many events a run can have at most, before the journal is used, and returns the
// journal. 0 is [DefaultMaxEvents].
func (j *Journal) Bound(most int) *Journal {
	j.bound.most = cmp.Or(most, DefaultMaxEvents)
	return j
}

// Dropped returns the number of events that were not written because their runs had as many as
// they can have.
func (j *Journal) Dropped() int64 { return j.dropped.Load() }

// count counts the events of a run.
func (j *Journal) count(ctx context.Context, run string) (int, error) {
	prefix := j.keys.Events(run)
	resp, err := j.backend.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), CountOnly: true})
	if err != nil {
		return 0, err
	}
	return int(resp.Count), nil
}
