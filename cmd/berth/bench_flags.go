package main

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/bench"
)

// Flags of benchmarks that are read elsewhere.
const (
	benchEmbeddedFlag = "embedded"
	benchProfileFlag  = "cpuprofile"
)

// What --quick makes of the sizes that are not given.
const (
	quickDuration = 500 * time.Millisecond
	quickRounds   = 3
)

// benchFlags are those of benchmarks with clients, then its own. The example is a name
// of a case.
func benchFlags(clients []int, example string, own ...cli.Flag) []cli.Flag {
	return append(append(benchRoundFlags("measure only what has a target, in 3 rounds of 500ms", "`TIME` of each load in a round", example),
		&cli.StringFlag{Name: "clients", Value: joinInts(clients), Usage: "`NUMBERS` of clients, comma-separated"},
	), own...)
}

// benchRoundFlags are those of all benchmarks. Quick and duration say what these flags do.
func benchRoundFlags(quick, duration, example string) []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: benchEmbeddedFlag, Usage: "measure on an etcd that is started for this, in a process of its own, with fsync"},
		&cli.BoolFlag{Name: "quick", Usage: quick},
		&cli.DurationFlag{Name: "duration", Value: bench.DefaultDuration, Usage: duration},
		&cli.IntFlag{Name: "rounds", Value: bench.DefaultRounds, Usage: "`NUMBER` of rounds of each case"},
		&cli.StringFlag{Name: "cases", Usage: "measure only cases whose name matches `REGEXP`; names are like " + example},
		&cli.PathFlag{Name: benchProfileFlag, Usage: "write a CPU profile of this process to `FILE`", Hidden: true},
	}
}

func benchClaimsFlags() []cli.Flag {
	return benchFlags(bench.DefaultClients, "uncontended/go/64c/1h/1p",
		&cli.StringFlag{Name: "hosts", Value: joinInts(bench.DefaultHosts), Usage: "`NUMBERS` of hosts, comma-separated"},
		&cli.IntFlag{Name: "history", Usage: "compare the throughput after this `NUMBER` of claims with that of the first; 0 leaves that out"},
		&cli.IntFlag{Name: "held-claims", Value: bench.DefaultHeldClaims, Usage: "`NUMBER` of claims that a sidecar holds while its memory is read"},
	)
}

// benchSizes reads what to measure, and how long, as far as benchmarks with clients have it.
func benchSizes(c *cli.Context) (bench.Config, error) {
	cfg, err := benchRounds(c)
	if err != nil {
		return cfg, err
	}
	cfg.Clients, err = splitInts(c, "clients")
	return cfg, err
}

// benchRounds is the part of it that all have.
func benchRounds(c *cli.Context) (bench.Config, error) {
	for _, flag := range []string{"duration", "rounds", "held-claims", "queued", "steps"} {
		if v := c.Value(flag); c.IsSet(flag) && (v == 0 || v == time.Duration(0)) {
			return bench.Config{}, usagef("--%s can't be 0", flag) // which would be the default
		}
	}
	cfg := bench.Config{
		Duration: c.Duration("duration"), Rounds: c.Int("rounds"),
		TargetsOnly: c.Bool("quick"),
	}
	if cfg.TargetsOnly && !c.IsSet("duration") {
		cfg.Duration = quickDuration
	}
	if cfg.TargetsOnly && !c.IsSet("rounds") {
		cfg.Rounds = quickRounds
	}
	if pattern := c.String("cases"); pattern != "" {
		var err error
		if cfg.Cases, err = regexp.Compile(pattern); err != nil {
			return cfg, usagef("--cases can't be %q: %v", pattern, err)
		}
	}
	return cfg, nil
}

// benchClaimsSizes reads what to measure of claims.
func benchClaimsSizes(c *cli.Context) (bench.Config, error) {
	cfg, err := benchSizes(c)
	if err != nil {
		return cfg, err
	}
	cfg.History, cfg.HeldClaims = c.Int("history"), c.Int("held-claims")
	cfg.Hosts, err = splitInts(c, "hosts")
	return cfg, err
}

func joinInts(numbers []int) string {
	all := make([]string, len(numbers))
	for i, n := range numbers {
		all[i] = strconv.Itoa(n)
	}
	return strings.Join(all, ",")
}

func splitInts(c *cli.Context, flag string) ([]int, error) {
	var all []int
	for text := range strings.SplitSeq(c.String(flag), ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, usagef("--%s can't be %q: it must be numbers such as 1,16,64", flag, c.String(flag))
		}
		all = append(all, n)
	}
	return all, nil
}
