package worker

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// canceled holds the canceled runs and step instances, by the names of their marks. Of a
// canceled run, nothing is started any more.
type canceled struct {
	keys store.Keys
	feed *store.Feed
	runs map[string]int64 // the revisions of the marks
}

func newCanceled(keys store.Keys) *canceled { return &canceled{keys: keys, runs: map[string]int64{}} }

// why returns why an attempt that was taken at since must be stopped; empty if it must
// not. An older mark is about an earlier attempt.
func (c *canceled) why(id store.StepID, since int64) string {
	switch {
	case c.runs[id.Run] > since:
		return "its run was canceled or has failed"
	case c.runs[id.String()] > since:
		return "it was canceled"
	}
	return ""
}

// cancels applies a message of the feed of canceled runs, and stops their instances.
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
	for step, l := range w.waiting {
		if c.runs[step.Run] > w.taking[step] {
			w.withdraw(l.claim)
		}
	}
}
