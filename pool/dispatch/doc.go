// Package dispatch decides for the claims that wait: which of them may take which slots, and which instance decides.
// It consists of state machines without clock, connection or goroutine: they are shown the time, what etcd has
// answered and what its watch has shown, and return the next transaction and what has changed.
//
// One instance dispatches at a time, under a key in etcd, the role. [Succession] says for one instance whether it
// dispatches, and when it takes the role or gives it up. Whatever a dispatcher writes compares the revision of its
// role: so what an earlier dispatcher still sends has no effect.
package dispatch
