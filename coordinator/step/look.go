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
	// LookFor is how long a look lasts: for that time workers show what attempts write.
	LookFor = 10 * time.Second
	// LookAgain is how often whoever goes on looking has to look.
	LookAgain = 4 * time.Second
	// ShowWithin is how long to wait for a worker to show what an attempt has written. It
	// takes a few milliseconds where all is well.
	ShowWithin = 2 * time.Second
	// MaxLooks bounds how many instances somebody should look at at a time: each may be
	// [MaxOutput] a second to etcd.
	MaxLooks = 10
	// lookTry bounds the writes of a look.
	lookTry = 2 * time.Second
)

// lookValue is what the mark of a look holds.
type lookValue struct {
	store.V
	// Fresh asks for what there is now, also if that was shown before.
	Fresh bool `json:"fresh,omitempty"`
}

// DecodeLook reads the mark of a look: whether it asks for what there is now.
func DecodeLook(kv *mvccpb.KeyValue) (fresh bool, err error) {
	var v lookValue
	err = store.Decode(string(kv.Key), kv.Value, &v)
	return v.Fresh, err
}

// Look asks workers to show what the instances that they have write, as long as it lasts:
// those that are named, up to [MaxLooks]. Fresh is for who has not seen it lately. What is
// shown comes after the revision that is returned.
func (s Store) Look(ctx context.Context, fresh bool, ids ...store.StepID) (revision int64, err error) {
	const what = "nobody could be asked for what an attempt has written so far"
	ctx, cancel := context.WithTimeout(ctx, lookTry)
	defer cancel()
	lease, _, err := s.Backend.Grant(ctx, LookFor)
	if err != nil {
		return 0, store.Problem(what, err)
	}
	value := store.Encode(lookValue{store.Now, fresh})
	var puts []*pb.RequestOp
	for _, id := range ids {
		puts = append(puts, store.Put(s.Keys.Follower(id), value, lease))
	}
	if revision, err = store.Commit(ctx, s.Backend, nil, puts...); err != nil {
		return 0, store.Problem(what, err)
	}
	return revision, nil
}

// AwaitShown waits until something was shown of instances of one run after a revision, of
// each of them, or ctx has ended.
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
	watch := s.Backend.Watch(ctx, prefix, revision+1)
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

// Shown is what an attempt has written so far.
type Shown struct {
	// Text is the end of it, of which the last [MaxOutput] bytes are shown, and Before is
	// how many bytes come before.
	Text   []byte
	Before int64
	// File has all of it, on the host of the attempt's executor, or its beginning and its end
	// if it is Cut; empty: none does.
	File string
	Cut  bool
}

// Show lets everybody read what an attempt has written so far. If the attempt is its
// executor's no more, that is a StepLost problem.
func (s Store) Show(ctx context.Context, t *Taken, now Shown) error {
	const what = "what an attempt has written could not be shown"
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

// log is what is kept of it.
func (o Shown) log(t *Taken, now time.Time) *Log {
	cut := max(0, len(o.Text)-MaxOutput)
	l := &Log{Attempt: t.Attempt, Fence: t.Revision, At: now, Before: o.Before + int64(cut), File: o.File, Cut: o.Cut, Text: o.Text[cut:]}
	if o.File != "" && t.Executor != nil {
		l.Host = t.Executor.Host
	}
	return l
}

// Seen is an instance with what is to be seen of its output.
type Seen struct {
	*Detail
	// Log is nil if nothing is kept.
	Log *Log
	// Unasked is why its worker could not be asked for what it has written so far; nil if
	// it was, or there is none to ask.
	Unasked error
}

// See reads an instance with its output, as it is kept.
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

// worked tells whether a worker runs it, which can be asked.
func (d *Seen) worked() bool { return d.Status == Running && !d.Shape.External }

// soFar tells whether what is known is of the attempt that runs.
func (d *Seen) soFar() bool { return d.Log != nil && d.Log.Standing(&d.Instance) == SoFar }

// Viewer looks at the output of instances for many who ask, again and again: workers are
// asked once for all. Zero is ready.
type Viewer struct {
	mu   sync.Mutex // guards what follows
	last map[store.StepID]looked
}

// looked is a look that lasts.
type looked struct {
	at       time.Time
	revision int64
}

// See reads an instance with its output. Of one that a worker runs it is asked for what it
// has written so far; what it had written when somebody asked last is not waited for, and
// the rest for so long at most.
func (v *Viewer) See(ctx context.Context, s Store, id store.StepID, wait time.Duration) (*Seen, error) {
	seen, err := s.See(ctx, id)
	if err != nil || !seen.worked() {
		return seen, err
	}
	rev, fresh, err := v.look(ctx, s, id)
	if err != nil {
		seen.Unasked = err
		return seen, nil
	}
	if wait <= 0 || !fresh && seen.soFar() {
		return seen, nil
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	// Whatever has come of it: what there is then is what there is.
	_ = s.AwaitShown(within, rev, id)
	return s.See(ctx, id)
}

// look looks, unless somebody has lately. Fresh tells that nobody had for so long that
// what is known may be old.
func (v *Viewer) look(ctx context.Context, s Store, id store.StepID) (revision int64, fresh bool, err error) {
	now := time.Now()
	v.mu.Lock()
	maps.DeleteFunc(v.last, func(_ store.StepID, l looked) bool { return now.Sub(l.at) >= LookFor })
	last, known := v.last[id]
	n := len(v.last)
	v.mu.Unlock()
	switch {
	case known && now.Sub(last.at) < LookAgain:
		return last.revision, false, nil
	case !known && n >= maxViewed:
		return 0, false, problem.New(problem.Unavailable, "the output of %d step instances that run is looked at already: try again in a moment", n)
	}
	if revision, err = s.Look(ctx, !known, id); err != nil {
		return 0, false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		v.last = map[store.StepID]looked{}
	}
	v.last[id] = looked{now, revision}
	return revision, !known, nil
}

// maxViewed bounds the instances that one viewer looks at at a time: each may be
// [MaxOutput] a second to etcd.
const maxViewed = 4 * MaxLooks
