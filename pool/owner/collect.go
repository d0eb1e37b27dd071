package owner

import (
	"time"

	"github.com/berthhq/berth/pool/wire"
)

// slowWait is the time in the wait queue from which on demands are collected for collectFor before they are put: who waits
// for long loses little by it, and etcd has fewer keys to put.
const (
	slowWait   = 80 * time.Millisecond
	collectFor = 20 * time.Millisecond
)

// collecting says whether more demands are waited for before some are put.
type collecting struct {
	waited time.Duration // by the claim that was granted last
	until  time.Duration // when demands are put; 0 if they are not collected
}

// served records for how long a claim has waited that was granted.
func (c *collecting) served(waited time.Duration) { c.waited = waited }

// on reports whether more demands are waited for before so many are put.
func (c *collecting) on(fresh int, now time.Duration) bool {
	switch {
	case fresh == 0 || c.waited < slowWait || fresh >= wire.MaxDemands:
		c.until = 0
	case c.until == 0:
		c.until = now + collectFor
	case now >= c.until:
		c.until = 0
	}
	return c.until > 0
}
