package ui

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// cacheIdle is how long after the last read the runs are still followed.
	cacheIdle = time.Minute
	// cachePatience bounds the wait of a read for the first snapshot of the runs.
	cachePatience = 5 * time.Second
	// cacheStale is the age from which the runs are not shown: by then the feed has tried
	// another endpoint several times.
	cacheStale = 10 * time.Second
	// cacheRetry is how long a read waits until the runs can be followed.
	cacheRetry = 20 * time.Millisecond
)

// runCache keeps one copy of the runs in memory for all pages: it is read from etcd at the
// first read, then watched, and dropped a minute after the last read. So the number of open pages
// does not matter to etcd.
type runCache struct {
	log hclog.Logger
	// background runs a function asynchronously, and reports whether it does.
	background  func(func(context.Context)) bool
	environment environmentCache
	chips       chipNotes
	progress    doneNotes

	// mu guards what follows. Runs in it are replaced, never changed.
	mu     sync.RWMutex
	readAt time.Time // the last time
	// known is not nil while the runs are followed, and closed once they are known.
	known   chan struct{}
	runs    *runSet
	updated time.Time // when etcd reported runs last
}

func newRunCache(log hclog.Logger, background func(func(context.Context)) bool) *runCache {
	return &runCache{log: log, background: background}
}

// read calls f with the runs as they are now. f must be quick, and keep nothing of the set
// but runs.
func (b *runCache) read(ctx context.Context, s run.Store, f func(*runSet)) error {
	patience := time.NewTimer(cachePatience)
	defer patience.Stop()
	retry := time.NewTicker(cacheRetry)
	defer retry.Stop()
	for {
		known := b.follow(s)
		select {
		case <-known:
		case <-retry.C:
			continue
		case <-patience.C:
			return b.silence(ctx, s)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if done, err := b.show(f); done {
			return err
		}
	}
}

// follow starts to follow the runs, and returns a channel that is closed once they are known;
// nil if they can't be followed now.
func (b *runCache) follow(s run.Store) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readAt = time.Now()
	if b.known != nil {
		return b.known
	}
	known := make(chan struct{})
	if !b.background(func(ctx context.Context) { b.run(ctx, s, known) }) {
		return nil
	}
	b.known = known
	return known
}

// show calls f with the runs. It is not done if they were just dropped.
func (b *runCache) show(f func(*runSet)) (done bool, err error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.runs == nil {
		return false, nil
	}
	if time.Since(b.updated) > cacheStale {
		return true, problem.New(problem.EtcdUnavailable, "etcd has reported nothing about runs since %s", b.updated.UTC().Format(exactTime))
	}
	f(b.runs)
	return true, nil
}

// silence returns why the runs are not known yet.
func (b *runCache) silence(ctx context.Context, s run.Store) error {
	ctx, cancel := context.WithTimeout(ctx, environmentTimeout)
	defer cancel()
	_, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Runs()), KeysOnly: true})
	if err != nil {
		return store.Problem("the runs could not be read", err)
	}
	return problem.New(problem.Unavailable, "the runs are still being read: it takes longer than %s", cachePatience)
}

// run follows the runs until they are not read any more, or ctx ends.
func (b *runCache) run(ctx context.Context, s run.Store, known chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	feed := store.NewFeed(s.Backend, s.Keys.Runs(), b.log.Named("runs"), func() {})
	var task sync.WaitGroup
	task.Go(func() { _ = feed.Run(ctx) })
	defer func() {
		cancel()
		for range feed.Messages() { // it ends when it has noticed
		}
		task.Wait()
	}()
	b.log.Debug("following the runs")
	idle := time.NewTimer(cacheIdle)
	defer idle.Stop()
	first := true
	for {
		select {
		case m, ok := <-feed.Messages():
			if !ok { // with ctx
				b.giveUp()
				return
			}
			b.take(s.Keys, m)
			if first {
				first = false
				close(known)
			}
		case <-idle.C:
			left := b.giveUpUnseen()
			if left <= 0 {
				b.log.Debug("the runs are not read any more")
				return
			}
			idle.Reset(left)
		case <-ctx.Done():
			b.giveUp()
			return
		}
	}
}

// take applies a message of the feed.
func (b *runCache) take(keys store.Keys, m store.FeedMessage) {
	var all *runSet
	if m.Snapshot != nil {
		all = runSetOf(keys, m.Snapshot.KVs)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if all != nil {
		b.runs = all
	}
	for _, ev := range m.Events {
		b.runs.apply(ev)
	}
	b.updated = time.Now()
}

// giveUpUnseen drops the runs if they were not read for [cacheIdle]; otherwise it returns how
// long to wait.
func (b *runCache) giveUpUnseen() (left time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if left = cacheIdle - time.Since(b.readAt); left <= 0 {
		b.forget()
	}
	return left
}

func (b *runCache) giveUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget()
}

