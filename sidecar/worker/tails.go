package worker

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

const (
	// showEvery is the shortest time between two writes of the output of a followed attempt.
	showEvery = time.Second
	// showTimeout bounds one such write.
	showTimeout = 2 * time.Second
)

// followers are the step instances of all workers whose output is followed.
type followers struct {
	keys store.Keys
	feed *store.Feed
	at   map[store.StepID]bool
}

func newFollowers(keys store.Keys) *followers {
	return &followers{keys: keys, at: map[store.StepID]bool{}}
}

// tail is the state of the output of a followed execution.
type tail struct {
	// fresh states that a follower wants the current output, even if it is unchanged.
	fresh bool
	busy  bool      // it is being written
	shown bool      // it was written, up to end
	end   int64     // size of the output then
	at    time.Time // of the last write, or attempt to write
}

// followersChanged applies a message of the feed of followers, and shows their instances.
func (w *Worker) followersChanged(m store.FeedMessage) {
	if m.Snapshot != nil {
		clear(w.followers.at)
		for _, kv := range m.Snapshot.KVs {
			w.addFollower(kv)
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_DELETE {
			if id, err := store.ParseStepID(strings.TrimPrefix(string(ev.Kv.Key), w.followers.keys.Followers())); err == nil {
				delete(w.followers.at, id)
			}
			continue
		}
		w.addFollower(ev.Kv)
	}
	w.showFollowed()
}

// addFollower adds one.
func (w *Worker) addFollower(kv *mvccpb.KeyValue) {
	id, err := store.ParseStepID(strings.TrimPrefix(string(kv.Key), w.followers.keys.Followers()))
	fresh := false
	if err == nil {
		fresh, err = step.DecodeFollower(kv)
	}
	if err != nil {
		w.log.Debug("a follower of output cannot be read", "error", err)
		return
	}
	w.followers.at[id] = true
	if e := w.active[id]; e != nil && fresh {
		e.tail.fresh = true
	}
}

// showFollowed shows the output of the followed executions.
func (w *Worker) showFollowed() {
	now := time.Now()
	for id := range w.followers.at {
		if e := w.active[id]; e != nil {
			e.show(now)
		}
	}
}

// show writes the output so far to etcd, if it has changed or a follower wants it, and not
// more often than showEvery.
func (e *execution) show(now time.Time) {
	if e.job == nil || e.ending || e.gone || e.tail.busy || now.Sub(e.tail.at) < showEvery || e.place.Context().Err() != nil {
		return
	}
	job, before := e.job, e.tail
	e.tail.busy, e.tail.fresh = true, false // later followers get a later write
	e.w.async(func() {
		end, err := e.showNow(job, before)
		if err != nil {
			e.w.log.Debug("the output of a step instance is not shown", "run", e.t.Run, "step", e.t.Text(), "error", err)
		}
		e.w.post(func() {
			e.tail.busy, e.tail.at = false, time.Now()
			if err != nil {
				e.tail.fresh = e.tail.fresh || before.fresh
				return
			}
			e.tail.shown, e.tail.end = true, end
		})
	})
}

// showNow writes the output, unless nothing has changed, and returns its size.
func (e *execution) showNow(job Job, before tail) (end int64, err error) {
	o, err := written(job)
	if err != nil {
		return 0, err
	}
	end = o.Before + int64(len(o.Text))
	if before.shown && !before.fresh && end == before.end {
		return end, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), showTimeout)
	defer cancel()
	return end, e.w.steps.Show(ctx, e.t, o)
}

// written returns the output of a job so far.
func written(job Job) (step.Shown, error) {
	f, ok := job.(Filer)
	if !ok {
		return step.Shown{Text: job.Output(step.MaxOutput)}, nil
	}
	for {
		shift := f.Shift()
		text, before, err := endOfFile(f.File(), step.MaxOutput)
		if err == nil && f.Shift() != shift {
			continue // the file was truncated meanwhile
		}
		return step.Shown{Text: text, Before: max(0, before+shift), File: f.File(), Cut: shift > 0}, err
	}
}

// endOfFile returns the end of a file, and how many bytes come before it.
func endOfFile(path string, most int) (text []byte, before int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	before = max(0, info.Size()-int64(most))
	text = make([]byte, info.Size()-before)
	n, err := f.ReadAt(text, before)
	if errors.Is(err, io.EOF) { // it was truncated meanwhile
		err = nil
	}
	return text[:n], before, err
}
