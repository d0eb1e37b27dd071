// Package store is berth's access to etcd, in one place: the client with its
// endpoints, the spelling of every key, the pieces transactions are made of,
// the codec of every value, the feed that turns a prefix into a view, and the
// guard that resolves writes whose response was lost. With a user, a client logs in
// once for all of its requests and endpoints.
//
// Nothing here makes decisions. The packages above build requests from the
// pieces, send them with a [Backend], and read the responses.
//
// # Who is authoritative
//
// etcd is, and nothing else. A view built from a [Feed] is always somewhat old;
// every write therefore carries compares that hold only if what the view said
// still matters.
//
// A client works with one cluster of etcd: see [Cluster]. No response of another one counts, and no
// request is sent to one. What was read, granted or held in a cluster that another one has replaced
// is void.
//
// # Unknown outcomes
//
// A write that ended without a response may still be applied later, whatever a
// read returns now. [OutcomeUnknown] distinguishes such errors from refusals. With
// a [Guard], an instance fences its earlier writes: they can no longer happen.
package store
