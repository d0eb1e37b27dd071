package owner

import (
	"maps"
	"slices"
	"strconv"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// maxRaces is how many races a claim loses before it has to wait for its turn.
	maxRaces = 4
	// readRaces is how many it loses before its pools are read: what is remembered of them is of little use then.
	readRaces = 2
)

// Claim is a claim of this instance.
type Claim struct {
	id      string
	needs   map[string]int
	pools   []string        // sorted
	blocks  map[string]bool // pools of which it takes blocks
	kind    string          // the same for all claims that can take over each other's keys; "" if none can
	spelled wire.Spelled
	lease   store.LeaseID

	arrived uint64 // reads that had begun when it came, or had to be read for
	races   int
	alone   bool // it is committed or released without another claim
	keys    map[string]slots.Held
	main    wire.Ref
	fence   int64
}

// NewClaim returns a claim for a valid request, on a lease on which its keys are reserved. The request must not be changed.
func NewClaim(r *pool.Request, lease store.LeaseID) *Claim {
	c := &Claim{
		id: r.ID, needs: r.Slots, pools: slices.Sorted(maps.Keys(r.Slots)), blocks: slots.ByBlocks(r.Slots),
		spelled: wire.Spell(r), lease: lease,
	}
	if len(c.blocks) == 0 {
		for _, p := range c.pools {
			c.kind += p + "=" + strconv.Itoa(c.needs[p]) + " "
		}
	}
	return c
}

// Fence returns the fencing token of a claim that was granted.
func (c *Claim) Fence() store.Fence { return store.FenceAt(c.fence) }
