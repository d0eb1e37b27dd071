package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

const (
	// progressEvery is how long a watch may be silent before the feed asks how far it
	// has come. It has as long to answer, and is asked once more in between: etcd leaves
	// out an answer while the watch lags.
	progressEvery = time.Second
	askAgain      = progressEvery / 2
	// StaleAfter is the age from which a view is too old to grant from: two
	// requests for progress went unanswered.
	StaleAfter = 2 * progressEvery
	// maxBehind is how many revisions a watch may go back: for each watch that does,
	// etcd scans them all while writes wait.
	maxBehind = 10_000
	// readJitter spreads what many instances read in full for one reason, since it
	// befalls all of them at once.
	readJitter = time.Second
	// presentTimeout bounds one try to find out the present revision.
	presentTimeout = 2 * time.Second
)

// FeedMessage is either a snapshot, which replaces all that was known, or
// events on top of it. A message with neither is progress: nothing else
// happened up to Revision. A snapshot that is not a feed's first one has a
// [Snapshot.Reason]: a feed could not go on from the one before, since its history was
// compacted, or etcd was restored from a backup.
type FeedMessage struct {
	Snapshot *Snapshot
	Events   []*mvccpb.Event
	Revision int64
	// History is the [Backend.History] that it is of.
	History uint64
}

// Feed reads a range of keys at one revision and follows it from the next, for as long
// as it runs. A watch that breaks or falls silent is resumed after the last revision
// that was delivered, through another endpoint. Only if the events in between can't be
// had, or may be of another history, does the feed read everything again.
type Feed struct {
	backend  Backend
	keys     KeyRange
	log      hclog.Logger
	resynced func()
	read     func(context.Context) (Snapshot, error) // everything

	messages chan FeedMessage
	progress chan struct{} // coalesces: one pending request is enough

	// Owned by Run.
	at      int64  // up to which everything was delivered; 0: nothing was
	history uint64 // the [Backend.History] that it is of
	reason  error  // why everything is to be read again; nil: it is not
}

// NewFeed returns a feed of everything under prefix. Function resynced is called
// each time the feed has read everything again, the first time excepted.
func NewFeed(b Backend, prefix string, log hclog.Logger, resynced func()) *Feed {
	return NewRangeFeed(b, Prefix(prefix), log, resynced)
}

// NewRangeFeed is [NewFeed] of a range of keys.
func NewRangeFeed(b Backend, keys KeyRange, log hclog.Logger, resynced func()) *Feed {
	return &Feed{
		backend:  b,
		keys:     keys,
		log:      log,
		resynced: resynced,
		read:     func(ctx context.Context) (Snapshot, error) { return ReadRange(ctx, b, keys) },
		messages: make(chan FeedMessage),
		progress: make(chan struct{}, 1),
	}
}

// NewFeedAfter returns a feed of everything under prefix that begins with what happens after
// a revision, without a snapshot. Revision 0 is none: the feed is then one of [NewFeed].
func NewFeedAfter(b Backend, prefix string, revision int64, log hclog.Logger, resynced func()) *Feed {
	f := NewFeed(b, prefix, log, resynced)
	f.at, f.history = revision, b.History()
	return f
}

