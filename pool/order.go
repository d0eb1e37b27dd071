package pool

import (
	"cmp"
	"fmt"

	"github.com/berthhq/berth/internal/problem"
)

// Order is a waiter's place in line. It is the same in every pool of its claim,
// which is what keeps claims of several pools free of deadlock, and no clock is
// part of it.
type Order struct {
	// Priority of the claim; higher goes first.
	Priority int
	// Since is the revision at which the claim was found not to fit.
	Since int64
	// Claim is the claim's id.
	Claim string
	// By tells instances apart, so that claims of one id that wait on two of them are two
	// waiters: a hash of the instance's name.
	By uint32
}

// Compare ranks two orders by, in this order: higher priority, earlier
// revision, claim id, instance.
func (o Order) Compare(p Order) int {
	return cmp.Or(
		cmp.Compare(p.Priority, o.Priority),
		cmp.Compare(o.Since, p.Since),
		cmp.Compare(o.Claim, p.Claim),
		cmp.Compare(o.By, p.By),
	)
}

// The widths of the parts of an order's text.
const (
	priorityWidth = 4  // of MaxPriority - priority: 0000 to 2000
	sinceWidth    = 16 // of the revision in hexadecimal
	orderWidth    = priorityWidth + 1 + sinceWidth + 1
	byWidth       = 8 // of the instance in hexadecimal
)

// byMark ends the claim's id: it ranks before all that an id can go on with.
const byMark = '+'

// String is the last part of the waiter's key: sorted as text it ranks as
// Compare does.
func (o Order) String() string {
	return fmt.Sprintf("%0*d-%0*x-%s%c%0*x", priorityWidth, MaxPriority-o.Priority, sinceWidth, uint64(o.Since), o.Claim, byMark, byWidth, o.By)
}

// ParseOrder reads what String wrote, and nothing else.
func ParseOrder(s string) (Order, error) {
	if o, ok := parseOrder(s); ok {
		return o, nil
	}
	return Order{}, fmt.Errorf("%q is no place in a line", problem.Clip(s))
}

func parseOrder(s string) (Order, bool) {
	end := len(s) - byWidth - 1 // of the claim's id
	if end <= orderWidth || s[priorityWidth] != '-' || s[orderWidth-1] != '-' || s[end] != byMark {
		return Order{}, false
	}
	inverted, okP := parseDigits(s[:priorityWidth], 10)
	since, okS := parseDigits(s[priorityWidth+1:orderWidth-1], 16)
	by, okB := parseDigits(s[end+1:], 16)
	o := Order{Priority: MaxPriority - int(inverted), Since: since, Claim: s[orderWidth:end], By: uint32(by)}
	return o, okP && okS && okB && since >= 0 && o.Priority >= MinPriority && isClaimID(o.Claim)
}

// parseDigits reads a number of digits and lower-case letters only.
func parseDigits(s string, base int64) (n int64, ok bool) {
	for i := range len(s) {
		d := int64(s[i] - '0')
		if 'a' <= s[i] && s[i] <= 'f' {
			d = int64(s[i]-'a') + 10
		}
		if s[i] < '0' || '9' < s[i] && s[i] < 'a' || d >= base {
			return 0, false
		}
		n = n*base + d
	}
	return n, true
}
