package worker

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// canceled are the runs of which nothing is started any more, and the step instances that
// are to be stopped: both by what their marks are named.
type canceled struct {
	keys store.Keys
	feed *store.Feed
	runs map[string]int64 // the revisions of the marks
}

func newCanceled(keys store.Keys) *canceled { return &canceled{keys: keys, runs: map[string]int64{}} }

// why is why an attempt is to be stopped that was taken then, empty if it is not. A mark
// from before is about an attempt before: that it is gone may not be known yet.
func (c *canceled) why(id store.StepID, since int64) string {
	switch {
	case c.runs[id.Run] > since:
		return "its run was canceled or has failed"
	case c.runs[id.String()] > since:
		return "it was canceled"
	}
	return ""
}

// cancels takes what the feed of canceled runs delivered, and stops what the worker has
// of them.
func (w *Worker) cancels(m store.FeedMessage) {
	c := w.canceled
	id := func(key []byte) string { return strings.TrimPrefix(string(key), c.keys.CanceledAll()) }
	if m.Snapshot != nil {
		clear(c.runs)
		for _, kv := range m.Snapshot.KVs {
			c.runs[id(kv.Key)] = kv.ModRevision
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_DELETE {
			delete(c.runs, id(ev.Kv.Key))
		} else {
			c.runs[id(ev.Kv.Key)] = ev.Kv.ModRevision
		}
	}
	for id, e := range w.active {
		if why := c.why(id, e.t.Revision); why != "" {
			e.stop(byRun, why)
		}
	}
	for step, l := range w.inLine {
		if c.runs[step.Run] > w.taking[step] {
			w.leaveLine(l.claim)
		}
	}
}
