package ui

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
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
