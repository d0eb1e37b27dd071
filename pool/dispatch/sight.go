package dispatch

import (
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/pool/wire"
)

// presence is what is known of the role's key.
type presence int

const (
	unseen presence = iota
	absent
	unreadable
	present
)

// sight is what an instance has seen of the role and of the mark, by polls and watches. What was true at an earlier
// revision never replaces what was true later.
type sight struct {
	state    presence
	role     wire.Role // if it is present
	revision int64     // at which the role was put
	at       int64     // the last revision at which the role was as it is
	since    time.Duration

	mark    int64 // the revision at which the mark was put; 0 is none
	markAt  int64
	demands bool          // that the mark shows
	same    time.Duration // since when the role is the same, and no mark was put

	polled time.Duration // when the last poll was sent that has shown both as they are
}

// seeRole records the role's key at a revision, nil if it was absent. It reports whether it has changed.
func (s *sight) seeRole(now time.Duration, at int64, key string, kv *mvccpb.KeyValue) bool {
	if at < s.at {
		return false
	}
	s.at = at
	revision := int64(0)
	if kv != nil {
		revision = kv.ModRevision
	}
	if s.state != unseen && revision == s.revision {
		return false
	}
	s.state, s.role, s.revision = absent, wire.Role{}, revision
	s.since, s.same = now, now
	if kv == nil {
		return true
	}
	role, err := wire.DecodeRole(key, kv.Value)
	s.state, s.role = present, role
	if err != nil {
		s.state, s.role = unreadable, wire.Role{}
	}
	return true
}

// seeMark records the mark's key at a revision, nil if it was absent. A mark that can't be read shows demands, so that
// it has to be put again each second. A mark that is deleted is no sign of life.
func (s *sight) seeMark(now time.Duration, at int64, key string, kv *mvccpb.KeyValue) {
	if at < s.markAt {
		return
	}
	s.markAt = at
	if kv == nil {
		s.mark, s.demands = 0, false
		return
	}
	m, err := wire.DecodeMark(key, kv.Value)
	if s.demands = m.Demands || err != nil; s.mark != kv.ModRevision {
		s.mark, s.same = kv.ModRevision, now
	}
}

// confirm records that a poll that was sent at a time has shown what is known now. Without one at the end of the patience,
// each time in which etcd stands still would look like silence: the dispatcher puts the mark when etcd goes on.
func (s *sight) confirm(sent time.Duration) { s.polled = max(s.polled, sent) }

// is reports whether the role is that of an instance.
func (s *sight) is(host, instance string) bool {
	return s.state == present && s.role.Host == host && s.role.Instance == instance
}

// vacant returns since when nobody dispatches, by what the role says itself: it is absent, or its holder ends.
func (s *sight) vacant() (since time.Duration, ok bool) {
	return s.since, s.state == absent || s.state == present && s.role.Ends
}

// silence returns since when there is no sign of life that an instance would see. It has demands since a time, or
// has none and follows the mark of others as a standby.
//
// A mark that shows no demands need not be put again before the dispatcher knows of a demand.
func (s *sight) silence(demands bool, since time.Duration, standby bool) (from time.Duration, ok bool) {
	switch {
	case s.state != present && s.state != unreadable:
		return 0, false
	case s.demands:
		return s.same, demands || standby
	}
	return max(s.same, since), demands
}
