// Package storetest is a stand-in for etcd in tests: exact in what berth uses of
// it, deterministic, and fast enough for millions of small transactions.
//
// # Nouns
//
//   - [Etcd] is the store itself: keys, revisions, leases and the log of every
//     event. It is synchronous. It starts no goroutine, reads no clock and draws
//     no random number; time passes in [Etcd.Advance] alone. The same calls in
//     the same order give the same answers. It is not safe for use by several
//     goroutines.
//   - [Follower] is one watch on an Etcd from which a test pulls what it wants
//     delivered, when it wants it.
//   - [Backend] is one client of an Etcd as a [store.Backend]: safe for use by
//     several goroutines, with watches that push, and with faults to order.
//     [Backend.Peer] makes further clients of the same Etcd, each with faults of
//     its own.
//
// # Who is authoritative
//
// Real etcd, version 3.7. A test runs random histories and a table of corner
// cases against both and compares answers, errors, keys and events. What berth
// does not use (sorted ranges, filters by the revision of creation, previous values, ignore flags)
// is refused with [ErrUnsupported] rather than answered wrongly.
//
// # What stays true
//
//   - A revision rises by one for each transaction that wrote something and for
//     each lease that took keys with it, and for nothing else.
//   - A refused transaction changed nothing.
//   - What an Etcd returns belongs to the caller: changing it does not change
//     the store. What [Etcd.OnCommit], [Etcd.History] and [Etcd.All] show is the
//     store's own, and must not be changed.
//
// # Where it differs from etcd on purpose
//
// A lease ends at the very end of its time, or [Options.ExpiryLag] later, where
// etcd takes up to half a second more. A [Follower] that has fallen behind a
// compaction always fails, where etcd may still have its events in a buffer.
//
// A delete from a key on (range end zero) and a put may meet in one transaction.
// Etcd then loses the key if just that revision is compacted, and ends itself
// when the key is read. The stand-in keeps the key.
package storetest
