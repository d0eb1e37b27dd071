// Package embed runs a real etcd server inside this process, for `berth dev`
// and for tests. Only what imports this package carries the server's code.
//
// # Nouns
//
// A [Server] is one member. It keeps its data in a data directory that it
// holds locked, and answers clients at its [Server.Endpoint]: berth's own
// [store.Client] as well as etcdctl. Several members become a cluster when each
// is given the same [Config.Members].
//
// # Life
//
//	Start ──▶ serving ──▶ Close ──▶ closed
//	  │          │
//	  └─ error   └─ Err: etcd has stopped by itself; Close it and leave
//
// [Start] returns once the member answers. [Server.Close] ends within
// [CloseTimeout], with connected clients as well as without; clients that are
// closed first end their requests in their own way, though, instead of being
// cut off.
//
// # Failure
//
// etcd ends its process when it can't write its data. Here it can't: the part
// of etcd that failed stops for good, and [Server.Err] returns why. What etcd had
// acknowledged before is on disk; the outcome of requests in flight is unknown, as
// after a crash.
//
// Fresh members compact their history every few minutes ([Config.CompactEvery]),
// since berth never asks for old revisions and etcd would otherwise keep all.
//
// [store.Client]: https://pkg.go.dev/github.com/berthhq/berth/internal/store#Client
package embed
