package list

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// demandsKey is one key of demands.
type demandsKey struct {
	wire.DemandKey
	wire.Demands
	created int64
	lease   store.LeaseID
}

func (s *State) putDemands(key string, kv *mvccpb.KeyValue) error {
	name, v, err := s.keys.DecodeDemands(key, kv.Value)
	if err == nil {
		s.demands[name] = &demandsKey{name, v, kv.CreateRevision, store.LeaseID(kv.Lease)}
	}
	return err
}

func (s *State) deleteDemands(key string) {
	if name, err := s.keys.DemandKey(key); err == nil {
		delete(s.demands, name)
	}
}

// missing returns the pools in which demands have no key that was created with the one that lists them, by name.
// Demands count only if there are none. What was not read is not missing.
func (s *State) missing(d *demandsKey) (pools []string) {
	for _, name := range sortedNames(d.List[0].Pools) {
		if name == d.Pool || s.part || !s.knows(name) {
			continue
		}
		if o := s.demands[d.In(name)]; o == nil || o.First != d.Pool || o.created != d.created {
			pools = append(pools, name)
		}
	}
	return pools
}
