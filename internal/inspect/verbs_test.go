package inspect

import (
	"testing"
	"testing/synctest"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// Values that can't be read are mended by the verbs that replace and delete them.
func TestValuesThatCannotBeReadAreReplacedAndDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		runs := run.Store{Backend: b, Keys: store.NewKeys("/b/")}
		runs.Journal = run.NewJournal(b, runs.Keys, "test", 0)
		for _, key := range []string{runs.Keys.Limits(), runs.Keys.Spec("db")} {
			if _, err := store.Commit(t.Context(), b, nil, store.Put(key, []byte("?"), 0)); err != nil {
				t.Fatal(err)
			}
		}
		o := NewOperator(NewSnapshot(runs), audit.Caller{Identity: accesstest.Admin})
		if _, _, err := o.SetLimits(t.Context(), run.LimitsChange{MaxConcurrentRuns: new(3)}); problem.CodeOf(err) != problem.CorruptValue {
			t.Errorf("a part of the limits: %v", err)
		}
		l, _, err := o.SetLimits(t.Context(), run.LimitsChange{MaxConcurrentRuns: new(0), Replace: true})
		if err != nil || l.MaxConcurrentRuns != 0 {
			t.Errorf("all limits: %+v, %v", l, err)
		}
		if l, _, err := runs.Limits(t.Context()); err != nil || l.MaxConcurrentRuns != 0 {
			t.Errorf("kept are %+v, %v", l, err)
		}
		if err := o.DeletePool(t.Context(), "db"); err != nil {
			t.Errorf("a pool: %v", err)
		}
		found, err := store.ReadAll(t.Context(), b, runs.Keys.Actions())
		if err != nil || len(found.KVs) != 3 {
			t.Fatalf("%d actions, %v", len(found.KVs), err)
		}
		if a, err := audit.Decode(runs.Keys, found.KVs[1]); err != nil || a.Before != "limits that can't be read" || a.After != LimitsText(l) {
			t.Errorf("%+v, %v", a, err)
		}
	})
}
