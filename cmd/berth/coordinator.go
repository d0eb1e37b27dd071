package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

func coordinatorCommand() *cli.Command {
	return &cli.Command{
		Name:     "coordinator",
		Category: serving,
		Usage:    "run a coordinator, elected among all candidates, which admits runs",
		Description: `One of all candidates leads. If it stops, another one leads at once; if it dies, within 10
seconds. Two or three candidates are enough, on hosts of their own or in sidecars ('berth
sidecar --coordinator'). The leader also offers slots to the claims that wait, on all hosts.

With --listen it serves /healthz, /readyz and /metrics. An address that other hosts can
reach needs TLS, and --tokens-file or --client-ca, as that of a sidecar does.

On TERM or INT it resigns and stops. On a second signal it stops without waiting.`,
		Flags:       slices.Concat(config.Flags(config.Instance, config.Lead), healthFlags()),
		Subcommands: []*cli.Command{coordinatorStatusCommand()},
		Action:      coordinate,
	}
}

func coordinate(c *cli.Context) error {
	if c.Args().Present() {
		return group(c) // it has commands, too
	}
	return handle(func(r *request) error {
		sv, err := newService(r, config.Lead)
		if err != nil {
			return err
		}
		p, err := startCandidate(sv.Settings, sv.log, registererOf(sv.metrics), store.NewCluster(sv.log, registererOf(sv.metrics)))
		if err != nil {
			return err
		}
		return sv.run(r.printer, p, func(url string) any {
			return candidateRecord{PID: os.Getpid(), Host: sv.Host, Instance: coordinator.Instance, HTTP: url}
		})
	})(c)
}

// candidateRecord is a candidate of this process in JSON.
type candidateRecord struct {
	PID      int    `json:"pid"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// HTTP is the address of health and metrics.
	HTTP string `json:"http,omitempty"`
}

// String describes the candidate.
func (r candidateRecord) String() string {
	return "berth coordinator of host " + r.Host + " is a candidate" + healthText(r.HTTP)
}

// startCandidate runs a candidate for coordinator.
func startCandidate(s config.Settings, log hclog.Logger, reg prometheus.Registerer, cluster *store.Cluster) (*process, error) {
	return startProcess(s, log, cluster, func(backend *store.Client) member { return newCandidate(s, log, reg, backend) })
}

func newCandidate(s config.Settings, log hclog.Logger, reg prometheus.Registerer, backend *store.Client) member {
	return coordinator.New(coordinator.Config{
		Backend: backend, Keys: store.NewKeys(s.Prefix), Host: hostName(s), Version: version(),
		TickInterval: s.TickInterval, StartTimeout: s.StartTimeout, Retention: s.RunRetention, MaxRunEvents: s.MaxRunEvents,
		CompactInterval: none(s.CompactInterval),
		Logger:          log, Registerer: reg,
	})
}

func coordinatorStatusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show the leader, its last tick, and the other candidates",
		Description: `Exits with 1 if there is no leader. A leader with nothing to do reports its ticks every 10
seconds.`,
		Action: onEtcd(coordinatorStatus),
	}
}

func coordinatorStatus(r *request) error {
	all, err := r.Runs.Candidates(r.ctx())
	if err != nil {
		return err
	}
	record := inspect.CoordinatorOf(all)
	if err := r.print(record, func(out *page) { coordinatorText(out, record) }); err != nil {
		return err
	}
	if record.Leader == nil {
		return status(problem.ExitFailure)
	}
	return nil
}

func coordinatorText(out *page, r inspect.Coordinator) {
	if r.Leader == nil {
		out.line("%s", inspect.NoLeader)
		return
	}
	rows := [][]string{
		{"leader", r.Leader.Host}, {"instance", r.Leader.Instance}, {"version", r.Leader.Version},
		{"term", strconv.FormatInt(r.Leader.Term, 10)}, {"leads since", text.Ago(out.now, r.Leader.Since)},
	}
	out.columns(withValues(append(rows, tickRows(out.now, r.Leader.Tick)...)))
	if len(r.Others) == 0 {
		return
	}
	out.gap()
	var others [][]string
	for _, o := range r.Others {
		others = append(others, []string{o.Host, o.Instance, o.Version, text.Ago(out.now, o.Since)})
	}
	out.table("", []string{"CANDIDATE", "INSTANCE", "VERSION", "SINCE"}, others)
}

// tickRows describes the last tick of a leader.
func tickRows(now time.Time, t *inspect.Tick) [][]string {
	if t == nil {
		return [][]string{{"last tick", "none yet"}}
	}
	when := fmt.Sprintf("number %d, %s", t.Number, text.Ago(now, t.At))
	if t.Took > 0 {
		when += ", took " + text.Duration(time.Duration(t.Took))
	}
	return [][]string{
		{"last tick", when},
		{"it saw", fmt.Sprintf("%d queued, %d in progress", t.Queued, t.InProgress)},
		{"it did", fmt.Sprintf("%d admitted, %d lost, %d given a reason", t.Admitted, t.Lost, t.Blocked)},
	}
}
