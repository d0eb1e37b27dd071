package revoke_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/revoke"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// etcd is one with claims that no instance knows.
type etcd struct {
	revoke.Revoker
	t     *testing.T
	b     *storetest.Backend
	keys  wire.Keys
	lease store.LeaseID
}

func newEtcd(t *testing.T) *etcd {
	e := &etcd{t: t, b: storetest.NewManualBackend(storetest.New(storetest.Options{})), keys: wire.Keys{Keys: store.NewKeys("/b/")}}
	t.Cleanup(e.b.Close)
	e.Revoker = revoke.Revoker{Backend: e.b, Keys: e.keys.Keys}
	var err error
	e.lease, _, err = e.b.Grant(t.Context(), time.Hour)
	e.must(err)
	return e
}

func (e *etcd) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// hold has an instance of a host hold slots of a pool, from a number on, and the id, if its user has chosen it.
func (e *etcd) hold(id, host string, first, n int, chosen bool) store.Fence {
	e.t.Helper()
	r := &pool.Request{ID: id, Slots: map[string]int{"db": n}, Holder: pool.Holder{Host: host, Instance: "i", ClaimedBy: "user:alice"}}
	var h slots.Held
	for i := range n {
		h.Numbers = append(h.Numbers, first+i)
	}
	var puts []*pb.RequestOp
	for _, p := range wire.Spell(r).Puts(map[string]slots.Held{"db": h}, wire.Written{Since: time.Unix(1, 0)}) {
		puts = append(puts, store.Put(p.Key(e.keys), p.Value, e.lease))
	}
	if chosen {
		puts = append(puts, store.Put(e.keys.ID(id), wire.EncodeID(wire.ID{Host: host, Instance: "i"}), e.lease))
	}
	t := &pb.TxnRequest{}
	for some := range slices.Chunk(puts, 60) {
		t.Success = append(t.Success, store.Nest(&pb.TxnRequest{Success: some}))
	}
	resp, err := e.b.Txn(e.t.Context(), t)
	e.must(err)
	return store.FenceAt(resp.Header.Revision)
}

