package e2e

import "fmt"

// Rule names a promise.
type Rule string

// The rules that a [History] checks.
const (
	// Capacity: no holder is added beyond a limit, or to a pool that grants
	// nothing, and no number is held twice.
	Capacity Rule = "capacity"
	// Whole: a claim has all its keys or none.
	Whole Rule = "whole"
	// Leased: slots and demands end by themselves.
	Leased Rule = "leased"
	// Fence: fencing tokens grow, and holders get the right one.
	Fence Rule = "fence"
	// Queued: a demand is in all of its pools or in none.
	Queued Rule = "wait queue"
	// Order: slots of a pending pool go to those who have a right to them, and no claim of a higher rank that needs no
	// more of the same pools is passed.
	Order Rule = "order"
	// Readable: every key and value can be read.
	Readable Rule = "readable"
	// Ordered: the watch does not go back.
	Ordered Rule = "ordered"
)

// Violation is a revision at which a promise was broken.
type Violation struct {
	Revision int64
	Rule     Rule
	Text     string
}

// String names the revision, the rule and what broke it.
func (v Violation) String() string {
	return fmt.Sprintf("revision %d: %s: %s", v.Revision, v.Rule, v.Text)
}
