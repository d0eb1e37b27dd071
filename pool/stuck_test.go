package pool

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// leaseless is an etcd that does not know a lease which keys hang on.
type leaseless struct {
	store.Backend
	gone store.LeaseID
}

func (b leaseless) TimeToLive(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	if id == b.gone {
		return 0, store.ErrLeaseNotFound
	}
	return b.Backend.TimeToLive(ctx, id)
}

func TestKeysOnALeaseThatEtcdDoesNotHaveAreStuck(t *testing.T) {
	b := storetest.NewManualBackend(storetest.New(storetest.Options{}))
	t.Cleanup(b.Close)
	keys := store.NewKeys("/b/")
	var ids []store.LeaseID
	for i := range 3 {
		id, _, err := b.Grant(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Commit(t.Context(), b, nil, store.Put(keys.Slot("db", i, 0), []byte("x"), id)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := b.Revoke(t.Context(), ids[2]); err != nil { // it has ended, and its key with it
		t.Fatal(err)
	}
	found, err := Stuck(t.Context(), leaseless{b, ids[1]}, keys, ids)
	if err != nil || len(found) != 1 || found[0].Key != keys.Slot("db", 1, 0) || !strings.Contains(found[0].Problem, "would never end") {
		t.Errorf("stuck are %v, %v", found, err)
	}
}
