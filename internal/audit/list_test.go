package audit

import (
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// logOf returns a log with an action at each of the times, and their ids, the newest first.
func logOf(t *testing.T, at []time.Time) (Log, *storetest.Backend, []string) {
	t.Helper()
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	t.Cleanup(b.Close)
	var ids []string
	b.Do(func(e *storetest.Etcd) {
		for i, one := range at {
			var id ulid.ULID
			if err := id.SetTime(uint64(one.UnixMilli())); err != nil {
				t.Fatal(err)
			}
			id[14], id[15] = byte(i>>8), byte(i) // in order within a millisecond
			ids = append(ids, id.String())
			if _, err := e.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(actionKeys.Action(id.String()), asked().Encode(), 0)}}); err != nil {
				t.Fatal(err)
			}
		}
	})
	slices.Reverse(ids)
	return Log{Backend: b, Keys: actionKeys}, b, ids
}

// listed returns the ids on all pages.
func listed(t *testing.T, l Log, limit int) (ids []string) {
	t.Helper()
	for before := ""; ; {
		found, next, bad, err := l.List(t.Context(), before, limit)
		if err != nil || len(bad) > 0 {
			t.Fatal(err, bad)
		}
		for _, a := range found {
			ids = append(ids, a.ID)
		}
		if next == "" {
			return ids
		}
		before = next
	}
}

func TestPagesOfActionsHaveEachActionOnce(t *testing.T) {
	begin := time.Now()
	every := func(n int, d time.Duration) (at []time.Time) {
		for i := range n {
			at = append(at, begin.Add(-time.Duration(n-i)*d))
		}
		return at
	}
	for name, at := range map[string][]time.Time{
		"none":              nil,
		"one":               every(1, time.Second),
		"each second":       every(700, time.Second),
		"at one time":       every(700, 0),
		"of long ago":       every(50, 1000*time.Hour),
		"by a clock ahead":  every(50, -time.Hour),
		"a burst and a few": append(every(20, time.Hour), every(500, time.Millisecond)...),
	} {
		slices.SortFunc(at, time.Time.Compare)
		l, _, want := logOf(t, at)
		for _, limit := range []int{7, 100, 1000} {
			if got := listed(t, l, limit); !slices.Equal(got, want) {
				t.Errorf("%s: pages of %d have %d actions, want %d in order", name, limit, len(got), len(want))
			}
		}
	}
}

func TestAPageOfActionsDoesNotReadTheLog(t *testing.T) {
	var at []time.Time
	for i := range 5000 {
		at = append(at, time.Now().Add(time.Duration(i-5000)*time.Second))
	}
	l, b, ids := logOf(t, at)
	var read int64
	b.Inject(func(c storetest.Call) storetest.Fault {
		if c.Range != nil && !c.Range.CountOnly {
			read += c.Range.Limit
		}
		return storetest.Fault{}
	})
	found, _, _, err := l.List(t.Context(), ids[1000], 100)
	if err != nil || len(found) != 100 || found[0].ID != ids[1001] || read > 1000 {
		t.Errorf("%d actions, %d of 5000 were asked for: %v", len(found), read, err)
	}
}
