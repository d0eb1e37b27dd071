package engine

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// follows is the watches of an instance of which a claim has waited: of the offers to it, and of who dispatches.
type follows struct {
	*loop
	offers, role *tail         // nil before
	shown        int64         // the revision up to which the watch of the offers has shown everything
	missed       int64         // the last revision of an offer that a poll has shown
	asked        time.Duration // since when the watch has not shown that
}

// act opens the watches when the first claim waits.
func (f *follows) act(ctx context.Context) {
	if f.offers != nil || f.owner.Waiting() == 0 {
		return
	}
	role := store.KeyRange{Key: f.e.keys.Role()}
	f.offers = newTail(f.e, store.Prefix(f.owner.Watched()), f.polls.soon, f.offered)
	f.role = newTail(f.e, role, f.polls.soon, f.polls.shown)
	f.offers.open(ctx)
	f.role.open(ctx)
}

// offered takes events of the offers to this instance.
func (f *follows) offered(m message) {
	f.shown = max(f.shown, m.Revision)
	for _, ev := range m.Events {
		f.owner.Offered(ev)
	}
}

// polled takes the offers that a poll has read. The watch is asked how far it has come if it has not shown them: if it has not by a
// later poll, it is silent.
func (f *follows) polled(kvs []*mvccpb.KeyValue, now time.Duration) {
	switch {
	case f.offers == nil || f.offers.watch == nil, f.missed > f.shown && now < f.asked+firstPoll:
		return
	case f.missed > f.shown:
		f.reopen()
		return
	}
	for _, kv := range kvs {
		f.missed = max(f.missed, kv.ModRevision)
	}
	if f.missed > f.shown {
		f.asked = now
		f.offers.progress()
	}
}

// reopen opens the watches again.
func (f *follows) reopen() {
	if f.offers != nil {
		f.offers.reopen()
		f.role.reopen()
	}
	f.shown, f.missed = 0, 0
}
