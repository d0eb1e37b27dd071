package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
)

// The APIs that a case can use.
const (
	GoAPI   = "go"
	HTTPAPI = "http"
)

// The kinds of load.
const (
	uncontended = "uncontended" // slots for all
	contended   = "contended"   // slots for an eighth of the clients, and no hold
	full        = "full"        // the same, with a hold
	uneven      = "uneven"      // the same as full, of hosts with different numbers of clients
	transfer    = "transfer"    // one slot, and a hold that leaves etcd idle
	bigLimit    = "limit"       // uncontended, of a pool with very many slots
	memory      = "memory"      // a sidecar that holds many claims
	history     = "history"     // uncontended, for very many claims
)

const (
	// ampleLimit is larger than the number of clients, and a usual limit for a pool; hugeLimit is
	// compared with it.
	ampleLimit = 1_000
	hugeLimit  = 100_000
	// clientsPerSlot is how contended a contended pool is.
	clientsPerSlot = 8
	// fullHold and transferHold are the holds of the cases of those kinds.
	fullHold     = 5 * time.Millisecond
	transferHold = 20 * time.Millisecond
	// transferFactor makes the rounds of a transfer longer: there are only 50
	// transfers in a second. unevenFactor does so where the longest wait is in question.
	transferFactor, unevenFactor = 4, 4
)

// unevenClients are how many clients each host has in the case of that kind.
var unevenClients = []int{40, 16, 6, 2}

// Case is one load.
type Case struct {
	// Name states kind, API, clients, hosts and pools: "uncontended/go/64c/4h/1p".
	Name    string `json:"case"`
	Kind    string `json:"kind"`
	API     string `json:"api,omitempty"`
	Clients int    `json:"clients,omitempty"`
	Hosts   int    `json:"hosts,omitempty"`
	Pools   int    `json:"pools,omitempty"`
	Limit   int    `json:"limit,omitempty"`

	// Hold is how long each claim is held.
	Hold time.Duration `json:"-"`
	// factor is how many times longer than usual its rounds are.
	factor int
}

func newCase(kind, api string, clients, hosts, pools, limit int) Case {
	return Case{
		Name: fmt.Sprintf("%s/%s/%dc/%dh/%dp", kind, api, clients, hosts, pools),
		Kind: kind, API: api, Clients: clients, Hosts: hosts, Pools: pools, Limit: limit,
		factor: 1,
	}
}

// slots is the number of slots of a pool that is full, 0 of one with a slot for each
// client.
func (c Case) slots() int {
	if c.Limit < c.Clients {
		return c.Limit
	}
	return 0
}

// host returns which host a client is on.
func (c Case) host(client int) int {
	if c.Kind != uneven {
		return client % c.Hosts
	}
	for host, n := range unevenClients {
		if client -= n; client < 0 {
			return host
		}
	}
	return 0
}

// fairWait is the longest wait of a client if the slots pass from one client to the next in turn.
func (c Case) fairWait() time.Duration {
	return c.Hold * time.Duration(c.Clients-1) / time.Duration(c.Limit)
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
func (c Case) claim() instance.Slots {
	slots := instance.Slots{}
	for _, name := range c.pools() {
		slots[name] = 1
	}
	return slots
}

// mainCases are those that [Config].Quick measures: one for each figure that
// e2e/bench has a target for.
var mainCases = []string{
	"uncontended/go/1c/1h/1p", "uncontended/go/64c/1h/1p", "uncontended/go/256c/1h/1p",
	"uncontended/go/64c/4h/1p", "uncontended/go/256c/4h/1p", "uncontended/http/64c/1h/1p",
	"contended/go/64c/1h/1p", "contended/go/256c/1h/1p", "contended/go/64c/4h/1p", "contended/go/256c/4h/1p",
	"full/go/64c/1h/1p", "full/go/256c/1h/1p", "full/go/64c/4h/1p", "full/go/256c/4h/1p",
	"transfer/go/8c/1h/1p", "transfer/go/8c/4h/1p",
	"limit/go/64c/1h/1p", "memory/http/64c/1h/1p", "history/go/256c/1h/1p",
}

// Rows returns a row without figures for each case of claims that the configuration
// selects, in the order in which they are measured. It is an error if there are none.
func (c *Config) Rows() ([]*Row, error) {
	if err := c.Fill(); err != nil {
		return nil, err
	}
	var rows []*Row
	for _, cs := range c.cases() {
		if c.Selects(cs.Name) && (!c.Quick || slices.Contains(mainCases, cs.Name)) && (c.Sidecars != nil || cs.API != HTTPAPI) {
			rows = append(rows, &Row{Case: cs})
		}
	}
	if len(rows) == 0 {
		return nil, ErrNoCase
	}
	return rows, nil
}

// ErrNoCase means that a configuration selects no case.
var ErrNoCase = problem.Field("cases", "no case has a name that matches")

// cases returns all cases of claims.
func (c *Config) cases() []Case {
	var all []Case
	for _, api := range []string{GoAPI, HTTPAPI} {
		for _, kind := range []string{uncontended, contended} {
			all = append(all, c.matrix(kind, api)...)
		}
	}
	all = append(all,
		fullCase(GoAPI, 64, 1), fullCase(GoAPI, 256, 1), fullCase(GoAPI, 64, 4), fullCase(GoAPI, 256, 4),
		fullCase(HTTPAPI, 64, 4), fullCase(HTTPAPI, 256, 4), unevenCase(GoAPI), unevenCase(HTTPAPI),
		transferCase(1), transferCase(4),
		newCase(bigLimit, GoAPI, 64, 1, 1, hugeLimit),
		newCase(memory, HTTPAPI, 64, 1, 1, hugeLimit),
	)
	if c.History > 0 {
		all = append(all, newCase(history, GoAPI, 256, 1, 1, ampleLimit))
	}
	return all
}

// matrix returns the cases of a kind for all numbers of clients, hosts and pools, as
// far as each host has a client, and the pool a slot.
func (c *Config) matrix(kind, api string) []Case {
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
				all = append(all, newCase(kind, api, clients, hosts, pools, limit))
			}
		}
	}
	return all
}

func fullCase(api string, clients, hosts int) Case {
	c := newCase(full, api, clients, hosts, 1, clients/clientsPerSlot)
	c.Hold = fullHold
	return c
}

func unevenCase(api string) Case {
	clients := 0
	for _, n := range unevenClients {
		clients += n
	}
	c := fullCase(api, clients, len(unevenClients))
	c.Name, c.Kind, c.factor = uneven+strings.TrimPrefix(c.Name, full), uneven, unevenFactor
	return c
}

func transferCase(hosts int) Case {
	c := newCase(transfer, GoAPI, 8, hosts, 1, 1)
	c.Hold, c.factor = transferHold, transferFactor
	return c
}