// keysBelow returns the keys with a prefix.
func (e *etcd) keysBelow(prefix string) (keys []string) {
	e.t.Helper()
	all, err := store.ReadAll(e.t.Context(), e.b, prefix)
	e.must(err)
	for _, kv := range all.KVs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func (e *etcd) read() *list.State {
	e.t.Helper()
	s, err := list.Read(e.t.Context(), e.b, e.keys.Keys)
	e.must(err)
	return s
}

// requested returns the revocations for a host.
func (e *etcd) requested(host string) map[string]wire.Revocation {
	e.t.Helper()
	found := map[string]wire.Revocation{}
	all, err := store.ReadAll(e.t.Context(), e.b, e.keys.Revocations(host))
	e.must(err)
	for _, kv := range all.KVs {
		r, err := wire.DecodeRevocation(string(kv.Key), kv.Value)
		e.must(err)
		found[string(kv.Key)] = r
	}
	return found
}

func (e *etcd) problem(err error, code problem.Code) {
	e.t.Helper()
	if problem.CodeOf(err) != code {
		e.t.Errorf("%v, want %s", err, code)
	}
}

func TestARevocationIsARequestToTheHost(t *testing.T) {
	e := newEtcd(t)
	fence := e.hold("a", "one", 0, 2, false)
	r, err := e.Revoke(t.Context(), "a", false)
	if want := (pool.Revocation{Claim: "a", Host: "one", Instance: "i", Fence: fence}); err != nil || r != want {
		t.Errorf("%+v, %v, want %+v", r, err, want)
	}
	if got := e.requested("one")[e.keys.Revocation("one", "a")]; got != (wire.Revocation{Fence: fence}) {
		t.Errorf("requested is %+v", got)
	}
	if n := len(e.keysBelow(e.keys.Slots("db"))); n != 2 {
		t.Errorf("%d slots are held", n)
	}
	_, err = e.Revoke(t.Context(), "b", false)
	e.problem(err, problem.ClaimNotFound)
	e.must(e.RequestWithdrawal(t.Context(), "two", "c"))
	if got := e.requested("two")[e.keys.Revocation("two", "c")]; got != (wire.Revocation{Fence: wire.Waiting}) {
		t.Errorf("requested is %+v", got)
	}
}

func TestAnIDOfTwoInstancesNeedsTheInstance(t *testing.T) {
	for _, force := range []bool{false, true} {
		e := newEtcd(t)
		e.hold("a", "one", 0, 1, false)
		fence := e.hold("a", "two", 1, 1, false)
		_, err := e.Revoke(t.Context(), "a", force)
		e.problem(err, problem.Invalid)
		_, err = e.Revoke(t.Context(), "three/i/a", force)
		e.problem(err, problem.ClaimNotFound)
		r, err := e.Revoke(t.Context(), "two/i/a", force)
		if err != nil || r.Fence != fence || r.Host != "two" {
			t.Errorf("%+v, %v", r, err)
		}
		if keys := e.keysBelow(e.keys.Slots("db")); len(keys) == 0 || keys[0] != e.keys.Number("db", 0) {
			t.Errorf("held are %v", keys)
		}
	}
}

func TestARefusedCallerRevokesNothing(t *testing.T) {
	e := newEtcd(t)
	e.hold("a", "one", 0, 1, false)
	refusal := errors.New("not yours")
	for _, force := range []bool{false, true} {
		if _, err := e.Revoke(t.Context(), "a", force, func(of pool.Holder, need map[string]int) error {
			if of.ClaimedBy != "user:alice" || need["db"] != 1 {
				t.Errorf("asked for %+v, %v", of, need)
			}
			return refusal
		}); !errors.Is(err, refusal) {
			t.Errorf("%v", err)
		}
	}
	if len(e.keysBelow(e.keys.Slots("db"))) != 1 || len(e.requested("one")) > 0 {
		t.Error("something was written")
	}
}

// By force, all keys of a claim go in one transaction with the request to its host; those of others stay.
func TestByForceAllKeysOfAClaimGo(t *testing.T) {
	for _, n := range []int{1, 2, 64, 65, 200} {
		for _, chosen := range []bool{false, true} {
			t.Run(fmt.Sprint(n, chosen), func(t *testing.T) {
				e := newEtcd(t)
				e.hold("other", "one", n, 1, true)
				fence := e.hold("a", "one", 0, n, chosen)
				r, err := e.Revoke(t.Context(), "a", true)
				if want := (pool.Revocation{Claim: "a", Host: "one", Instance: "i", Fence: fence, Forced: true}); err != nil || r != want {
					t.Errorf("%+v, %v, want %+v", r, err, want)
				}
				if keys := e.keysBelow(e.keys.Slots("db")); !slices.Equal(keys, []string{e.keys.Number("db", n)}) {
					t.Errorf("held are %v", keys)
				}
				if keys := e.keysBelow(e.keys.ID("")); !slices.Equal(keys, []string{e.keys.ID("other")}) {
					t.Errorf("ids are %v", keys)
				}
				if got := e.requested("one")[e.keys.Revocation("one", "a")]; got != (wire.Revocation{Fence: fence, Forced: true}) {
					t.Errorf("requested is %+v", got)
				}
			})
		}
	}
}

// A key that a claim lists and that another one has put since is the other's, and so is an id of another instance.
func TestByForceNoKeyOfAnotherClaimGoes(t *testing.T) {
	e := newEtcd(t)
	fence := e.hold("a", "one", 0, 3, false)
	e.hold("b", "one", 2, 1, false)
	_, err := store.Commit(t.Context(), e.b, nil, store.Put(e.keys.ID("a"), wire.EncodeID(wire.ID{Host: "two", Instance: "i"}), 0))
	e.must(err)
	_, err = e.Free(t.Context(), e.read(), "a", fence)
	e.must(err)
	if keys := e.keysBelow(e.keys.Slots("db")); !slices.Equal(keys, []string{e.keys.Number("db", 2)}) {
		t.Errorf("held are %v", keys)
	}
	if len(e.keysBelow(e.keys.ID(""))) != 1 {
		t.Error("the id of another instance is free")
	}
}

func TestAClaimIsFreedOnlyAsItWasRead(t *testing.T) {
	e := newEtcd(t)
	before := e.read()
	first := e.hold("a", "one", 0, 1, false)
	_, err := e.Free(t.Context(), before, "a", first)
	e.problem(err, problem.ClaimNotFound)
	was := e.read()
	_, err = e.Free(t.Context(), was, "a", first+1024)
	e.problem(err, problem.ClaimNotFound)
	e.hold("a", "one", 0, 1, false) // again
	_, err = e.Free(t.Context(), was, "a", first)
	e.problem(err, problem.ClaimNotFound)
	e.problem(e.FreeBridge(t.Context(), was, "a", first), problem.ClaimNotFound)
	if len(e.keysBelow(e.keys.Slots("db"))) != 1 || len(e.requested("one")) > 0 {
		t.Error("the later claim was freed, or its host has a request")
	}
}

func TestAFreedBridgeNotifiesNobody(t *testing.T) {
	e := newEtcd(t)
	fence := e.hold("a", "one", 0, 1, false)
	e.must(e.FreeBridge(t.Context(), e.read(), "a", fence))
	if len(e.keysBelow(e.keys.Slots("db"))) > 0 || len(e.requested("one")) > 0 {
		t.Error("it is held, or its host has a request")
	}
}

func TestByForceSlotsAreFreedInAFullEtcd(t *testing.T) {
	e := newEtcd(t)
	fence := e.hold("a", "one", 0, 2, true)
	e.b.Do(func(etcd *storetest.Etcd) { etcd.SetSpace(storetest.SpaceFull) })
	r, err := e.Revoke(t.Context(), "a", true)
	if want := (pool.Revocation{Claim: "a", Host: "one", Instance: "i", Fence: fence, Forced: true, Unnotified: true}); err != nil || r != want {
		t.Errorf("%+v, %v, want %+v", r, err, want)
	}
	if len(e.keysBelow(e.keys.Slots("db")))+len(e.keysBelow(e.keys.ID(""))) > 0 {
		t.Error("something of it is left")
	}
	_, err = e.Revoke(t.Context(), "a", false)
	e.problem(err, problem.ClaimNotFound)
}
