package bench

import (
	"context"
	"regexp"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
)

// Defaults of [Config].
const (
	DefaultDuration   = time.Second
	DefaultRounds     = 5
	DefaultHeldClaims = 10_000
	// defaultIdle is longer than a process takes to become idle and to return memory to the
	// system: see [proc.ReturnMemory].
	defaultIdle = 12 * time.Second
)

// DefaultClients and DefaultHosts are the sizes of the loads.
var (
	DefaultClients = []int{1, 16, 64, 256}
	DefaultHosts   = []int{1, 4}
)

// Bounds of [Config]: beyond them the figures mean nothing.
const (
	minDuration = 10 * time.Millisecond
	maxDuration = 10 * time.Minute
	maxRounds   = 1000
	maxClients  = 10_000
	maxHosts    = 1_000
	minHold     = time.Millisecond
	// minHistory makes the two ends of a history long enough to compare.
	minHistory = 100
)

// Config says what to measure, and on which etcd.
type Config struct {
	// Etcd has the address of etcd, the user and the prefix; its other options are not used.
	Etcd instance.Options
	// Duration is how long each load of a round is measured.
	Duration time.Duration
	// Rounds is the number of rounds of each case.
	Rounds int
	// Clients and Hosts are the sizes of the loads.
	Clients, Hosts []int
	// Cases selects the cases whose name matches. Nil selects all.
	Cases *regexp.Regexp
	// Quick selects the main cases.
	Quick bool
	// History is the number of claims after which the throughput is compared with that
	// at the beginning; 0 omits that.
	History int
	// HeldClaims is the number of claims that a sidecar holds when its memory is read;
	// 10,000 if 0.
	HeldClaims int
	// ClientsPerHost, Slots and Hold are the clients of each host, the slots of the pool that
	// is full, and the time for which each claim is held, of the cases of hosts. The
	// defaults are 4, 20 and 50 ms.
	ClientsPerHost, Slots int
	Hold                  time.Duration
	// Processes makes the cases of hosts use a sidecar for each host instead of an instance in this
	// process.
	Processes bool
	// Sidecars starts the sidecars. Nil omits the cases that need them.
	Sidecars Sidecars
	// Progress is called with a line of text for each case that was measured. Nil is silent.
	Progress func(line string)

	// idle is how long sidecars are idle before their memory is read.
	idle time.Duration
	// etcd is the process of etcd, 0 if it is not known.
	etcd int
}

// Sidecars starts sidecars, each as a separate process.
type Sidecars interface {
	// Start starts a sidecar under the host name, and for the etcd and prefix, of the
	// options, and returns when it is ready.
	Start(ctx context.Context, o instance.Options) (Sidecar, error)
}

// Sidecar is a running sidecar.
type Sidecar interface {
	// Socket returns the path of its unix socket.
	Socket() string
	// PID returns the number of its process.
	PID() int
	// Stop stops it and waits for its end.
	Stop() error
}

// Selects reports whether the cases with a name are selected.
func (c *Config) Selects(name string) bool { return c.Cases == nil || c.Cases.MatchString(name) }

// Fill sets the defaults, and returns an error if the configuration is invalid.
func (c *Config) Fill() error {
	if c.Duration == 0 {
		c.Duration = DefaultDuration
	}
	if c.Rounds == 0 {
		c.Rounds = DefaultRounds
	}
	if c.HeldClaims == 0 {
		c.HeldClaims = DefaultHeldClaims
	}
	if c.idle == 0 {
		c.idle = defaultIdle
	}
	if len(c.Clients) == 0 {
		c.Clients = DefaultClients
	}
	if len(c.Hosts) == 0 {
		c.Hosts = DefaultHosts
	}
	if c.ClientsPerHost == 0 {
		c.ClientsPerHost = DefaultClientsPerHost
	}
	if c.Slots == 0 {
		c.Slots = DefaultSlots
	}
	if c.Hold == 0 {
		c.Hold = DefaultHold
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return c.validate()
}

func (c *Config) validate() error {
	if c.Duration < minDuration || c.Duration > maxDuration {
		return problem.Field("duration", "%s is out of range: use %s to %s", c.Duration, minDuration, maxDuration)
	}
	if err := InRange("rounds", c.Rounds, 1, maxRounds); err != nil {
		return err
	}
	for _, n := range c.Clients {
		if err := InRange("clients", n, 1, maxClients); err != nil {
			return err
		}
	}
	for _, n := range c.Hosts {
		if err := InRange("hosts", n, 1, maxHosts); err != nil {
			return err
		}
	}
	if err := InRange("clients-per-host", c.ClientsPerHost, 1, maxClients); err != nil {
		return err
	}
	if err := InRange("slots", c.Slots, 1, hugeLimit); err != nil {
		return err
	}
	if c.Hold < minHold || c.Hold > maxDuration {
		return problem.Field("hold", "%s is out of range: use %s to %s", c.Hold, minHold, maxDuration)
	}
	if err := InRange("held-claims", c.HeldClaims, 1, hugeLimit); err != nil {
		return err
	}
	if c.History != 0 && c.History < minHistory {
		return problem.Field("history", "%d claims are too few to compare: at least %d", c.History, minHistory)
	}
	return nil
}

// InRange returns an error if the number of a field is out of range.
func InRange(field string, n, least, most int) error {
	if n < least || n > most {
		return problem.Field(field, "%d is out of range: use %d to %d", n, least, most)
	}
	return nil
}
