package engine

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// Etcd lists the keys of a lease as they are, and says which leases are gone.
func TestKeysOfALease(t *testing.T) {
	t.Parallel()
	c := embedtest.Client(t, embedtest.New(t))
	id, _, err := c.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, ops := range []string{"a", "b"} {
		if _, err := store.Commit(t.Context(), c, nil, store.Put("/b/"+ops, nil, id)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Commit(t.Context(), c, nil, store.Delete("/b/a")); err != nil {
		t.Fatal(err)
	}
	keys, gone, err := attached(t.Context(), c, []store.LeaseID{id, id + 1})
	if err != nil || !slices.Equal(keys, []string{"/b/b"}) || !slices.Equal(gone, []store.LeaseID{id + 1}) {
		t.Errorf("%v, gone are %v: %v", keys, gone, err)
	}
	if _, err := c.LeaseKeys(t.Context(), id+1); !errors.Is(err, store.ErrLeaseNotFound) {
		t.Errorf("%v", err)
	}
}
