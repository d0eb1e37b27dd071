package worker

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// mode is what an operator wants of this worker, as etcd has it. Until that is known it
// takes nothing, so that one that restarts while it is drained stays so.
type mode struct {
	key   string
	feed  *store.Feed
	known bool
	state step.WorkerState
}

// takes reports whether the worker may take steps, as far as operators want it.
func (m *mode) takes() bool { return m.known && m.state.Mode == step.Working }

// idle reports whether the worker takes nothing new.
func (w *Worker) idle() bool { return w.drained || !w.mode.takes() }

// asked takes what the feed of the worker's mode delivered.
func (w *Worker) asked(m store.FeedMessage) {
	take := func(kv *mvccpb.KeyValue) {
		if string(kv.Key) != w.mode.key { // of one whose name is longer
			return
		}
		_, state, err := step.DecodeWorkerState(w.keys, w.mode.key, kv.Value)
		if err != nil {
			w.log.Error("nothing is taken: the mode of this worker can't be read", "error", err,
				"remedy", "berth worker resume "+w.by.Host+"/"+w.by.Instance)
			state = step.WorkerState{Mode: step.Drained, By: "a value that can't be read"}
		}
		w.become(state)
	}
	if m.Snapshot != nil {
		there := false
		for _, kv := range m.Snapshot.KVs {
			there = there || string(kv.Key) == w.mode.key
			take(kv)
		}
		if !there {
			w.become(step.WorkerState{Mode: step.Working})
		}
	}
	for _, ev := range m.Events {
		switch {
		case string(ev.Kv.Key) != w.mode.key:
		case ev.Type == mvccpb.Event_DELETE:
			w.become(step.WorkerState{Mode: step.Working})
		default:
			take(ev.Kv)
		}
	}
}

// become does what a mode is about.
func (w *Worker) become(s step.WorkerState) {
	first := !w.mode.known
	before := w.mode.state.Mode
	w.mode.known, w.mode.state = true, s
	if s.Mode == before {
		return
	}
	w.dirty = true
	if !first || s.Mode != step.Working {
		w.log.Info("an operator has changed the mode", "mode", s.Mode, "by", s.By, "from", s.From, "reason", s.Reason, "active", w.has())
	}
	if s.Mode != step.Working {
		w.leaveLines()
	}
	if s.Mode == step.Stopped {
		for _, e := range w.active {
			e.stop(byWorker, "its worker was stopped by "+s.By)
		}
	}
}
