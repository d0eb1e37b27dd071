// Package house holds the rules of the house that a machine can see: which
// package may import which, what no file may do, how long a file may be. It is
// tests only. Each rule stands in a table with its reason; what it catches is
// shown beside it on small examples.
//
// A rule that is in the way is changed here, with a better reason, and not gone
// around.
package house
