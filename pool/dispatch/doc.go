// Package dispatch decides for the claims that wait: which of them may take which slots, and which instance decides.
// It consists of state machines without clock, connection or goroutine: they are shown the time, what etcd has
// answered and what its watch has shown, and return the next transaction and what has changed.
//
// One instance dispatches at a time, under a key in etcd, the role. [Succession] says for one instance whether it
// dispatches, and when it takes the role or gives it up. Whatever a dispatcher writes compares the revision of its
// role: so what an earlier dispatcher still sends has no effect.
//
// A [Dispatcher] follows the pools in which claims wait, and puts offers for their owners. An offer is advice: its owner
// commits it under compares of its own, as long as the offers key is there. What is offered is lent: no other owner is
// offered the same until the key is gone. How it is built:
//
//   - pool.go and view.go hold what etcd has, demand.go and lane.go the demands in their order, owner.go their owners;
//   - plan.go decides who gets offers, and pending.go which pools are pending;
//   - book.go holds the offers that are open, offers.go acts on their end, silence.go on owners that leave them alone;
//   - dispatcher.go records what is shown, and txn.go makes transactions and takes their answers.
package dispatch
