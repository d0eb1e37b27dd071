// Package access decides who may do what.
//
// # Nouns
//
//   - An [Identity] is who sends a request, as it was authenticated: a user of the host, a
//     token, a client certificate, or none of them.
//   - A [Role] is what an identity may do, and a [Grant] is a role for some pools or queues.
//   - A [Policy] gives grants to identities. It is made of rules, each with a subject.
//   - A [Need] is what an operation requires. [Needs] is the one table of them.
//   - A [Token] is a named secret, of which only a hash is kept.
//
// # Invariants
//
//   - Grants are additive: no rule takes away what another gives.
//   - An identity is never what the sender of a request says of itself.
//   - A request without an identity is refused whatever the policy says of others: the zero
//     [Identity] may do nothing.
package access
