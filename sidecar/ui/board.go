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
	// boardIdle is for how long after the last look runs are still followed.
	boardIdle = time.Minute
	// boardPatience bounds a look's wait for the first reading of the runs.
	boardPatience = 5 * time.Second
	// boardStale is the age from which what is known of runs is no longer shown: by then
	// the feed has tried another endpoint several times.
	boardStale = 10 * time.Second
	// boardRetry is how long a look waits that comes before it can be followed.
	boardRetry = 20 * time.Millisecond
)

// board keeps one copy of the runs in memory for all who look, while somebody does: it
// is read from etcd at the first look, then watched, and given up a minute after the last
// look. So however many look at however many runs, etcd is asked for them once.
type board struct {
	log hclog.Logger
	// background runs a function beside the pages, and tells whether it does.
	background func(func(context.Context)) bool
	around     around
	chips      chipNotes
	progress   doneNotes

	// mu guards what follows. Runs that were handed out are not changed.
	mu     sync.RWMutex
	looked time.Time
	// known is there while the runs are followed, and closed once they are known.
	known chan struct{}
	runs  *runSet
	told  time.Time // when etcd last told of them
}

func newBoard(log hclog.Logger, background func(func(context.Context)) bool) *board {
	return &board{log: log, background: background}
}

// look hands the runs as they are known now to f, which must be quick, and keep nothing
// of the set but runs.
func (b *board) look(ctx context.Context, s run.Store, f func(*runSet)) error {
	patience := time.NewTimer(boardPatience)
	defer patience.Stop()
	retry := time.NewTicker(boardRetry)
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

// follow has the runs followed, and returns what is closed once they are known; nil if
// they can't be followed now.
func (b *board) follow(s run.Store) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looked = time.Now()
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

// show hands the runs to f. It is not done if they have just been given up.
func (b *board) show(f func(*runSet)) (done bool, err error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.runs == nil {
		return false, nil
	}
	if time.Since(b.told) > boardStale {
		return true, problem.New(problem.EtcdUnavailable, "etcd has told nothing of runs since %s", b.told.UTC().Format(exactTime))
	}
	f(b.runs)
	return true, nil
}

// silence tells why the runs are not known yet.
func (b *board) silence(ctx context.Context, s run.Store) error {
	ctx, cancel := context.WithTimeout(ctx, aroundTimeout)
	defer cancel()
	_, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Runs()), KeysOnly: true})
	if err != nil {
		return store.Problem("the runs could not be read", err)
	}
	return problem.New(problem.Unavailable, "the runs are still being read: it takes longer than %s", boardPatience)
}

// run follows the runs until nobody looks any more, or ctx ends.
func (b *board) run(ctx context.Context, s run.Store, known chan struct{}) {
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
	idle := time.NewTimer(boardIdle)
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
				b.log.Debug("nobody looks at the runs any more")
				return
			}
			idle.Reset(left)
		case <-ctx.Done():
			b.giveUp()
			return
		}
	}
}

// take takes what the feed has delivered.
func (b *board) take(keys store.Keys, m store.FeedMessage) {
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
	b.told = time.Now()
}

// giveUpUnseen forgets the runs if nobody has looked for long, or else tells for how
// long to wait.
func (b *board) giveUpUnseen() (left time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if left = boardIdle - time.Since(b.looked); left <= 0 {
		b.forget()
	}
	return left
}

func (b *board) giveUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget()
}

// forget has the next look begin anew.
func (b *board) forget() {
	b.known, b.runs = nil, nil
	b.chips.forget()
	b.progress.forget()
}

const (
	// aroundAge is how old it may be what stands around the runs.
	aroundAge = time.Second
	// aroundTimeout bounds the reading of it.
	aroundTimeout = 2 * time.Second
)

// surroundings are what runs are admitted by.
type surroundings struct {
	limits run.Limits
	// limitsWrong says why the limits are not known, if they can't be read.
	limitsWrong error
	candidates  []run.Candidate
	pools       []pool.Status
}

// around keeps the surroundings for all who look, and reads them once a second at most.
type around struct {
	mu  sync.Mutex
	at  time.Time
	now surroundings
	err error
}

// look returns the surroundings.
func (a *around) look(ctx context.Context, s *Session) (surroundings, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.IsZero() || time.Since(a.at) >= aroundAge {
		// They are read for others, too, who do not go away when this one does.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aroundTimeout)
		defer cancel()
		a.now, a.err = readAround(ctx, s)
		a.at = time.Now()
	}
	return a.now, a.err
}

func readAround(ctx context.Context, s *Session) (now surroundings, err error) {
	now.limits, _, err = s.Runs.Limits(ctx)
	if problem.CodeOf(err) == problem.CorruptValue {
		now.limitsWrong, err = err, nil
	}
	if err == nil {
		now.candidates, err = s.Runs.Candidates(ctx)
	}
	if err == nil {
		now.pools, err = s.Client.Pools(ctx) // of memory
	}
	return now, err
}

// rowsPerPage is how many runs a page shows.
const rowsPerPage = 50

// place is a run's place in a list, for whoever wants to go on from there: it stays
// good while runs come and go, the one that it is made of included.
type listPlace struct {
	priority int
	created  int64
	// joined and due are of runs that had to wait for a time, or do: it is in milliseconds.
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

// run is one that stands at the place.
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

// stretch is the part of a list that a page shows.
type stretch struct {
	rows []*listed
	// first is the number of the first row in the list, from 1 on, and of how many runs
	// the list is.
	first, of int
	// previous and next are behind which run the pages before and after begin, if there
	// are such pages; the zero place is the beginning of the list.
	previous, next       listPlace
	hasPrevious, hasNext bool
}

// stretchBehind returns the page of a list that begins behind a place; the zero place
// is before all. It stays as it is while the list changes.
func (o *ordered) stretchBehind(after listPlace, size int) stretch {
	start := 0
	if after != (listPlace{}) {
		at, found := o.find(after.run())
		if start = at; found {
			start++
		}
	}
	end := min(start+size, len(o.all))
	s := stretch{rows: slices.Clone(o.all[start:end]), first: start + 1, of: len(o.all)}
	if s.hasPrevious = start > 0; s.hasPrevious && start > size {
		s.previous = placeOf(o.all[start-size-1].Run)
	}
	if s.hasNext = end < len(o.all); s.hasNext {
		s.next = placeOf(o.all[max(end-1, 0)].Run)
	}
	return s
}

// only returns what of a list a filter lets through, in its order.
func (o *ordered) only(f *runFilter) *ordered {
	if f.all() {
		return o
	}
	return o.where(f.matches)
}

// where returns what of a list is so, in its order.
func (o *ordered) where(is func(*listed) bool) *ordered {
	some := &ordered{compare: o.compare}
	for _, l := range o.all {
		if is(l) {
			some.all = append(some.all, l)
		}
	}
	return some
}
