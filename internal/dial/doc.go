// Package dial knows why connections to the addresses of etcd fail: what speaks there instead, and which
// certificate is not accepted, here or by etcd. The errors of gRPC do not say so, or not in words that a
// user can act on, and do not distinguish what waiting can end.
package dial
