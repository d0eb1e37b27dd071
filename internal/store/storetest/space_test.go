package storetest

import (
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

func TestAFullStoreTakesDeletesOnly(t *testing.T) {
	for _, c := range []struct {
		name    string
		req     *pb.TxnRequest
		refused bool
	}{
		{"put", always(put("d")), true},
		{"put in the branch not taken", txn(no(), then{put("d")}, then{del("a")}), true},
		{"put in a child not taken", always(del("a"), nest(no(), then{put("d")}, nil)), true},
		{"delete", always(del("a")), false},
		{"nested delete", always(nest(nil, then{del("a")}, nil)), false},
		{"read", always(get("a")), false},
	} {
		e := New(Options{})
		write(t, e, put("a"))
		e.SetSpace(SpaceFull)
		if _, err := e.Txn(c.req); errors.Is(err, store.ErrNoSpace) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.refused && e.Revision() != 2 {
			t.Errorf("%s: carried out", c.name)
		}
		e.SetSpace(SpaceFree)
		if _, err := e.Txn(c.req); err != nil {
			t.Errorf("%s with space again: %v", c.name, err)
		}
	}
}

func TestAFillingStoreCarriesOutWhatItRefuses(t *testing.T) {
	e := New(Options{})
	e.SetSpace(SpaceFilling)
	_, err := e.Txn(always(put("a")))
	if !errors.Is(err, store.ErrNoSpace) || !store.OutcomeUnknown(err) {
		t.Errorf("put: %v", err)
	}
	if got := describeKVs(e.keys, 0); got != "a=v/c2/m2/v1" {
		t.Errorf("stored: %s", got)
	}
	if _, _, err := e.Grant(time.Minute); !errors.Is(err, store.ErrNoSpace) || len(e.leases) != 1 {
		t.Errorf("grant: %v, %d leases", err, len(e.leases))
	}
	if _, err := e.Txn(always(del("a"))); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, _, err := e.Grant(time.Minute); !errors.Is(err, store.ErrNoSpace) || len(e.leases) != 2 {
		t.Errorf("second grant: %v, %d leases", err, len(e.leases))
	}
	if _, err := e.Txn(always(put("a"), put("a"))); errors.Is(err, store.ErrNoSpace) {
		t.Errorf("a refusal hides behind it: %v", err)
	}
}

func TestLeasesLiveOnInAFullStore(t *testing.T) {
	e := New(Options{})
	id, _, _ := e.Grant(0)
	e.SetSpace(SpaceFull)
	if _, _, err := e.Grant(0); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("grant: %v", err)
	}
	must(t, renew(e, id))
	must(t, e.Revoke(id))
}
