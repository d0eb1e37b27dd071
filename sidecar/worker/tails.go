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
	// showEvery is how often an attempt that is looked at is shown again at most.
	showEvery = time.Second
	// showTimeout bounds one write of what it has written.
	showTimeout = 2 * time.Second
)

// looks are the step instances whose output somebody looks at: of any worker's.
type looks struct {
	keys store.Keys
	feed *store.Feed
	at   map[store.StepID]bool
}

func newLooks(keys store.Keys) *looks { return &looks{keys: keys, at: map[store.StepID]bool{}} }

// tail is what was shown of an execution.
type tail struct {
	// fresh tells that somebody asks for what there is now, shown before or not.
	fresh bool
	busy  bool      // it is being shown
	shown bool      // it was, up to end
	end   int64     // how many bytes it had written
	at    time.Time // when it was shown last, or tried to be
}

// looked takes what the feed of looks delivered, and shows what the worker has of it.
func (w *Worker) looked(m store.FeedMessage) {
	if m.Snapshot != nil {
		clear(w.looks.at)
		for _, kv := range m.Snapshot.KVs {
			w.addLook(kv)
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_DELETE {
			if id, err := store.ParseStepID(strings.TrimPrefix(string(ev.Kv.Key), w.looks.keys.Followers())); err == nil {
				delete(w.looks.at, id)
			}
			continue
		}
		w.addLook(ev.Kv)
	}
	w.showLooked()
}

// addLook takes one look.
func (w *Worker) addLook(kv *mvccpb.KeyValue) {
	id, err := store.ParseStepID(strings.TrimPrefix(string(kv.Key), w.looks.keys.Followers()))
	fresh := false
	if err == nil {
		fresh, err = step.DecodeLook(kv)
	}
	if err != nil {
		w.log.Debug("a look at output can't be read", "error", err)
		return
	}
	w.looks.at[id] = true
	if e := w.active[id]; e != nil && fresh {
		e.tail.fresh = true
	}
}

// showLooked shows what the worker has and somebody looks at.
func (w *Worker) showLooked() {
	now := time.Now()
	for id := range w.looks.at {
		if e := w.active[id]; e != nil {
			e.show(now)
		}
	}
}

// show lets everybody read what the attempt has written so far, if that is something new
// or was asked for, and not too often.
func (e *execution) show(now time.Time) {
	if e.job == nil || e.ending || e.gone || e.tail.busy || now.Sub(e.tail.at) < showEvery || e.place.Context().Err() != nil {
		return
	}
	job, before := e.job, e.tail
	e.tail.busy, e.tail.fresh = true, false // who asks from now on is to be shown what comes now
	e.w.beside(func() {
		end, err := e.showNow(job, before)
		if err != nil {
			e.w.log.Debug("what a step instance has written is not shown", "run", e.t.Run, "step", e.t.Text(), "error", err)
		}
		e.w.tell(func() {
			e.tail.busy, e.tail.at = false, time.Now()
			if err != nil {
				e.tail.fresh = e.tail.fresh || before.fresh
				return
			}
			e.tail.shown, e.tail.end = true, end
		})
	})
}

// showNow does it, unless nothing has changed, and returns how many bytes were written.
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

// written is what a job has written so far.
func written(job Job) (step.Shown, error) {
	f, ok := job.(Filer)
	if !ok {
		return step.Shown{Text: job.Output(step.MaxOutput)}, nil
	}
	for {
		shift := f.Shift()
		text, before, err := endOfFile(f.File(), step.MaxOutput)
		if err == nil && f.Shift() != shift {
			continue // the file was cut short meanwhile
		}
		return step.Shown{Text: text, Before: max(0, before+shift), File: f.File(), Cut: shift > 0}, err
	}
}

// endOfFile is the end of a file, and how many bytes come before it.
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
	if errors.Is(err, io.EOF) { // it was cut meanwhile
		err = nil
	}
	return text[:n], before, err
}
