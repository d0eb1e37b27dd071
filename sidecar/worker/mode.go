package worker

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// mode is the mode that an operator has set for this worker. Until it is known, the worker
// takes nothing, so that a drained worker stays drained after a restart.
type mode struct {
	key   string
	feed  *store.Feed
	known bool
	state step.WorkerState
}

// takes reports whether the mode allows the worker to take steps.
func (m *mode) takes() bool { return m.known && m.state.Mode == step.Working }

// idle reports whether the worker takes nothing new.
func (w *Worker) idle() bool { return w.drained || !w.mode.takes() }

// asked applies a message of the feed of the worker's mode.
func (w *Worker) asked(m store.FeedMessage) {
	take := func(kv *mvccpb.KeyValue) {
		if string(kv.Key) != w.mode.key { // of a worker with a longer name
			return
		}
		_, state, err := step.DecodeWorkerState(w.keys, w.mode.key, kv.Value)
		if err != nil {
			w.log.Error("the mode of this worker cannot be read, so it takes nothing", "error", err,
				"remedy", "berth worker resume "+w.by.Host+"/"+w.by.Instance)
			state = step.WorkerState{Mode: step.Drained, By: "a value that cannot be read"}
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

// become applies a mode.
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
		w.withdrawAll()
	}
	if s.Mode == step.Stopped {
		for _, e := range w.active {
			e.stop(byWorker, "its worker was stopped by "+s.By)
		}
	}
}
