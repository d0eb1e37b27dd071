package step

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// FollowFor is how long [Store.Follow] lasts: workers show the output of attempts for
	// that time.
	FollowFor = 10 * time.Second
	// FollowAgain is how often a follower must call Follow again.
	FollowAgain = 4 * time.Second
	// ShowWithin is how long to wait for a worker to show the output of an attempt. It
	// normally takes a few milliseconds.
	ShowWithin = 2 * time.Second
	// MaxFollowed bounds how many instances a client should follow at the same time: each
	// may write [MaxOutput] bytes a second to etcd.
	MaxFollowed = 10
	// followTimeout bounds the writes of Follow.
	followTimeout = 2 * time.Second
)

// followerValue is the value of the key of a follower.
type followerValue struct {
	store.V
	// Fresh requests the current output even if it was shown before.
	Fresh bool `json:"fresh,omitempty"`
}

// DecodeFollower decodes a follower, and reports whether it requests the current output
// even if that was shown before.
func DecodeFollower(kv *mvccpb.KeyValue) (fresh bool, err error) {
	var v followerValue
	err = store.Decode(string(kv.Key), kv.Value, &v)
	return v.Fresh, err
}

// Follow requests that workers show the output of instances for [FollowFor]: at most
// [MaxFollowed] of them. fresh is for a client that has not followed them lately. The output
// is written after the returned revision.
func (s Store) Follow(ctx context.Context, fresh bool, ids ...store.StepID) (revision int64, err error) {
	const what = "the output of an attempt could not be requested"
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	lease, _, err := s.Backend.Grant(ctx, FollowFor)
	if err != nil {
		return 0, store.Problem(what, err)
	}
	value := store.Encode(followerValue{store.Now, fresh})
	var puts []*pb.RequestOp
	for _, id := range ids {
		puts = append(puts, store.Put(s.Keys.Follower(id), value, lease))
	}
	if revision, err = store.Commit(ctx, s.Backend, nil, puts...); err != nil {
		return 0, store.Problem(what, err)
	}
	return revision, nil
}

// AwaitShown waits until the output of each of the instances, which are of one run, was
// written after a revision, or ctx has ended.
func (s Store) AwaitShown(ctx context.Context, revision int64, ids ...store.StepID) error {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := s.Keys.Logs(ids[0].Run)
	if len(ids) == 1 {
		prefix = s.Keys.Log(ids[0])
	}
	missing := map[string]bool{}
	for _, id := range ids {
		missing[s.Keys.Log(id)] = true
	}
	watch := s.Backend.Watch(ctx, store.Prefix(prefix), revision+1)
	for {
		select {
		case m, ok := <-watch.Messages():
			switch {
			case m.Err != nil:
				return store.Problem(noOutput, m.Err)
			case !ok:
				return store.Problem(noOutput, store.ErrUnavailable)
			}
			for _, ev := range m.Events {
				delete(missing, string(ev.Kv.Key))
			}
			if len(missing) == 0 {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Shown is the output of an attempt so far.
type Shown struct {
	// Text is its end, of which the last [MaxOutput] bytes are shown. Before is the number of
	// bytes before it.
	Text   []byte
	Before int64
	// File is the file with all of it, on the host of the executor, or with its beginning and
	// end if Cut; empty without a file.
	File string
	Cut  bool
}

// Show writes the output of an attempt so far. If the executor has lost the attempt, that
// is a StepLost problem.
func (s Store) Show(ctx context.Context, t *Taken, now Shown) error {
	const what = "the output of an attempt could not be shown"
	op, err := s.Journal.Keep(ctx, s.Keys.Log(t.StepID), now.log(t, time.Now()).Encode())
	if err != nil {
		return store.Problem(what, err)
	}
	_, err = store.Commit(ctx, s.Backend, []*pb.Compare{store.ModEquals(s.Keys.Step(t.StepID), t.Revision)}, op)
	switch {
	case errors.Is(err, store.ErrChanged):
		return lost(t)
	case err != nil:
		s.suspect(err)
		return store.Problem(what, err)
	}
	return nil
}

// log returns the log of it.
func (o Shown) log(t *Taken, now time.Time) *Log {
	cut := max(0, len(o.Text)-MaxOutput)
	l := &Log{Attempt: t.Attempt, Fence: t.Fence(), At: now, Before: o.Before + int64(cut), File: o.File, Cut: o.Cut, Text: o.Text[cut:]}
	if o.File != "" && t.Executor != nil {
		l.Host = t.Executor.Host
	}
	return l
}

// Seen is an instance with its output.
type Seen struct {
	*Detail
	// Log is nil without output.
	Log *Log
	// Unasked is why the current output could not be requested from its worker; nil if it was
	// requested, or there is no worker.
	Unasked error
}

// See returns an instance with its stored output.
func (s Store) See(ctx context.Context, id store.StepID) (*Seen, error) {
	d, err := s.Detail(ctx, id)
	if err != nil {
		return nil, err
	}
	l, err := s.log(ctx, id)
	if err != nil {
		return nil, err
	}
	if l != nil {
		l.DropLostFile(&d.Instance)
	}
	return &Seen{Detail: d, Log: l}, nil
}

// worked reports whether a worker runs it.
func (d *Seen) worked() bool { return d.Status == Running && !d.Shape.External }

// soFar reports whether the output is that of the running attempt.
func (d *Seen) soFar() bool { return d.Log != nil && d.Log.Standing(&d.Instance) == SoFar }

// Viewer returns the output of instances to many clients, with one request to the workers
// for all. The zero value is ready.
type Viewer struct {
	mu   sync.Mutex // guards what follows
	last map[store.StepID]followed
}

// followed is a request that lasts.
type followed struct {
	at       time.Time
	revision int64
}

// See returns an instance with its output. From a running instance it requests the current
// output, and waits for it at most wait, unless it was requested lately.
func (v *Viewer) See(ctx context.Context, s Store, id store.StepID, wait time.Duration) (*Seen, error) {
	seen, err := s.See(ctx, id)
	if err != nil || !seen.worked() {
		return seen, err
	}
	rev, fresh, err := v.follow(ctx, s, id)
	if err != nil {
		seen.Unasked = err
		return seen, nil
	}
	if wait <= 0 || !fresh && seen.soFar() {
		return seen, nil
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	// Without new output, the stored one is returned.
	_ = s.AwaitShown(within, rev, id)
	return s.See(ctx, id)
}

// follow requests the output, unless that was done lately. fresh reports that the stored
// output may be old.
func (v *Viewer) follow(ctx context.Context, s Store, id store.StepID) (revision int64, fresh bool, err error) {
	now := time.Now()
	v.mu.Lock()
	maps.DeleteFunc(v.last, func(_ store.StepID, l followed) bool { return now.Sub(l.at) >= FollowFor })
	last, known := v.last[id]
	n := len(v.last)
	v.mu.Unlock()
	switch {
	case known && now.Sub(last.at) < FollowAgain:
		return last.revision, false, nil
	case !known && n >= maxViewed:
		return 0, false, problem.New(problem.Unavailable, "the output of %d running step instances is already followed: try again in a moment", n)
	}
	if revision, err = s.Follow(ctx, !known, id); err != nil {
		return 0, false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		v.last = map[store.StepID]followed{}
	}
	v.last[id] = followed{now, revision}
	return revision, !known, nil
}

// maxViewed bounds the instances that one viewer follows: each may write [MaxOutput] bytes
// a second to etcd.
const maxViewed = 4 * MaxFollowed
