// Package store is berth's plumbing to etcd, in one place: the client with its
// endpoints, the spelling of every key, the pieces transactions are made of,
// the codec of every value, the feed that turns a prefix into a view, and the
// guard that settles writes whose answer was lost. With a user, a client logs in
// once for all of its requests and endpoints.
//
// Nothing here decides anything. The packages above build requests from the
// pieces, hand them to a [Backend], and read the answers.
//
// # Who is authoritative
//
// etcd is, and nothing else. A view built from a [Feed] is always somewhat old;
// every write therefore carries compares that hold only if what the view said
// still matters.
//
// # In doubt
//
// A write that ended without an answer may still be applied later, whatever a
// read says now. [OutcomeUnknown] tells such errors from refusals, and [Guard] is how
// an instance makes sure that an older write of its own can no longer happen.
package store
