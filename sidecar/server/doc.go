// Package server is the HTTP server of berth's processes, without its endpoints: where
// it listens, who may use it, how requests are read and how events are streamed.
//
// # Nouns
//
//   - [Listeners] are a TCP address, a unix socket or both. A connection over the socket
//     knows the user at its other end ([PeerOf]).
//   - A [Handler] checks each request (host name, origin, token), reads its body into
//     memory, hands it to the endpoints, and logs and counts the answer.
//   - A [Server] serves a handler on listeners.
//   - A [Stream] writes server-sent events to one reader. A [Hub] hands events to
//     [Subscription]s.
//
// # Invariants
//
//   - An address that other hosts can reach needs TLS, and tokens or client certificates.
//   - A browser that a page of another site has sent is refused, and so is a request that
//     names a host that the server does not know.
//   - An endpoint sees a request only after its whole body has arrived. From then on a
//     read from the connection can only say that the client has left.
//   - No user, address or identity can have all connections, or all memory for bodies. What callers
//     cause is logged at a bounded rate.
//   - [IfUnread] reports a client that has left without reading its answer, once.
//   - A slow reader of a stream does not delay others: it is notified that it missed events, or
//     its own source waits.
//   - The package knows none of the wire types: a refusal is an error, which the owner of
//     the handler writes ([Handler.Refuse]).
package server