// NewChanges returns a feed of what happens under prefix after a revision, for a reader that
// needs little of what there is. Where another feed would read everything again, its snapshot
// has no keys: what the reader knows may be out of date.
func NewChanges(b Backend, prefix string, revision int64, log hclog.Logger) *Feed {
	f := NewFeedAfter(b, prefix, revision, log, func() {})
	f.read = func(ctx context.Context) (Snapshot, error) {
		history := b.History()
		resp, err := b.Range(ctx, &pb.RangeRequest{Key: []byte(f.keys.Key), KeysOnly: true})
		if err != nil {
			return Snapshot{}, err
		}
		return Snapshot{Revision: resp.Header.Revision, History: history}, nil
	}
	return f
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
	for {
		err := f.start(ctx)
		if err == nil {
			err = f.follow(ctx, pause.Reset)
		}
		wait := pause.NextBackOff()
		if lost := f.lost(err); lost != nil && f.reason == nil {
			f.log.Info("reading everything again from etcd", "keys", f.keys.String(), "reason", err)
			f.reason, wait = lost, rand.N(readJitter)
		} else {
			f.log.Debug("trying again to follow etcd", "keys", f.keys.String(), "reason", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lost returns why a feed that ended with err can't go on from where it was, nil if
// it can.
func (f *Feed) lost(err error) error {
	if f.at == 0 {
		return nil // it has nothing yet
	}
	for _, reason := range []error{ErrRestored, ErrCompacted, ErrBehind} {
		if errors.Is(err, reason) {
			return reason
		}
	}
	return nil
}

// start reads everything, or else makes sure that the feed can go on from where it is.
func (f *Feed) start(ctx context.Context) error {
	if f.at > 0 && f.reason == nil {
		rev, err := f.present(ctx, presentTimeout)
		if err == nil && rev-f.at > maxBehind {
			err = fmt.Errorf("%w: at revision %d of %d", ErrBehind, f.at, rev)
		}
		return err
	}
	snapshot, err := f.read(ctx)
	if err != nil {
		return err
	}
	if snapshot.Reason = f.reason; f.reason != nil {
		f.resynced()
	}
	f.at, f.history, f.reason = snapshot.Revision, snapshot.History, nil
	return f.send(ctx, FeedMessage{Snapshot: &snapshot, Revision: snapshot.Revision})
}

// present asks for the present revision. [ErrRestored] is one of another history.
func (f *Feed) present(ctx context.Context, timeout time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := f.backend.Range(ctx, &pb.RangeRequest{Key: []byte(f.keys.Key), KeysOnly: true})
	if err != nil {
		return 0, err
	}
	if resp.Header.Revision < f.at {
		return 0, fmt.Errorf("%w: it is at revision %d after %d", ErrRestored, resp.Header.Revision, f.at)
	}
	return resp.Header.Revision, f.sameHistory()
}

// sameHistory fails if etcd was restored since the feed has read everything.
func (f *Feed) sameHistory() error {
	if f.backend.History() != f.history {
		return ErrRestored
	}
	return nil
}

// follow watches from where the feed is until the watch fails.
func (f *Feed) follow(ctx context.Context, healthy func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := f.backend.Watch(ctx, f.keys, f.at+1)
	quiet := true // the watch has delivered nothing yet
	s := newSilence()
	defer s.timer.Stop()
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
			if err := f.deliver(ctx, m); err != nil {
				return err
			}
			s.broken()
		case <-s.timer.C:
			switch s.next() {
			case listen:
				continue
			case giveUp:
				watch.Abandon()
				return errors.New("the watch fell silent")
			}
			watch.RequestProgress()
			if !quiet {
				continue
			}
			// Until the first write after it, a watch from the next revision on tells
			// no progress.
			rev, err := f.present(ctx, askAgain)
			if errors.Is(err, ErrRestored) {
				return err
			}
			if err == nil && rev == f.at {
				if err := f.send(ctx, FeedMessage{Revision: rev}); err != nil {
					return err
				}
				s.broken()
			}
		case <-f.progress:
			watch.RequestProgress()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// deliver passes on what a watch has delivered beyond where the feed is. A member that
// lags may begin with what is known already.
func (f *Feed) deliver(ctx context.Context, m WatchMessage) error {
	if err := f.sameHistory(); err != nil {
		return err
	}
	known := func(e *mvccpb.Event) bool { return e.Kv.ModRevision <= f.at }
	if slices.ContainsFunc(m.Events, known) {
		m.Events = slices.DeleteFunc(slices.Clone(m.Events), known)
	}
	f.at = max(f.at, m.Revision)
	return f.send(ctx, FeedMessage{Events: m.Events, Revision: f.at})
}

func (f *Feed) send(ctx context.Context, m FeedMessage) error {
	m.History = f.history
	select {
	case f.messages <- m:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// silence judges how long a watch has delivered nothing. It counts requests that etcd
// had the time to answer, since time alone says nothing about etcd: the reader of the
// feed may be slow, or the whole process.
type silence struct {
	timer *time.Timer
	due   time.Time // when the timer fires
	asked int       // requests for progress since the last message
}

// What a feed does about a watch that is silent.
type aboutSilence int

const (
	listen aboutSilence = iota
	ask
	giveUp
)

func newSilence() *silence {
	return &silence{timer: time.NewTimer(progressEvery), due: time.Now().Add(progressEvery)}
}

func (s *silence) wait(d time.Duration) {
	s.timer.Reset(d)
	s.due = time.Now().Add(d)
}

// broken begins again: a message was delivered.
func (s *silence) broken() {
	s.asked = 0
	s.wait(progressEvery)
}

// next returns what to do now that the timer has fired. If it fires late, whatever held
// it up may have held up an answer too.
func (s *silence) next() aboutSilence {
	late := time.Since(s.due) > askAgain/2
	s.wait(askAgain)
	switch {
	case late:
		s.asked = 0
		return listen
	case s.asked == 2:
		return giveUp
	}
	s.asked++
	return ask
}