// forget makes the next read start again.
func (b *runCache) forget() {
	b.known, b.runs = nil, nil
	b.chips.forget()
	b.progress.forget()
}

const (
	// environmentAge is how old the environment may be.
	environmentAge = time.Second
	// environmentTimeout bounds reading it.
	environmentTimeout = 2 * time.Second
)

// environment is what runs are admitted by.
type environment struct {
	limits run.Limits
	// limitsWrong says why the limits are not known, if they can't be read.
	limitsWrong error
	candidates  []run.Candidate
	pools       []pool.Status
}

// environmentCache keeps the environment for all pages, and reads it at most once a second.
type environmentCache struct {
	mu  sync.Mutex
	at  time.Time
	now environment
	err error
}

// read returns the environment.
func (a *environmentCache) read(ctx context.Context, s *Session) (environment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.IsZero() || time.Since(a.at) >= environmentAge {
		// It is read for other pages too, which do not end when this request does.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), environmentTimeout)
		defer cancel()
		a.now, a.err = readEnvironment(ctx, s)
		a.at = time.Now()
	}
	return a.now, a.err
}

func readEnvironment(ctx context.Context, s *Session) (now environment, err error) {
	now.limits, _, err = s.Runs.Limits(ctx)
	if problem.CodeOf(err) == problem.CorruptValue {
		now.limitsWrong, err = err, nil
	}
	if err == nil {
		now.candidates, err = s.Runs.Candidates(ctx)
	}
	if err == nil {
		now.pools, err = s.Client.Pools(ctx)
	}
	return now, err
}

// rowsPerPage is how many runs a page shows.
const rowsPerPage = 50

// listPlace is the place of a run in a list, where another page of the list begins. It stays
// valid while runs come and go, also the run itself.
type listPlace struct {
	priority int
	created  int64
	// joined and due are of runs with a time before which they do not run; due is in
	// milliseconds.
	joined, due int64
	id          string
}

func placeOf(r *run.Run) listPlace {
	p := listPlace{priority: r.Priority, created: r.Created, joined: r.Joined, id: r.ID}
	if !r.NotBefore.IsZero() {
		p.due = r.NotBefore.UnixMilli()
	}
	return p
}

// run returns a run with this place.
func (p listPlace) run() *run.Run {
	r := &run.Run{ID: p.id, Created: p.created}
	r.Status, r.Priority, r.Joined = run.Queued, p.priority, p.joined
	if p.due != 0 {
		r.NotBefore = run.InstantOf(time.UnixMilli(p.due))
	}
	return r
}

// String spells a place as [parsePlace] reads it.
func (p listPlace) String() string {
	return fmt.Sprintf("%d~%d~%d~%d~%s", p.priority, p.created, p.joined, p.due, p.id)
}

func parsePlace(text string) (p listPlace, ok bool) {
	parts := strings.SplitN(text, "~", 5)
	if len(parts) < 5 || run.ValidateID(parts[4]) != nil {
		return listPlace{}, false
	}
	var numbers [4]int64
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.ParseInt(parts[i], 10, 64); err != nil {
			return listPlace{}, false
		}
	}
	return listPlace{int(numbers[0]), numbers[1], numbers[2], numbers[3], parts[4]}, true
}

// listPage is the part of a list that a page shows.
type listPage struct {
	rows []*listed
	// first is the number of the first row in the list, from 1 on, and of the length of the
	// list.
	first, of int
	// previous and next are the places after which the previous and the next page begin, if
	// they exist; the zero place is the beginning of the list.
	previous, next       listPlace
	hasPrevious, hasNext bool
}

// pageAfter returns the page of a list that begins after a place; the zero place is before
// all.
func (o *ordered) pageAfter(after listPlace, size int) listPage {
	start := 0
	if after != (listPlace{}) {
		at, found := o.find(after.run())
		if start = at; found {
			start++
		}
	}
	end := min(start+size, len(o.all))
	s := listPage{rows: slices.Clone(o.all[start:end]), first: start + 1, of: len(o.all)}
	if s.hasPrevious = start > 0; s.hasPrevious && start > size {
		s.previous = placeOf(o.all[start-size-1].Run)
	}
	if s.hasNext = end < len(o.all); s.hasNext {
		s.next = placeOf(o.all[max(end-1, 0)].Run)
	}
	return s
}

// only returns the runs of a list that match a filter, in its order.
func (o *ordered) only(f *runFilter) *ordered {
	if f.all() {
		return o
	}
	return o.where(f.matches)
}

// where returns the runs of a list that satisfy a condition, in its order.
func (o *ordered) where(is func(*listed) bool) *ordered {
	some := &ordered{compare: o.compare}
	for _, l := range o.all {
		if is(l) {
			some.all = append(some.all, l)
		}
	}
	return some
}
