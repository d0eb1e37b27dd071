// Package client is the Go client of the HTTP API of a sidecar.
//
// # Nouns
//
//   - A [Client] calls one sidecar, over TCP, TLS or a unix socket. Requests and answers are
//     those of package api, and its errors are problems of internal/problem.
//
// # Invariants
//
//   - Requests can be sent again: those that create something carry an id, which the client
//     makes up if the caller does not.
//   - What is valid for some time counts from when the request was sent, by a clock that
//     counts through suspend.
//   - A stream that is silent for longer than two heartbeats counts as broken, and is opened
//     again where it can be resumed.
package client
