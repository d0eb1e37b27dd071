package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// fill puts keys until etcd has no space.
func fill(t *testing.T, c *Client, key func(i int) string) {
	t.Helper()
	lease, err := c.etcd.Grant(t.Context(), 24*60*60)
	if err != nil {
		t.Fatal(err)
	}
	// Values of less than a page leave no gaps, so that the space is in use at the alarm.
	for i := 0; ; i += 100 {
		var puts []clientv3.Op
		for n := range 100 {
			puts = append(puts, clientv3.OpPut(key(i+n), strings.Repeat("x", 1<<10), clientv3.WithLease(lease.ID)))
		}
		_, err := c.etcd.Txn(t.Context()).Then(puts...).Commit()
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return
		}
		if err != nil || i > 100_000 {
			t.Fatalf("etcd does not fill up: %v", err)
		}
	}
}

// Events of runs that need not exist were on leases of a day, which no compaction removes.
func TestAnEtcdThatIsFullOfEventsIsFreed(t *testing.T) {
	t.Parallel()
	c := dialed(t, embedtest.Cluster(t, 1, func(c *embed.Config) { c.QuotaBytes = 8 << 20 }))
	k := store.NewKeys("/berth/")
	for key, value := range map[string]string{
		k.Run("real"): "{}", k.Event("real", "e1"): "{}", k.Log(store.StepID{Run: "real", Step: "s"}): "output",
		k.UnfinishedRun("user:ann", "real"): "{}", k.StoredRun("user:ann", 12, "real"): "{}",
		k.StoredRun("user:bob", 3, "gone"): "{}", k.Log(store.StepID{Run: "gone", Step: "s"}): "output",
		"/else": "mine",
	} {
		if _, err := c.etcd.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, c, func(i int) string { return k.Event(fmt.Sprint("ghost-", i%3), fmt.Sprint(i)) })

	s, err := c.Space(t.Context(), store.NewKeys("/berth/"))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Members) != 1 || s.Members[0].Keys < 4<<20 || s.Members[0].Quota != 8<<20 || len(s.Members[0].Alarms) != 1 {
		t.Errorf("the member is %+v", s.Members)
	}
	kinds := map[string]int64{}
	for _, k := range s.Kinds {
		kinds[k.Kind] = k.Keys
	}
	if s.Kinds[0].Kind != "events" || kinds["runs"] != 1 || kinds["usage"] != 3 || kinds["logs"] != 2 || kinds["other programs"] != 1 {
		t.Errorf("the kinds are %+v", s.Kinds)
	}
	if len(s.Identities) != 2 || s.Identities[0] != (IdentitySpace{"user:ann", 1, 1, 12 << 10}) || s.Identities[1] != (IdentitySpace{"user:bob", 0, 1, 3 << 10}) {
		t.Errorf("the identities are %+v", s.Identities)
	}
	if s.Absent.Runs != 4 || s.Absent.Bytes < 4<<20 {
		t.Errorf("of runs that do not exist: %d, %d bytes", s.Absent.Runs, s.Absent.Bytes)
	}

	done, err := c.Free(t.Context(), store.NewKeys("/berth/"), s)
	if err != nil {
		t.Fatal(err)
	}
	if done.Deleted != s.Absent.Keys || len(done.Members) != 1 || done.Members[0].After > 1<<20 {
		t.Errorf("freed: %+v of %d keys", done, s.Absent.Keys)
	}
	if _, err := c.etcd.Put(t.Context(), "/berth/again", "x"); err != nil {
		t.Errorf("a write after that: %v", err)
	}
	s, err = c.Space(t.Context(), store.NewKeys("/berth/"))
	if err != nil || s.Absent.Keys != 0 || len(s.Members[0].Alarms) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, key := range []string{k.Run("real"), k.Event("real", "e1"), k.Log(store.StepID{Run: "real", Step: "s"}), k.StoredRun("user:ann", 12, "real"), "/else"} {
		if got, err := c.etcd.Get(t.Context(), key); err != nil || len(got.Kvs) != 1 {
			t.Errorf("%s is gone, %v", key, err)
		}
	}
}

// A run that is submitted between the report and the deletion keeps its events.
func TestWhatBelongsToARunThatExistsByNowIsNotDeleted(t *testing.T) {
	t.Parallel()
	c := dialed(t, embedtest.Cluster(t, 1))
	k := store.NewKeys("/berth/")
	keys := []string{k.Event("late", "e1"), k.StoredRun("user:ann", 1, "late")}
	for _, key := range keys {
		if _, err := c.etcd.Put(t.Context(), key, "{}"); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Space(t.Context(), store.NewKeys("/berth/"))
	if err != nil || s.Absent.Runs != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := c.etcd.Put(t.Context(), k.Run("late"), "{}"); err != nil {
		t.Fatal(err)
	}
	if done, err := c.Free(t.Context(), store.NewKeys("/berth/"), s); err != nil || done.Deleted != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	for _, key := range keys {
		if got, err := c.etcd.Get(t.Context(), key); err != nil || len(got.Kvs) != 1 {
			t.Errorf("%s is gone, %v", key, err)
		}
	}
}

// What others have stored is not deleted, so the alarm stays, and the error says so.
func TestAnEtcdThatIsFullOfOtherKeysStaysFull(t *testing.T) {
	t.Parallel()
	c := dialed(t, embedtest.Cluster(t, 1, func(c *embed.Config) { c.QuotaBytes = 4 << 20 }))
	fill(t, c, func(i int) string { return fmt.Sprint("/else/", i) })
	s, err := c.Space(t.Context(), store.NewKeys("/berth/"))
	if err != nil {
		t.Fatal(err)
	}
	if done, err := c.Free(t.Context(), store.NewKeys("/berth/"), s); problem.CodeOf(err) != problem.EtcdFull || len(done.Members) != 1 {
		t.Errorf("%+v, %v", done, err)
	}
}
