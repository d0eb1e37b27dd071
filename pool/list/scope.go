package list

import (
	"maps"

	"github.com/berthhq/berth/internal/store"
)

// newOf returns a state of some pools without keys, at a revision. Others can be added.
func newOf(keys store.Keys, revision int64, pools ...string) *State {
	s := New(keys, revision)
	s.only = map[string]bool{}
	for _, name := range pools {
		s.include(name)
	}
	return s
}

// include records that a pool was read.
func (s *State) include(name string) { s.only[name] = true }

// knows reports whether a pool was read.
func (s *State) knows(name string) bool { return s.only == nil || s.only[name] }

// unread returns those of some pools that were not read, by name.
func (s *State) unread(names map[string]bool) []string {
	maps.DeleteFunc(names, func(name string, _ bool) bool { return s.knows(name) })
	return sortedNames(names)
}

// stop records whether demands are left that are not read, and returns it.
func (s *State) stop(left bool) bool {
	s.part = s.part || left
	return left
}

// has reports whether the pools of a demand were read; nil is no demand.
func (s *State) has(d *OwnDemand) bool {
	if d == nil {
		return true
	}
	for name := range d.Pools {
		if !s.knows(name) {
			return false
		}
	}
	return true
}
