package owner

// How says how a claim gets its slots.
type How string

// The ways.
const (
	Direct    How = "direct"     // it takes free slots without waiting
	InPlace   How = "in_place"   // it takes over, without waiting, those of a claim that its instance releases in the same transaction
	Offered   How = "offered"    // it waited, and takes what the dispatcher offers
	HandedOn  How = "handed_on"  // it waited, and takes over those of a claim that its instance releases in the same transaction
	Served    How = "served"     // it waited, and its instance takes the slots without a dispatcher
	TakenOver How = "taken_over" // it takes over a claim of another instance
)

// Hows are all ways.
func Hows() []How { return []How{Direct, InPlace, Offered, HandedOn, Served, TakenOver} }

// how returns how an item gets its claim its slots.
func (it *item) how() How {
	c := it.claim
	switch {
	case c.transfer != nil:
		return TakenOver
	case it.from != nil && c.demand != nil:
		return HandedOn
	case it.from != nil:
		return InPlace
	case it.offer != nil:
		return Offered
	case c.demand != nil:
		return Served
	}
	return Direct
}

// Counts are of all claims of an owner. None of them becomes less.
type Counts struct {
	// Granted are claims, and Conflicts those that were not granted as they were tried, since another instance had changed a key
	// before: they are tried again.
	Granted, Conflicts map[How]int
	// Queued are claims that were put into the wait queue.
	Queued map[Why]int
	// Sizes are those of the transactions that take and release slots: how many parts each has.
	Sizes Sizes
}

// Sizes are how many transactions there were, by their sizes.
type Sizes struct {
	// UpTo are those of up to 1, 2, 4 parts and so on. Count and Sum are of all.
	UpTo       [8]int
	Count, Sum int
}

func newCounts() *Counts {
	return &Counts{Granted: map[How]int{}, Conflicts: map[How]int{}, Queued: map[Why]int{}}
}

func (c *Counts) granted(how How)  { c.Granted[how]++ }
func (c *Counts) conflict(how How) { c.Conflicts[how]++ }
func (c *Counts) queued(why Why)   { c.Queued[why]++ }

// sent counts a transaction of n parts.
func (c *Counts) sent(n int) {
	s := &c.Sizes
	s.Count++
	s.Sum += n
	for i := range s.UpTo {
		if n <= 1<<i {
			s.UpTo[i]++
		}
	}
}

// Counts returns what it has counted.
func (o *Owner) Counts() *Counts { return o.outcomes.counts }
