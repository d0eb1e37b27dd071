package bench

import (
	"fmt"
	"time"
)

// The kinds of load of the queue.
const (
	submit   = "submit"    // runs are put into it
	admit    = "admit"     // they are, there is room, and an executor waits
	planIdle = "plan/idle" // plans where nothing has changed
	planLast = "plan/last" // where the last run of the queue may go
	planMany = "plan/many" // where very many may
	leading  = "leader"    // a coordinator that leads
)

const (
	// admitHold leaves the coordinator idle between two runs, and admitStretch makes
	// rounds longer: there are fewer than 50 in a second.
	admitHold    = 20 * time.Millisecond
	admitStretch = 4
)

func (c *Config) queueCases() []Case {
	var all []Case
	for _, n := range c.Clients {
		all = append(all, Case{Name: fmt.Sprintf("%s/%dc", submit, n), Kind: submit, Clients: n, stretch: 1})
	}
	all = append(all, Case{Name: admit + "/1c", Kind: admit, Clients: 1, hold: admitHold, stretch: admitStretch})
	for _, kind := range []string{planIdle, planLast, planMany, leading} {
		all = append(all, Case{Name: fmt.Sprintf("%s/%dq", kind, c.Queued), Kind: kind, Queued: c.Queued})
	}
	return all
}
