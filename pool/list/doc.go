// Package list shows what etcd holds of pools in the layout 2: pools with their holders and waiters, claims and why they
// wait, and what should not be.
//
// A [State] is made of keys and values that were read at one revision, or that a watch has delivered. It is pure: it has
// no clock, goroutine or connection. A value that can't be read is named by its key, and closes its pool if it is that
// of its spec or of a block. A slot key holds its number whatever its value is. All else is shown.
//
// [Read] and [ReadPool] read a state from etcd, in pages. [Lists] answers the callers of an instance, which share what is
// read, together with what the instance knows of its own claims. A [Follower] has a state all the time.
package list
