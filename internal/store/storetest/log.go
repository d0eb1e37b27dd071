package storetest

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// Revision is what one transaction, or the end of one lease, changed.
type Revision struct {
	Rev int64
	// Events in the order of the operations, at least one.
	Events []*mvccpb.Event
}

// History returns every revision since [New], compacted or not. It is the
// store's own; what is in it never changes. The field PrevKv of each event is
// what the key held before.
func (e *Etcd) History() []Revision { return e.log[:len(e.log):len(e.log)] }

// State returns all keys as they were at a revision, in order, compacted or not.
func (e *Etcd) State(rev int64) ([]*mvccpb.KeyValue, error) {
	if rev < e.opts.Revision || rev > e.rev {
		return nil, fmt.Errorf("revision %d is not within %d and %d", rev, e.opts.Revision, e.rev)
	}
	return copyKVs(e.at(rev)), nil
}

// Compact forgets what was before a revision: reads and watches of older
// revisions fail from now on. [Etcd.History] keeps it.
func (e *Etcd) Compact(rev int64) error {
	switch {
	case rev <= e.compacted:
		return errCompactAgain
	case rev > e.rev:
		return errCompactFuture
	}
	e.compacted = rev
	return nil
}

// Since returns the events under prefix from revision from on. Revisions that
// did not touch the prefix are omitted.
func (e *Etcd) Since(prefix string, from int64) ([]Revision, error) {
	if from < max(0, e.compacted) {
		return nil, errWatchCompact
	}
	keys := store.Prefix(prefix)
	var all []Revision
	for _, r := range e.from(from) {
		if evs := eventsIn(r.Events, keys); len(evs) > 0 {
			all = append(all, Revision{Rev: r.Rev, Events: evs})
		}
	}
	return all, nil
}

// from returns the log from a revision on. Every revision above the first has
// its place in it.
func (e *Etcd) from(rev int64) []Revision {
	skip := max(0, rev-e.opts.Revision-1)
	return e.log[min(skip, int64(len(e.log))):]
}

// eventsIn copies the events of keys in a range, without what was there before.
func eventsIn(events []*mvccpb.Event, keys store.KeyRange) []*mvccpb.Event {
	var in []*mvccpb.Event
	for _, ev := range events {
		if !keys.Contains(ev.Kv.Key) {
			continue
		}
		c := &change{}
		c.event.Type, c.event.Kv = ev.Type, &c.kv
		copyKV(&c.kv, ev.Kv, make([]byte, 0, len(ev.Kv.Key)+len(ev.Kv.Value)))
		in = append(in, &c.event)
	}
	return in
}
