package storetest

import (
	"github.com/berthhq/berth/internal/store"
)

// Follower is one watch on an [Etcd]. It remembers how far it has read; what it
// has not read yet waits, however long.
type Follower struct {
	etcd  *Etcd
	keys  store.KeyRange
	start int64 // 0 for a watch from now on
	// Nothing from next on was read. Revisions that don't touch the range need
	// no reading.
	next int64
	// behind: a compaction took what should be read next.
	behind, failed bool
	// empty: etcd refuses a watch of a range that has no key.
	empty bool
}

// Follow starts a watch of a range of keys, from revision from on. 0 is from now
// on.
func (e *Etcd) Follow(keys store.KeyRange, from int64) *Follower {
	if keys.Key == "" {
		keys.Key = "\x00" // as etcd has it for watches
	}
	f := &Follower{etcd: e, keys: keys, start: from, next: from}
	f.empty = keys.End != "" && keys.End != "\x00" && keys.End <= keys.Key
	if from == 0 {
		f.next = e.rev + 1
	}
	f.behind = f.next < max(0, e.compacted)
	return f
}

// Next reads up to limit revisions that touch the range and returns their
// events as one message; false if there are none. A revision is never split. An
// error in the message is the end: Next returns false ever after.
func (f *Follower) Next(limit int) (store.WatchMessage, bool) {
	var m store.WatchMessage
	for ; limit > 0 && f.pending(); limit-- {
		if f.empty {
			f.failed = true
			return store.WatchMessage{Err: errWatchEmpty}, true
		}
		if f.behind {
			f.failed = true
			return store.WatchMessage{Err: errWatchCompact}, true
		}
		r := f.etcd.from(f.next)[0]
		evs := eventsIn(r.Events, f.keys)
		if m.Events == nil {
			m.Events = evs
		} else {
			m.Events = append(m.Events, evs...)
		}
		m.Revision = r.Rev
		f.next = r.Rev + 1
	}
	return m, m.Events != nil
}

// Progress returns the message that answers a request for progress, or false
// where etcd keeps silent: while there is something to read, and while the
// revision that the watch was opened at has not come yet. A watch opened at the
// revision after the last one gets no progress until the next write.
func (f *Follower) Progress() (store.WatchMessage, bool) {
	if f.failed || f.pending() || f.etcd.rev < f.start {
		return store.WatchMessage{}, false
	}
	return store.WatchMessage{Revision: f.etcd.rev}, true
}

// Lag returns how many revisions wait from the first one on that touches the
// range; 0 if there is nothing to read.
func (f *Follower) Lag() int64 {
	if !f.pending() {
		return 0
	}
	return f.etcd.rev + 1 - f.next
}

// pending reports whether events, or an error, wait to be read. It moves next to
// the first revision that touches the range.
func (f *Follower) pending() bool {
	if f.next < min(f.etcd.opts.Revision, f.etcd.compacted) {
		f.behind = true // the store was restored
	}
	if f.failed || f.behind || f.empty {
		return !f.failed
	}
	for _, r := range f.etcd.from(f.next) {
		if touches(r, f.keys) {
			f.behind = f.next < f.etcd.compacted
			return true
		}
		f.next = r.Rev + 1
	}
	return false
}

func touches(r Revision, keys store.KeyRange) bool {
	for _, ev := range r.Events {
		if keys.Contains(ev.Kv.Key) {
			return true
		}
	}
	return false
}
