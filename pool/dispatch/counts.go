package dispatch

// Count is what a dispatcher counts.
type Count int

// Counts of a dispatcher: claims that were offered slots, also to its own instance; that were refused; whose offer came to
// nothing; owners that were silent; claims whose offer waited for slots that were lent to others; pools that became pending
// for want of free slots, because slots are reserved, and because offers came to nothing twice; and pools that stopped
// being pending.
const (
	Offered Count = iota
	OfferedOwn
	Refused
	Declined
	Silent
	WaitedForLoan
	PendingShort
	PendingReserved
	PendingFailed
	PendingEnded
	Advanced
	Examined
	numCounts
)

type counters [numCounts]int

func (c *counters) add(of Count) { c[of]++ }

// Count returns a count since the dispatcher began. It never becomes less.
func (d *Dispatcher) Count(c Count) int { return d.counts[c] }
