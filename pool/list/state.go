package list

import (
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// State is what etcd holds of pools: of all of them, or of some and of what belongs to them. It is not to be changed while
// it is read; several goroutines may read it.
type State struct {
	keys     wire.Keys
	revision int64
	pools    map[string]*poolState
	claims   map[claimName]*claim
	ended    map[wire.DemandRef]int // how many claims name a demand that they have ended
	demands  map[wire.DemandKey]*demandsKey
	offers   map[wire.OfferKey][]wire.Offer
	ids      map[string]wire.ID
	role     wire.Role
	leases   map[string]store.LeaseID // of ids and the role, by key
	bad      map[string]badKey
	only     map[string]bool // the pools that were read; nil is all of them
	part     bool            // not all demands of these pools were read
	own      Own             // what the instance that asks knows
	*index
}

// poolState is one pool.
type poolState struct {
	name string
	spec pool.Spec
	// specRev is the revision of the spec, 0 if there is none, and since that from which its limit holds.
	specRev, since int64
	slots          map[wire.Ref]slot
	used           int // slots
	closed         int // keys that can't be read, for which it grants nothing: its spec, blocks, and keys that are none
}

// exists reports whether the pool has a spec.
func (p *poolState) exists() bool { return p.specRev != 0 }

// badKey is a key that can't be read.
type badKey struct {
	err   error
	lease store.LeaseID
	// pool is that of a spec, a slot key or a block; else it is empty. closes is set if the pool grants nothing because of it: a
	// slot key holds its number whatever its value is.
	pool   string
	closes bool
}

// New returns a state without keys, at a revision.
func New(keys store.Keys, revision int64) *State {
	return &State{
		keys: wire.Keys{Keys: keys}, revision: revision, pools: map[string]*poolState{}, claims: map[claimName]*claim{},
		ended: map[wire.DemandRef]int{}, demands: map[wire.DemandKey]*demandsKey{}, offers: map[wire.OfferKey][]wire.Offer{},
		ids: map[string]wire.ID{}, leases: map[string]store.LeaseID{}, bad: map[string]badKey{}, index: &index{},
	}
}

// By returns the state as an instance sees it that asks: with its demands as it knows them.
func (s *State) By(o Own) *State {
	by := *s
	by.own = o
	return &by
}

// Revision returns the one that is shown.
func (s *State) Revision() int64 { return s.revision }

// Show records that all is known up to a revision.
func (s *State) Show(revision int64) { s.revision = revision }

// Put records a key with its value. A value that can't be read is recorded as such, as is a key below those of
// pools that berth does not write. Keys that are not of pools are ignored.
func (s *State) Put(kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	kind, name := kindOf(s.keys, key)
	s.forget(key, kind, name)
	bad := badKey{pool: name, lease: store.LeaseID(kv.Lease)}
	switch kind {
	case specKey:
		bad.closes, bad.err = true, s.putSpec(name, kv)
	case slotKey:
		ref, err := s.putSlot(kv)
		bad.closes, bad.err = ref == (wire.Ref{}) || ref.IsBlock(), err
	default:
		bad.pool, bad.err = "", s.putOther(key, kind, name, kv)
	}
	if bad.err != nil {
		s.bad[key] = bad
		s.count(bad, 1)
	}
}

// Delete records that a key does not exist.
func (s *State) Delete(key string) {
	kind, name := kindOf(s.keys, key)
	s.forget(key, kind, name)
	if p := s.pools[name]; p != nil && !p.exists() && p.used+p.closed == 0 {
		delete(s.pools, name)
	}
}

// Apply records what has happened, in its order.
func (s *State) Apply(events []*mvccpb.Event) {
	for _, e := range events {
		if e.Type == mvccpb.Event_DELETE {
			s.Delete(string(e.Kv.Key))
		} else {
			s.Put(e.Kv)
		}
	}
}

// putOther records a key that is neither a spec nor a slot.
func (s *State) putOther(key string, kind kind, name string, kv *mvccpb.KeyValue) error {
	switch kind {
	case demandKey:
		return s.putDemands(key, kv)
	case offerKey:
		return s.putOffers(key, kv)
	case idKey, roleKey:
		s.leases[key] = store.LeaseID(kv.Lease)
		err := s.putSingle(key, kind, name, kv.Value)
		if err != nil {
			delete(s.leases, key)
		}
		return err
	case unknownKey:
		return fmt.Errorf("key %q is none that berth writes", key)
	}
	return nil
}

// putSingle records a key whose value is read without others.
func (s *State) putSingle(key string, kind kind, name string, value []byte) error {
	switch kind {
	case idKey:
		id, err := wire.DecodeID(key, value)
		if err == nil {
			err = pool.ValidateID(name)
		}
		if err == nil {
			s.ids[name] = id
		}
		return err
	}
	r, err := wire.DecodeRole(key, value)
	if err == nil {
		s.putRole(r)
	}
	return err
}

// forget forgets a key.
func (s *State) forget(key string, kind kind, name string) {
	s.outdated()
	if b, bad := s.bad[key]; bad {
		delete(s.bad, key)
		s.count(b, -1)
	}
	delete(s.leases, key)
	switch kind {
	case specKey:
		s.deleteSpec(name)
	case slotKey:
		s.deleteSlot(key)
	case demandKey:
		s.deleteDemands(key)
	case offerKey:
		if o, err := s.keys.OfferKey(key); err == nil {
			delete(s.offers, o)
		}
	case idKey:
		delete(s.ids, name)
	case roleKey:
		s.putRole(wire.Role{})
	}
}

// pool returns a pool, which is made if nothing was known of it.
func (s *State) pool(name string) *poolState {
	p := s.pools[name]
	if p == nil {
		p = &poolState{name: name, slots: map[wire.Ref]slot{}}
		s.pools[name] = p
	}
	return p
}

// count counts a key that can't be read, or with -1 one that is gone.
func (s *State) count(b badKey, n int) {
	switch {
	case b.pool == "":
	case b.closes:
		s.pool(b.pool).closed += n
	default:
		s.pool(b.pool).unread(n)
	}
}

func (s *State) putSpec(name string, kv *mvccpb.KeyValue) error {
	spec, claims, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
	p := s.pool(name)
	p.spec, p.specRev, p.since = spec, kv.ModRevision, claims.Since
	return err
}

func (s *State) deleteSpec(name string) {
	if p := s.pools[name]; p != nil {
		p.spec, p.specRev, p.since = pool.Spec{}, 0, 0
	}
}

func (s *State) putOffers(key string, kv *mvccpb.KeyValue) error {
	o, err := s.keys.OfferKey(key)
	if err != nil {
		return err
	}
	var list []wire.Offer
	if o.Name >= 0 { // the presence of the others is all that counts
		list, err = wire.DecodeOffers(key, kv.Value)
	}
	if err == nil {
		s.offers[o] = list
	}
	return err
}

func (s *State) putRole(r wire.Role) { s.role = r }

// dispatcher returns the instance that dispatches, or the one that follows it if it ends; empty if there is none.
func dispatcher(r wire.Role) instance {
	if r.Ends {
		return instance{r.NextHost, r.NextInstance}
	}
	return instance{r.Host, r.Instance}
}

// passed reports whether an instance is passed, because it has not answered an offer.
func (s *State) passed(by instance) bool {
	_, is := s.offers[wire.OfferKey{Host: by.host, Instance: by.name, Name: -1}]
	return is
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
