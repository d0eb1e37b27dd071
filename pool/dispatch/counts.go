package dispatch

// Count is what a dispatcher counts.
type Count int

// Counts of a dispatcher.
const (
	Offered         Count = iota // claims that were offered slots by a key
	OfferedOwn                   // claims of its own instance that were offered slots in memory
	Refused                      // claims that were refused, since a pool that they need does not exist
	Declined                     // claims whose offer came to nothing
	Silent                       // offers keys that their owners have left alone
	WaitedForLoan                // claims that had to wait in a plan for slots that were lent to others
	PendingShort                 // pools that became pending again for want of free slots
	PendingReserved              // the same, since slots are reserved
	PendingFailed                // the same, since offers came to nothing twice
	PendingEnded                 // pools that were to stop being pending
	Advanced                     // advance offers
	Examined                     // demands that plans have decided about, one for each lane and offer
	numCounts
)

type counters [numCounts]int

func (c *counters) add(of Count) { c[of]++ }

// Count returns a count since the dispatcher began. It never becomes less.
func (d *Dispatcher) Count(c Count) int { return d.counts[c] }
