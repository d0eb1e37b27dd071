// Package cluster forms clusters of servers, and maintains their etcd or any other etcd.
//
// A server without data must not form a second cluster, or join a wrong one. It asks the other
// members of its configuration until one of these is true:
//
//   - One of them serves etcd: the server joins that cluster, and is added to it unless it is a
//     member already. See [Founding.Join].
//   - None of them has data: together they form a new cluster. See [Founding.Run].
//
// So if two of three members have lost their data, they never form a second cluster while the third
// member still has the data of the first one, or was restored from a snapshot.
package cluster
