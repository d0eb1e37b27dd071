package bench

import (
	"cmp"
	"context"
	"regexp"
	"time"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
)

// Defaults of [Config].
const (
	DefaultDuration = time.Second
	DefaultRounds   = 5
	// DefaultHeldClaims and DefaultQueued are those of the targets.
	DefaultHeldClaims = 10_000
	DefaultQueued     = 100_000
	// DefaultSteps and DefaultHighSteps are how many steps a load has, FullHighSteps how
	// many the highest is meant to have.
	DefaultSteps     = 10_000
	DefaultHighSteps = 20_000
	FullHighSteps    = 100_000
	// defaultSettle is longer than a sidecar takes to rest and to give memory back.
	defaultSettle = 5 * time.Second
)

// Suite says what a benchmark is about. The zero value is [Claims].
type Suite int

// The suites.
const (
	Claims Suite = iota // slots of pools
	Queue               // runs, and the coordinator that admits them
	Steps               // of runs, and the workers that do them
)

// DefaultClients, DefaultQueueClients and DefaultHosts are the sizes of the loads.
var (
	DefaultClients      = []int{1, 16, 64, 256}
	DefaultQueueClients = []int{1, 16, 64}
	DefaultHosts        = []int{1, 4}
)

// Bounds of [Config]: beyond them nothing sensible is measured.
const (
	minDuration = 10 * time.Millisecond
	maxDuration = 10 * time.Minute
	maxRounds   = 1000
	maxClients  = 10_000
	maxHosts    = 100
	maxQueued   = 1_000_000
	minSteps    = mixedOf
	maxSteps    = step.MaxItems
)

// Config says what to measure, and where.
type Config struct {
	// Suite is what to measure.
	Suite Suite
	// Etcd says where etcd is, as whom, and below which prefix; the rest of the
	// options is not used.
	Etcd berth.Options
	// Duration is how long each load of a round is measured; of steps only the floor's.
	Duration time.Duration
	// Rounds of each case.
	Rounds int
	// Clients and Hosts are the sizes of the loads; a queue has no hosts.
	Clients, Hosts []int
	// Cases leaves out those whose name does not match. Nil leaves out none.
	Cases *regexp.Regexp
	// TargetsOnly leaves out the cases that have no target.
	TargetsOnly bool
	// History is after how many claims the throughput is compared with that at
	// the beginning; 0 leaves that out.
	History int
	// HeldClaims is how many claims a sidecar is to hold when its memory is read;
	// 10,000 if 0.
	HeldClaims int
	// Queued is how many runs wait while plans and the memory of a leader are
	// measured; 100,000 if 0.
	Queued int
	// Steps is how many steps a load has; 10,000 if 0. HighSteps is the same of the case
	// with the most workers; 20,000 if 0.
	Steps, HighSteps int
	// Sidecars starts the sidecars. Nil leaves out the cases that need them.
	Sidecars Sidecars
	// Progress is called with each case before it is measured, and with its row
	// when it was. Nil is silent.
	Progress func(Case, *Row)

	// settle is how long sidecars are left alone before their memory is read.
	settle time.Duration
}

// Sidecars starts sidecars, each in a process of its own.
type Sidecars interface {
	// Start starts one under a host name, for the etcd and prefix of the
	// options, and returns once it is ready.
	Start(ctx context.Context, o berth.Options) (Sidecar, error)
}

// Sidecar is one that runs.
type Sidecar interface {
	// Socket is the path of its unix socket.
	Socket() string
	// PID is its process.
	PID() int
	// Stop ends it and waits for that.
	Stop() error
}

// fill sets what was left out, and refuses what can't be.
func (c *Config) fill() error {
	if c.Duration == 0 {
		c.Duration = DefaultDuration
	}
	if c.Rounds == 0 {
		c.Rounds = DefaultRounds
	}
	if c.HeldClaims == 0 {
		c.HeldClaims = DefaultHeldClaims
	}
	if c.Queued == 0 {
		c.Queued = DefaultQueued
	}
	c.Steps, c.HighSteps = cmp.Or(c.Steps, DefaultSteps), cmp.Or(c.HighSteps, DefaultHighSteps)
	if c.settle == 0 {
		c.settle = defaultSettle
	}
	if len(c.Clients) == 0 {
		c.Clients = DefaultClients
		if c.Suite == Queue {
			c.Clients = DefaultQueueClients
		}
	}
	if len(c.Hosts) == 0 {
		c.Hosts = DefaultHosts
	}
	if c.Progress == nil {
		c.Progress = func(Case, *Row) {}
	}
	return c.validate()
}

func (c *Config) validate() error {
	if c.Duration < minDuration || c.Duration > maxDuration {
		return problem.Field("duration", "%s is out of range: allowed are %s to %s", c.Duration, minDuration, maxDuration)
	}
	if c.Rounds < 1 || c.Rounds > maxRounds {
		return problem.Field("rounds", "%d is out of range: allowed are 1 to %d", c.Rounds, maxRounds)
	}
	for _, n := range c.Clients {
		if n < 1 || n > maxClients {
			return problem.Field("clients", "%d is out of range: allowed are 1 to %d", n, maxClients)
		}
	}
	for _, n := range c.Hosts {
		if n < 1 || n > maxHosts {
			return problem.Field("hosts", "%d is out of range: allowed are 1 to %d", n, maxHosts)
		}
	}
	if c.HeldClaims < 1 || c.HeldClaims > hugeLimit {
		return problem.Field("held-claims", "%d is out of range: allowed are 1 to %d", c.HeldClaims, hugeLimit)
	}
	if c.Queued < 1 || c.Queued > maxQueued {
		return problem.Field("queued", "%d is out of range: allowed are 1 to %d", c.Queued, maxQueued)
	}
	for field, n := range map[string]int{"steps": c.Steps, "high-steps": c.HighSteps} {
		if n < minSteps || n > maxSteps {
			return problem.Field(field, "%d is out of range: allowed are %d to %d", n, minSteps, maxSteps)
		}
	}
	if c.History != 0 && c.History < minHistory {
		return problem.Field("history", "%d claims are too few to compare: at least %d", c.History, minHistory)
	}
	if len(c.cases()) == 0 {
		return problem.Field("cases", "no case has a name that matches")
	}
	return nil
}
