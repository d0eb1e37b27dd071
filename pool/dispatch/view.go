package dispatch

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/wire"
)

// forgetAfter is for how long a pool is followed that has no demands: the next one need not wait for a read.
const forgetAfter = 10 * time.Second

// view is what etcd has from offers/ to the end of pools/, as of a revision, but for offers keys. Of pools without
// demands it has nothing.
type view struct {
	keys     wire.Keys
	revision int64
	listed   int64 // the revision of the last restart; 0 before
	latest   int64 // that of the last event, which may not be shown yet
	pools    map[string]*followed
	byIndex  []*followed // nil where there is none
	pending  map[string]int64
}

func newView(keys wire.Keys) view {
	return view{keys: keys, pools: map[string]*followed{}, pending: map[string]int64{}}
}

// follow returns a pool that is followed from now on.
func (v *view) follow(name string) *followed {
	p := v.pools[name]
	if p == nil {
		index := slices.Index(v.byIndex, nil)
		if index < 0 {
			index = len(v.byIndex)
			v.byIndex = append(v.byIndex, nil)
		}
		p = newFollowed(name, index)
		v.pools[name], v.byIndex[index] = p, p
	}
	return p
}

// forget ends that a pool is followed.
func (v *view) forget(p *followed) {
	delete(v.pools, p.name)
	p.clear()
	v.byIndex[p.index] = nil
}

// shown records that all events up to a revision were shown.
func (v *view) shown(revision int64) { v.revision = max(v.revision, revision) }

// sleep forgets all, and returns the revision up to which events were shown.
func (v *view) sleep() int64 {
	for _, p := range v.pools {
		v.forget(p)
	}
	v.listed = 0
	return v.revision
}

// restart forgets which pools are pending, and has all pools read, at a revision or a later one.
func (v *view) restart(revision int64) {
	v.revision, v.listed, v.latest = max(v.revision, revision), revision, max(v.latest, revision)
	clear(v.pending)
	for _, p := range v.pools {
		v.want(p)
	}
}

// want has a pool read, at the revision of the last event or a later one.
func (v *view) want(p *followed) { p.unread(v.latest) }

// wanted returns the pools to be read, by name.
func (v *view) wanted() (names []string) {
	for name, p := range v.pools {
		if !p.read {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// awaited returns those of some pools that are to be read, and were at a revision that is late enough.
func (v *view) awaited(names []string, revision int64) (all []*followed) {
	for _, name := range names {
		if p := v.pools[name]; p != nil && p.awaits(revision) {
			all = append(all, p)
		}
	}
	return all
}

// maxNamed is how many others are read at most because demands of a pool name them: who may write these can name any.
const maxNamed = 1000

// wantAll has the other pools read that the demands of a pool name which was read, and that are not known: those that are pending are
// read first, and a demand keeps one of its pools pending at least. Demands that are put later have an event in each of their pools.
func (v *view) wantAll(p *followed) {
	others := map[string]bool{}
	for _, key := range p.keys {
		if key.First != "" {
			others[key.First] = true
			continue
		}
		for name := range key.List[0].Pools { // all have the same
			others[name] = true
		}
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(others)), v.knows)
	for _, name := range names[:min(len(names), maxNamed)] {
		v.want(v.follow(name))
	}
}

// capacities returns what may be granted of all pools, by their index.
func (v *view) capacities() []admit.Capacity {
	all := make([]admit.Capacity, len(v.byIndex))
	for i, p := range v.byIndex {
		if p != nil {
			all[i] = p.capacity()
		}
	}
	return all
}

// putPending records the key that exists while a pool is pending, with revision 0 that it is gone.
func (v *view) putPending(key string, revision int64) (name string) {
	name = strings.TrimPrefix(key, v.keys.Pending(""))
	if v.pending[name] = revision; revision == 0 {
		delete(v.pending, name)
	}
	return name
}

// poolOf returns the pool of a key below pools/, and the key without what is before the name of its kind.
func (v *view) poolOf(key string) (name, rest string) {
	name, rest, _ = strings.Cut(strings.TrimPrefix(key, v.keys.Pools()), "/")
	return name, rest
}

// isNew records that an event has come, and reports whether it is not part of what was read.
func (v *view) isNew(key string, revision int64) bool {
	v.latest = max(v.latest, revision)
	if !strings.HasPrefix(key, v.keys.Pools()) {
		return revision > v.listed
	}
	name, _ := v.poolOf(key)
	p := v.pools[name]
	if p == nil {
		return revision > v.listed
	}
	return !p.read || revision > p.at
}

func isPool(name string) bool { return pool.ValidateName(name) == nil }

// reading reports whether there may be demands that are not known, as pools are to be read.
func (v *view) reading() bool {
	return slices.ContainsFunc(v.byIndex, func(p *followed) bool { return p != nil && !p.read })
}

// complete reports whether the view has all of its pools at one revision: else a demand of several pools may be known in
// part.
func (v *view) complete() bool {
	for _, p := range v.byIndex {
		if p != nil && (!p.read || p.at > v.revision) {
			return false
		}
	}
	return true
}

// knows reports whether the demands of a pool are known, or will be. It is true for what is no name of a pool.
func (v *view) knows(name string) bool {
	return v.pools[name] != nil || !isPool(name)
}
