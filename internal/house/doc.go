// Package house holds the rules of the house that a machine can see: which package may
// import which, what no file may do, and limits of what makes code hard. It is tests only.
// Each rule is in a table with its reason; small examples show what it catches.
//
// A rule that is in the way is changed here, with a better reason, and not gone
// around.
package house
