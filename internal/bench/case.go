package bench

import (
	"fmt"
	"time"

	"github.com/berthhq/berth"
)

// The doors that a case can go through.
const (
	DoorGo   = "go"
	DoorHTTP = "http"
)

// The kinds of load of claims.
const (
	uncontended = "uncontended" // slots for all
	contended   = "contended"   // slots for an eighth of the clients, and no hold
	full        = "full"        // the same, with a hold
	handOver    = "handover"    // one slot, and a hold that leaves etcd idle
	bigLimit    = "limit"       // uncontended, of a pool with very many slots
	memory      = "memory"      // a sidecar that holds many claims
	history     = "history"     // uncontended, for very many claims
)

const (
	// ampleLimit is more than there are clients, and no more than pools usually
	// have; hugeLimit is what is compared with it.
	ampleLimit = 1_000
	hugeLimit  = 100_000
	// clientsPerSlot is how contended a contended pool is.
	clientsPerSlot = 8
	// fullHold and handOverHold are the holds of the cases of those kinds.
	fullHold     = 5 * time.Millisecond
	handOverHold = 20 * time.Millisecond
	// handOverStretch makes the rounds of a hand-over longer: there are only 50
	// in a second.
	handOverStretch = 4
)

// Case is one load.
type Case struct {
	// Name tells kind, door, clients, hosts and pools, or what there is of them:
	// "uncontended/go/64c/4h/1p", "submit/64c", "idle/100000q", "mixed/4w/10r".
	Name    string `json:"case"`
	Kind    string `json:"kind"`
	Door    string `json:"door,omitempty"`
	Clients int    `json:"clients,omitempty"`
	Hosts   int    `json:"hosts,omitempty"`
	Pools   int    `json:"pools,omitempty"`
	Limit   int    `json:"limit,omitempty"`
	// Queued is how many runs are in the queue.
	Queued int `json:"queued,omitempty"`
	// Workers run so many Steps in each load, each worker up to Room at a time.
	Workers int `json:"workers,omitempty"`
	Room    int `json:"concurrency,omitempty"`
	Steps   int `json:"steps,omitempty"`

	hold    time.Duration
	stretch int // how much longer its rounds are
}

func newCase(kind, door string, clients, hosts, pools, limit int) Case {
	return Case{
		Name: fmt.Sprintf("%s/%s/%dc/%dh/%dp", kind, door, clients, hosts, pools),
		Kind: kind, Door: door, Clients: clients, Hosts: hosts, Pools: pools, Limit: limit,
		stretch: 1,
	}
}

// slots are those that the clients fight for; 0 if there are enough.
func (c Case) slots() int {
	if c.Limit < c.Clients {
		return c.Limit
	}
	return 0
}

// pools names the pools of a case.
func (c Case) pools() []string {
	names := make([]string, c.Pools)
	for i := range names {
		names[i] = fmt.Sprintf("bench-%d", i+1)
	}
	return names
}

// claim is what each client claims: one slot of each pool.
func (c Case) claim() berth.Slots {
	slots := berth.Slots{}
	for _, name := range c.pools() {
		slots[name] = 1
	}
	return slots
}

// allCases returns what there is to measure, in the order in which it is done.
func (c *Config) allCases() []Case {
	switch c.Suite {
	case Queue:
		return c.queueCases()
	case Steps:
		return c.stepCases()
	}
	return c.claimCases()
}

func (c *Config) claimCases() []Case {
	var all []Case
	for _, door := range []string{DoorGo, DoorHTTP} {
		for _, kind := range []string{uncontended, contended} {
			all = append(all, c.matrix(kind, door)...)
		}
	}
	all = append(all,
		fullCase(64), fullCase(256),
		handOverCase(1), handOverCase(4),
		newCase(bigLimit, DoorGo, 64, 1, 1, hugeLimit),
		newCase(memory, DoorHTTP, 64, 1, 1, hugeLimit),
	)
	if c.History > 0 {
		all = append(all, newCase(history, DoorGo, 256, 1, 1, ampleLimit))
	}
	return all
}

// matrix returns the cases of a kind for all numbers of clients, hosts and
// pools, as far as each host has a client, and each slot enough.
func (c *Config) matrix(kind, door string) []Case {
	var all []Case
	for _, clients := range c.Clients {
		for _, hosts := range c.Hosts {
			limit := max(ampleLimit, clients)
			if kind == contended {
				limit = clients / clientsPerSlot
			}
			if hosts > clients || limit == 0 {
				continue
			}
			for pools := 1; pools <= 2; pools++ {
				all = append(all, newCase(kind, door, clients, hosts, pools, limit))
			}
		}
	}
	return all
}

func fullCase(clients int) Case {
	c := newCase(full, DoorGo, clients, 1, 1, clients/clientsPerSlot)
	c.hold = fullHold
	return c
}

func handOverCase(hosts int) Case {
	c := newCase(handOver, DoorGo, 8, hosts, 1, 1)
	c.hold, c.stretch = handOverHold, handOverStretch
	return c
}

// Plan returns the cases that a configuration chooses, in order, or what is
// wrong with it.
func Plan(cfg Config) ([]Case, error) {
	err := cfg.fill()
	return cfg.cases(), err
}

// cases returns those that are to be measured.
func (c *Config) cases() []Case {
	var chosen []Case
	for _, cs := range c.allCases() {
		switch {
		case c.Cases != nil && !c.Cases.MatchString(cs.Name):
		case c.TargetsOnly && !hasTarget(cs.Name) && cs.Kind != history:
		case c.Sidecars == nil && cs.Door == DoorHTTP:
		default:
			chosen = append(chosen, cs)
		}
	}
	return chosen
}
