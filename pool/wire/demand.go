package wire

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// MaxDemands and MaxDemandBytes bound the demands of one key, of which each change puts all.
	MaxDemands     = 64
	MaxDemandBytes = 32 << 10
)

// Stamp ranks demands of the same priority: an earlier one comes first. It is the revision at which the demand was put
// first and its index there, or the revision at which a step was published.
type Stamp struct {
	Revision int64 `json:"revision"`
	Index    int   `json:"index,omitempty"`
}

// Compare ranks an earlier stamp first.
func (s Stamp) Compare(o Stamp) int {
	return cmp.Or(cmp.Compare(s.Revision, o.Revision), cmp.Compare(s.Index, o.Index))
}

// Rank orders demands: a dispatcher, lists and owners have the same one first. Of the same priority an earlier stamp is.
type Rank struct {
	Priority int // higher goes first
	Stamp    Stamp
	Claim    string
	Demand   DemandRef // orders those of the same claim
}

// Compare ranks the one first that is served first.
func (r *Rank) Compare(o *Rank) int {
	if r.Priority != o.Priority {
		return cmp.Compare(o.Priority, r.Priority)
	}
	if c := r.Stamp.Compare(o.Stamp); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(r.Claim, o.Claim), cmp.Compare(r.Demand.Created, o.Demand.Created), cmp.Compare(r.Demand.Index, o.Demand.Index))
}

// Demand is a claim that waits for slots.
type Demand struct {
	// Index stays with the demand when others leave its key.
	Index int            `json:"index"`
	Claim string         `json:"claim"`
	Pools map[string]int `json:"pools"`
	// Priority ranks demands; higher goes first.
	Priority int `json:"priority,omitempty"`
	// Stamp is nil for a demand whose stamp is the revision that created its key, and its index.
	Stamp *Stamp `json:"stamp,omitempty"`
	// Reserve has slots kept for it while it does not fit.
	Reserve bool `json:"reserve,omitempty"`
	// Pending are those of its pools that it keeps pending: they had no free slots for it.
	Pending []string `json:"pending,omitempty"`
	// Sole is set for one of several claims that are for the same: what the run, the step and the bind of the holder name.
	Sole   bool        `json:"sole,omitempty"`
	Since  time.Time   `json:"since"`
	Holder pool.Holder `json:"holder"`
}

// Stamped returns the stamp of a demand in a key that was created at a revision.
func (d *Demand) Stamped(created int64) Stamp {
	if d.Stamp != nil {
		return *d.Stamp
	}
	return Stamp{Revision: created, Index: d.Index}
}

// Demands is the value of a demands key.
type Demands struct {
	// List is all demands of the key, with ascending indexes, in the key of the first of their pools by name.
	List []Demand
	// First is the first of their pools, in the keys of the others.
	First string
}

// demandsValue is Demands in etcd.
type demandsValue struct {
	store.V
	Demands []Demand `json:"demands,omitempty"`
	First   string   `json:"first,omitempty"`
}

// DemandKey names the key of demands of an instance in a pool.
type DemandKey struct {
	Pool, Host, Instance string
	Name                 int
}

// In returns the key of the same demands in another pool.
func (d DemandKey) In(pool string) DemandKey {
	d.Pool = pool
	return d
}

// Ref names a demand of the key, if it is the one in the first of their pools.
func (d DemandKey) Ref(created int64, index int) DemandRef {
	return DemandRef{Pool: d.Pool, Name: d.Name, Created: created, Index: index}
}

// EncodeDemands returns the values of the keys of demands that have the same pools, by pool.
func EncodeDemands(list []Demand) map[string][]byte {
	names := sortedNames(list[0].Pools)
	values := map[string][]byte{}
	for _, name := range names[1:] {
		values[name] = store.Encode(demandsValue{V: now, First: names[0]})
	}
	values[names[0]] = store.Encode(demandsValue{V: now, Demands: list})
	return values
}

// DecodeDemands reads the value of a demands key.
func (k Keys) DecodeDemands(key string, data []byte) (DemandKey, Demands, error) {
	name, err := k.DemandKey(key)
	if err != nil {
		return DemandKey{}, Demands{}, err
	}
	var v demandsValue
	if err := store.DecodeVersion(Version, key, data, &v); err != nil {
		return name, Demands{}, err
	}
	d := Demands{List: v.Demands, First: v.First}
	if err := d.check(name); err != nil {
		return name, Demands{}, &store.CorruptError{Key: key, Reason: err}
	}
	return name, d, nil
}

func (d *Demands) check(name DemandKey) error {
	if d.First != "" {
		if len(d.List) > 0 || d.First >= name.Pool || !isPool(d.First) {
			return errors.New("first must be a pool before that of the key, and the key must have no demands")
		}
		return nil
	}
	if len(d.List) < 1 || len(d.List) > MaxDemands {
		return fmt.Errorf("demands: a key must have 1 to %d", MaxDemands)
	}
	pools := sortedNames(d.List[0].Pools)
	if len(pools) == 0 || pools[0] != name.Pool {
		return errors.New("demands: the pool of the key must be the first one of each")
	}
	last := -1
	for i := range d.List {
		one := &d.List[i]
		if err := one.check(); err != nil {
			return fmt.Errorf("demands: %d: %w", one.Index, err)
		}
		if one.Index <= last || one.Index >= maxName {
			return fmt.Errorf("demands: %d: indexes must ascend from 0 to %d", one.Index, maxName-1)
		}
		if last = one.Index; !slices.Equal(sortedNames(one.Pools), pools) {
			return fmt.Errorf("demands: %d: all must have the same pools", one.Index)
		}
	}
	return nil
}

func (d *Demand) check() error {
	req := pool.Request{ID: d.Claim, Slots: d.Pools, Priority: d.Priority, Holder: d.Holder}
	if err := req.Validate(); err != nil {
		return err
	}
	if d.Stamp != nil && (d.Stamp.Revision < 1 || d.Stamp.Index < 0) {
		return errors.New("stamp: it must be of revision 1 or later, with an index of 0 or more")
	}
	for i, name := range d.Pending {
		if d.Pools[name] == 0 || i > 0 && d.Pending[i-1] >= name {
			return fmt.Errorf("pending: %q must be one of its pools, and come once, in order", problem.Clip(name))
		}
	}
	return nil
}
