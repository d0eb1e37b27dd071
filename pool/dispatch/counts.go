package dispatch

// Count is what a dispatcher counts.
type Count int

// Counts of a dispatcher.
const (
	Offered         Count = iota // claims that were offered slots by a key
	OfferedOwn                   // claims of its own instance that were offered slots in memory
	Committed                    // claims that have taken what they were offered
	Declined                     // claims whose offer came to nothing
	Withdrawn                    // claims whose offer was taken back, or that have ended meanwhile
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

// Counts are how many there were of each [Count].
type Counts [numCounts]int

func (c *Counts) add(of Count) { c[of]++ }

// Add adds the counts of another dispatcher.
func (c *Counts) Add(other Counts) {
	for of, n := range other {
		c[of] += n
	}
}

// Counts returns what was counted since the dispatcher began. None becomes less.
func (d *Dispatcher) Counts() Counts { return d.counts }
