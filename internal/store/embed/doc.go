// Package embed runs a real etcd server inside this process, for `berth server`, `berth dev` and
// tests. Only programs that import this package contain the server's code.
//
// # Terms
//
// A [Server] is one member. It locks its data directory, and serves clients at its
// [Server.Endpoint]: berth's own [store.Client] as well as etcdctl. Several members with the same
// [Config.Members] form a cluster.
//
// Its unix sockets in the data directory ([SocketPath], and one for etcd's HTTP server) are only for the
// user of the process and [Config.SocketGroup]: who can connect to a socket for clients can read and
// change everything.
//
// # Life cycle
//
//	Start ──▶ serving ──▶ Close ──▶ closed
//	  │          │
//	  └─ error └─ Err: etcd has failed; call Close, and exit
//
// [Start] returns once the member answers. [Server.Close] returns within [CloseTimeout], even while
// clients are connected; it then cuts off their requests. Close the clients first to avoid that.
//
// # Failures
//
// When etcd can't write its data, it normally ends its process. In this package, only the part of
// etcd that failed stops for good, and [Server.Err] reports why. Writes that etcd acknowledged
// before are on disk; the outcome of requests in flight is unknown, as after a crash.
//
// Members compact their history every few minutes ([Config.CompactEvery]): berth never reads old
// revisions, and etcd would keep them all.
//
// [store.Client]: https://pkg.go.dev/github.com/berthhq/berth/internal/store#Client
package embed
