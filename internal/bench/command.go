package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/instance"
)

// Flags of all benchmarks that [Run] reads.
const (
	embeddedFlag = "embedded"
	profileFlag  = "cpuprofile"
)

// What --quick sets for durations and rounds that are not given.
const (
	quickDuration = 500 * time.Millisecond
	quickRounds   = 3
)

// Flags are those of all benchmarks. Quick and duration are the usages of these flags,
// the example is a name of a case.
func Flags(quick, duration, example string) []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: embeddedFlag, Usage: "start an etcd for the measurement, as a separate process with fsync"},
		&cli.BoolFlag{Name: "quick", Usage: quick},
		&cli.DurationFlag{Name: "duration", Value: DefaultDuration, Usage: duration},
		&cli.IntFlag{Name: "rounds", Value: DefaultRounds, Usage: "`NUMBER` of rounds of each case"},
		&cli.StringFlag{Name: "cases", Usage: "measure only cases whose name matches `REGEXP`; names are like " + example},
		&cli.PathFlag{Name: profileFlag, Usage: "write a CPU profile of this process to `FILE`", Hidden: true},
	}
}

// DurationUsage is the usage of --duration where all loads last as long.
const DurationUsage = "`TIME` of each load in a round"

// ClientsFlag is that of benchmarks with loads of several sizes.
func ClientsFlag(sizes []int) cli.Flag {
	return &cli.StringFlag{Name: "clients", Value: joinInts(sizes), Usage: "`NUMBERS` of clients, comma-separated"}
}

// ClaimsFlags are those of benchmarks of claims. Quick is the usage of that flag.
func ClaimsFlags(quick string) []cli.Flag {
	return append(Flags(quick, DurationUsage, "uncontended/go/64c/1h/1p"),
		ClientsFlag(DefaultClients),
		&cli.StringFlag{Name: "hosts", Value: joinInts(DefaultHosts), Usage: "`NUMBERS` of hosts, comma-separated"},
		&cli.IntFlag{Name: "history", Usage: "compare the throughput after `NUMBER` claims with the throughput at the beginning; 0 omits this"},
		&cli.IntFlag{Name: "held-claims", Value: DefaultHeldClaims, Usage: "`NUMBER` of claims that a sidecar holds while its memory is read"},
	)
}

// HostsFlags are those of the benchmark of hosts.
func HostsFlags() []cli.Flag {
	flags := Flags("measure only 4 and 20 hosts, in 3 rounds of 500ms", DurationUsage, "full/go/40c/10h/1p")
	for _, f := range flags {
		switch f := f.(type) {
		case *cli.DurationFlag:
			f.Value = hostsDuration
		case *cli.IntFlag:
			f.Value = hostsRounds
		}
	}
	return append(flags,
		&cli.StringFlag{Name: "hosts", Value: joinInts(fleetSizes), Usage: "`NUMBERS` of hosts, comma-separated"},
		&cli.IntFlag{Name: "clients-per-host", Value: DefaultClientsPerHost, Usage: "`NUMBER` of clients of each host"},
		&cli.IntFlag{Name: "slots", Value: DefaultSlots, Usage: "`NUMBER` of slots of the full pool; the free one has 1,000, or one for each client"},
		&cli.DurationFlag{Name: "hold", Value: DefaultHold, Usage: "`TIME` for which each claim is held"},
		&cli.BoolFlag{Name: "processes", Usage: "run a separate sidecar process for each host, and claim over HTTP"},
	)
}

// HostsFromFlags returns the configuration for the benchmark of hosts: see [FromFlags].
func HostsFromFlags(c *cli.Context) (Config, error) {
	cfg, err := FromFlags(c, "clients-per-host", "slots", "hold")
	cfg.ClientsPerHost, cfg.Slots, cfg.Hold = c.Int("clients-per-host"), c.Int("slots"), c.Duration("hold")
	cfg.Processes = c.Bool("processes")
	if cfg.Quick && !c.IsSet("hosts") {
		cfg.Hosts = quickFleetSizes
	}
	return cfg, err
}

// FromFlags returns the configuration from the flags of a command. Its errors are about the command
// line. A flag that is set can't be 0, since 0 would mean the default.
func FromFlags(c *cli.Context, others ...string) (Config, error) {
	for _, flag := range append(others, "duration", "rounds", "held-claims") {
		if v := c.Value(flag); c.IsSet(flag) && (v == 0 || v == time.Duration(0)) {
			return Config{}, fmt.Errorf("--%s can't be 0", flag)
		}
	}
	cfg := Config{
		Duration: c.Duration("duration"), Rounds: c.Int("rounds"), Quick: c.Bool("quick"),
		History: c.Int("history"), HeldClaims: c.Int("held-claims"),
	}
	if cfg.Quick && !c.IsSet("duration") {
		cfg.Duration = quickDuration
	}
	if cfg.Quick && !c.IsSet("rounds") {
		cfg.Rounds = quickRounds
	}
	var err error
	if pattern := c.String("cases"); pattern != "" {
		if cfg.Cases, err = regexp.Compile(pattern); err != nil {
			return cfg, fmt.Errorf("--cases can't be %q: %w", pattern, err)
		}
	}
	if cfg.Clients, err = splitInts(c, "clients"); err != nil {
		return cfg, err
	}
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

// splitInts returns the numbers of a flag, none if the command does not have it.
func splitInts(c *cli.Context, flag string) ([]int, error) {
	text, ok := c.Value(flag).(string)
	if !ok {
		return nil, nil
	}
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("--%s can't be %q: it must be numbers such as 1,16,64", flag, text)
		}
		all = append(all, n)
	}
	return all, nil
}

// Run connects to the etcd of a command's settings, or starts one if that is wanted,
// and measures with a function until the process is interrupted. The configuration is
// checked by then: starting an etcd takes a while.
func Run(c *cli.Context, program *Program, cfg Config, measure func(context.Context, *Runner) error) (err error) {
	ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if program.settings, err = config.Load(config.FromCLI(c), config.Common, config.Etcd); err != nil {
		return err
	}
	s := program.settings
	tls, err := s.ClientTLS(nil)
	if err != nil {
		return err
	}
	cfg.Etcd = instance.Options{
		Endpoints: s.Endpoints, TLS: tls, Username: s.User, Password: s.Password.Reveal(), Prefix: s.Prefix,
	}
	if c.Bool(embeddedFlag) {
		etcd, endpoint, failed := program.startEtcd(ctx)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, etcd.Stop()) }()
		cfg.Etcd = instance.Options{Endpoints: []string{endpoint}, Prefix: s.Prefix}
		cfg.etcd = etcd.PID()
		program.settings = config.Settings{}
	}
	return interrupted(ctx, profiled(c.Path(profileFlag), func() error {
		r, err := NewRunner(ctx, cfg)
		if err != nil {
			return err
		}
		return errors.Join(measure(ctx, r), r.Close())
	}))
}

// interrupted replaces an error that an interruption has caused by an error about the interruption.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted: the printed results were measured before")
	}
	return err
}

// profiled writes a CPU profile of a function to a file, if it has a name. In it, the
// label "load" separates berth's part ("case") from that of the floor ("reference").
func profiled(path string, do func() error) error {
	if path == "" {
		return do()
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	err = do()
	pprof.StopCPUProfile()
	return errors.Join(err, f.Close())
}
