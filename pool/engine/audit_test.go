package engine

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// The next process of an instance holds its claims on, and ends what it had in the wait queue.
func TestARestartAdoptsClaims(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		one, two := r.start("one"), r.start("two")
		a, torn := one.take("a", 1), one.take("torn", 2)
		one.ask("waits", 1)
		b := two.ask("b", 1)
		one.end()
		r.isHeld(a, torn) // a process that ends says nothing of them
		r.must(store.Commit(r.Context(), r.root, nil, store.Delete(r.keys.Number("db", r.numberOf("torn")))))
		one = r.start("one")
		all, err := one.Adopted(r.Context())
		r.must(nil, err)
		if len(all) != 1 || all[0].ID != "a" || all[0].Fence != a.Fence || all[0].Lease != a.Lease {
			r.Fatalf("adopted: %v", all)
		}
		if n := r.left(r.keys.Demands("db", "one", "i")); n > 0 {
			r.Errorf("%d demands keys of the earlier process are left", n)
		}
		got := b.got()
		time.Sleep(10 * time.Minute) // the lease is renewed
		r.isHeld(all[0], got)
		if same := one.take("a", 1); same != all[0] {
			r.Errorf("asked for again: %+v", same)
		}
		one.release(all[0])
		two.release(got)
		r.nothingLeft()
	})
}

// A process that takes the name of one that lives ends the writes of that.
func TestTwoProcessesWithOneName(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		first := r.start("one")
		a := first.take("a", 1)
		second := r.start("one")
		all, err := second.Adopted(r.Context())
		r.must(nil, err)
		if len(all) != 1 || all[0].ID != "a" {
			r.Fatalf("adopted: %v", all)
		}
		b := second.take("b", 1)
		second.release(all[0], b)
		time.Sleep(30 * time.Second)
		r.isLost(a)
		r.nothingLeft()
	})
}

// numberOf returns the number of a slot of a claim.
func (r *rig) numberOf(id string) int {
	r.Helper()
	all, err := store.ReadAll(r.Context(), r.root, r.keys.Slots("db"))
	r.must(nil, err)
	for _, kv := range all.KVs {
		ref, s, err := r.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
		if err == nil && s.Claim == id {
			return ref.Number
		}
	}
	r.Fatalf("claim %q has no slots", id)
	return 0
}

// A claim whose lease etcd has ended, or one of whose keys was deleted, ends within 15 s, and what is left of it is freed.
func TestAClaimWhoseKeysAreGoneEnds(t *testing.T) {
	inBubble(t, 4, func(r *rig) {
		one := r.start("one")
		a, b := one.take("a", 1), one.take("b", 2)
		r.must(store.Commit(r.Context(), r.root, nil, store.Delete(r.keys.Number("db", r.numberOf("b")))))
		time.Sleep(15 * time.Second)
		r.isLost(b)
		r.isHeld(a)
		time.Sleep(15 * time.Second)
		if n := r.left(r.keys.Slots("db")); n != 1 {
			r.Errorf("%d slots are taken", n)
		}
		one.release(b) // it has ended
		r.must(nil, r.root.Revoke(r.Context(), a.Lease))
		time.Sleep(15 * time.Second)
		r.isLost(a)
		one.release(one.take("c", 4))
		r.nothingLeft()
	})
}

// Slots on a lease of the instance that belong to none of its claims are freed, and those on other leases are not.
func TestOrphanedSlotsAreFreed(t *testing.T) {
	inBubble(t, 9, func(r *rig) {
		one := r.start("one")
		a := one.take("a", 1)
		key := r.keys.Number("db", r.numberOf("a"))
		kv, err := store.ReadAll(r.Context(), r.root, key)
		r.must(nil, err)
		other, _, err := r.root.Grant(r.Context(), time.Hour)
		r.must(nil, err)
		free := (r.numberOf("a") + 1) % 9
		put := func(number int, id store.LeaseID) {
			r.must(store.Commit(r.Context(), r.root, nil, store.Put(r.keys.Number("db", number), kv.KVs[0].Value, id)))
		}
		put(free, a.Lease)
		put((free+1)%9, other)
		r.must(nil, one.Reconcile(r.Context()))
		if n := r.left(r.keys.Slots("db")); n != 2 {
			r.Errorf("%d slots are taken", n)
		}
		r.isHeld(a)
		put(free, a.Lease)
		time.Sleep(15 * time.Second)
		if n := r.left(r.keys.Slots("db")); n != 2 {
			r.Errorf("%d slots are taken", n)
		}
		one.release(a)
	})
}
