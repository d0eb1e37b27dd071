package coordinator

import (
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// A feed that reads everything again may have done so just before the leader
// admitted a run: until the view has come up to that, there is no plan. A run that is
// admitted with its slots is no write of the leader's key, and one all the same.
func TestASnapshotFromBeforeTheLastWriteIsNotPlannedFrom(t *testing.T) {
	for name, admit := range map[string]func(l *leader, r *run.Run){
		"by itself": func(l *leader, r *run.Run) {
			l.state.put(r)
			l.fence.Revision = r.Revision
		},
		"with its slots": func(l *leader, r *run.Run) {
			l.fence.Revision = 5
			done := &bridged{old: &run.Run{ID: r.ID, Created: r.Created}, rec: r.Record, claim: &pool.Claim{Fence: r.Fence()}}
			if err := l.bridgedAll([]*bridged{done}, time.Unix(2, 0)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { snapshotFromBefore(t, admit) })
	}
}

func snapshotFromBefore(t *testing.T, admit func(*leader, *run.Run)) {
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	t.Cleanup(b.Close)
	cfg := Config{Backend: b, Keys: store.NewKeys("/b/"), Host: "one"}
	cfg.fill()
	l := newLeader(cfg, newMetrics(nil, nil, nil), nil, election.Candidate{Lease: 1, Term: 2})
	rec := run.Record{V: store.Now, Status: run.Queued, QueuedAt: time.Unix(1, 0)}
	admitted, _ := rec.Admit("", time.Unix(2, 0))
	l.state.rev, l.state.limitsAt, l.state.activeAt, l.steps.at, l.unresolved = 9, 20, 20, 20, false
	l.me.Tick = &run.Tick{}
	admit(l, &run.Run{ID: "a", Record: admitted, Created: 3, Revision: 10})

	old := store.Snapshot{Revision: 9, KVs: []*mvccpb.KeyValue{
		{Key: []byte(cfg.Keys.Run("a")), Value: rec.Encode(), CreateRevision: 3, ModRevision: 3},
	}}
	l.runsMessage(store.FeedMessage{Snapshot: &old, Revision: 9})
	if !l.unresolved {
		t.Error("it would be planned from a view that lacks the leader's own write")
	}
	l.unresolved, l.after = false, 10 // as fencing earlier writes would
	l.runsMessage(store.FeedMessage{Revision: 10, Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{
		Key: []byte(cfg.Keys.Run("a")), Value: admitted.Encode(), CreateRevision: 3, ModRevision: 10,
	}}}})
	if !l.state.knownAt(l.after) || len(l.state.progress) != 1 {
		t.Errorf("known up to %d, with %d in progress", l.state.rev, len(l.state.progress))
	}
}
