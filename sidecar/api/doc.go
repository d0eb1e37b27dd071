// Package api has the wire types of the HTTP API, their OpenAPI document, and its errors.
//
// # Nouns
//
//   - A record is what the API answers about a pool, a claim, a run, a step or a host: those
//     of internal/inspect, which also words them.
//   - A request is the body of a call; a [Decoder] reads it.
//   - A list is answered in pages; a cursor is a place in it, and stays valid while what is
//     listed changes.
//   - A [Problem] is what every error is answered as: problem+json with a stable code. The
//     codes and their statuses are those of internal/problem.
//   - The OpenAPI document describes both, and is docs/openapi.yaml: [Config] begins it, the
//     endpoints register their operations, and [Finish] completes it.
//
// # Invariants
//
//   - A request is one JSON object in UTF-8, of fields that are known, in just their
//     spelling, each given once. Everything else is refused, and the problem names the field.
//   - An answer may have fields that the document does not have, so that a client that was
//     generated from it keeps working when one is added.
//   - Durations are strings ("30s"), instants are RFC 3339, validity is in milliseconds from
//     the sending of the request.
package api
