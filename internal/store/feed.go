package store

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

const (
	// progressEvery is how often a feed asks how far its watch has come.
	progressEvery = time.Second
	// StaleAfter is the age from which a view is too old to grant from: two
	// requests for progress went unanswered.
	StaleAfter = 2 * time.Second
)

// FeedMessage is either a snapshot, which replaces all that was known, or
// events on top of it. A message with neither is progress: nothing else
// happened up to Revision.
type FeedMessage struct {
	Snapshot *Snapshot
	Events   []*mvccpb.Event
	Revision int64
}

// Feed reads a prefix at one revision and follows it from the next, for as long
// as it runs: over compactions, silent watches and dead endpoints, each of
// which ends in a new snapshot.
type Feed struct {
	backend  Backend
	prefix   string
	log      hclog.Logger
	resynced func()

	messages chan FeedMessage
	progress chan struct{} // coalesces: one pending request is enough
}

// NewFeed returns a feed of everything under prefix. Function resynced is called
// each time the feed had to read everything again, the first time excepted.
func NewFeed(b Backend, prefix string, log hclog.Logger, resynced func()) *Feed {
	return &Feed{
		backend:  b,
		prefix:   prefix,
		log:      log,
		resynced: resynced,
		messages: make(chan FeedMessage),
		progress: make(chan struct{}, 1),
	}
}

// Messages are in order. The channel closes when Run returns.
func (f *Feed) Messages() <-chan FeedMessage { return f.messages }

// RequestProgress asks for a message that tells the present revision soon. It
// never blocks, and requests coalesce.
func (f *Feed) RequestProgress() {
	select {
	case f.progress <- struct{}{}:
	default:
	}
}

// Run feeds until ctx ends, and returns its error.
func (f *Feed) Run(ctx context.Context) error {
	defer close(f.messages)
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 50*time.Millisecond, time.Second
	for first := true; ; first = false {
		if !first {
			f.resynced()
		}
		err := f.follow(ctx, pause.Reset)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f.log.Debug("reading again from etcd", "prefix", f.prefix, "reason", err)
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// follow reads a snapshot and the watch behind it until the watch fails.
func (f *Feed) follow(ctx context.Context, healthy func()) error {
	snapshot, err := ReadAll(ctx, f.backend, f.prefix)
	if err != nil {
		return err
	}
	if err := f.send(ctx, FeedMessage{Snapshot: &snapshot, Revision: snapshot.Revision}); err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := f.backend.Watch(ctx, f.prefix, snapshot.Revision+1)
	ask := time.NewTicker(progressEvery)
	defer ask.Stop()
	stale := time.NewTimer(StaleAfter)
	defer stale.Stop()
	quiet := true // the watch has told nothing yet
	for {
		select {
		case m, ok := <-watch.Messages():
			if !ok {
				return errors.Join(ErrUnavailable, errors.New("watch ended"))
			}
			if m.Err != nil {
				return m.Err
			}
			healthy()
			quiet = false
			if err := f.send(ctx, FeedMessage{Events: m.Events, Revision: m.Revision}); err != nil {
				return err
			}
			stale.Reset(StaleAfter)
		case <-ask.C:
			watch.RequestProgress()
			if quiet && f.unchanged(ctx, snapshot.Revision) {
				if err := f.send(ctx, FeedMessage{Revision: snapshot.Revision}); err != nil {
					return err
				}
				stale.Reset(StaleAfter)
			}
		case <-f.progress:
			watch.RequestProgress()
		case <-stale.C:
			watch.Abandon()
			return errors.New("the watch fell silent")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unchanged tells whether etcd is still at the revision of the snapshot. Until
// the first write after it, a watch from the next revision on tells no progress.
func (f *Feed) unchanged(ctx context.Context, rev int64) bool {
	ctx, cancel := context.WithTimeout(ctx, progressEvery/2)
	defer cancel()
	resp, err := f.backend.Range(ctx, &pb.RangeRequest{Key: []byte(f.prefix), KeysOnly: true})
	return err == nil && resp.Header.Revision == rev
}

func (f *Feed) send(ctx context.Context, m FeedMessage) error {
	select {
	case f.messages <- m:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
