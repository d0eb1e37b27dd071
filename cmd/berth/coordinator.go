package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/sidecar"
)

func coordinatorCommand() *cli.Command {
	return &cli.Command{
		Name:     "coordinator",
		Category: serving,
		Usage:    "run a coordinator, elected among all candidates, which admits runs",
		Description: `One of all candidates leads. If it stops, another one leads at once; if it dies, within 10
seconds. Two or three candidates are enough, on hosts of their own or in sidecars ('berth
sidecar --coordinator').

With --listen it serves /healthz, /readyz and /metrics. An address that other hosts can
reach needs TLS and a token, as that of a sidecar does.

On TERM or INT it resigns and stops. On a second signal it stops without waiting.`,
		Flags:       coordinatorFlags(),
		Subcommands: []*cli.Command{coordinatorStatusCommand()},
		Action:      coordinate,
	}
}

func coordinate(c *cli.Context) error {
	if c.Args().Present() {
		return group(c) // it has commands, too
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	groups := []config.Group{config.Common, config.Etcd, config.Instance, config.Lead}
	if c.IsSet(listenFlag) {
		groups = append(groups, config.Serve)
	}
	s, err := config.Load(config.FromCLI(c), groups...)
	if err != nil {
		return err
	}
	log := newLogger(c.App.ErrWriter, s, hclog.Info)
	var reg *prometheus.Registry // what nobody can see is not kept
	if c.IsSet(listenFlag) && s.Listen != "" {
		reg = newRegistry()
	}
	st, err := startCandidate(s, log, registererOf(reg))
	if err != nil {
		return err
	}
	health, err := serveHealth(c.Context, s, log, reg, st.candidate.Trouble)
	if err != nil {
		return errors.Join(err, st.resign())
	}
	return errors.Join(runUntilSignal(p, s, st, health), health.close())
}

// runUntilSignal reports the address of the candidate when it is ready, and has it resign
// on a signal.
func runUntilSignal(p *printer, s config.Settings, st *candidacy, health *healthServer) error {
	asked := make(chan struct{})
	defer stopOnSignals(false, func(unix.Signal) bool { close(asked); return true })()
	for ready := st.ready(); ; {
		select {
		case <-ready:
			ready = nil
			r := candidateRecord{PID: os.Getpid(), Host: s.Host, Instance: coordinator.Instance, HTTP: health.url()}
			if err := p.print(r, func(out *page) { out.line("%s", r) }); err != nil {
				return errors.Join(err, st.resign())
			}
		case <-st.failed():
			return st.err
		case <-asked:
			return st.resign()
		}
	}
}

// candidateRecord is a candidate of this process in JSON.
type candidateRecord struct {
	PID      int    `json:"pid"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// HTTP is where the health and the metrics are served.
	HTTP string `json:"http,omitempty"`
}

// String says it for people.
func (r candidateRecord) String() string {
	text := "berth coordinator of host " + r.Host + " is a candidate"
	if r.HTTP != "" {
		text += ", with health and metrics at " + r.HTTP
	}
	return text
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

// listenFlag is the flag of the address that a server serves at.
const listenFlag = "listen"

// coordinatorFlags are those of a candidate by itself.
func coordinatorFlags() []cli.Flag {
	return slices.Concat(config.Flags(config.Instance, config.Lead), healthFlags())
}

// healthFlags say where a process that is no sidecar serves its health and metrics. That
// is said by the flag alone: the setting is the address of the host's sidecar, which
// would be taken.
func healthFlags() []cli.Flag {
	door := slices.DeleteFunc(config.Flags(config.Serve), func(f cli.Flag) bool {
		return f.Names()[0] == listenFlag || f.Names()[0] == "socket"
	})
	return append(door,
		&cli.StringFlag{Name: listenFlag, Usage: "serve health and metrics at HTTP `ADDRESS`, such as 127.0.0.1:7421; port 0 chooses a free port", DefaultText: "none"},
	)
}

// newRegistry returns a registry with the metrics of Go and of the process.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// registererOf returns a registry as an interface that is nil if the registry is.
func registererOf(reg *prometheus.Registry) prometheus.Registerer {
	if reg == nil {
		return nil
	}
	return reg
}

// healthServer serves health and metrics of a process that is not a sidecar. A nil one
// serves nothing.
type healthServer struct {
	server *sidecar.HealthServer
	scheme string
}

// serveHealth serves what is in a registry, and whether there is no trouble; nothing
// without a registry.
func serveHealth(ctx context.Context, s config.Settings, log hclog.Logger, reg *prometheus.Registry, trouble func() error) (*healthServer, error) {
	if reg == nil {
		return nil, nil
	}
	conf, err := s.ServerTLS()
	if err != nil {
		return nil, err
	}
	d := &healthServer{scheme: "http://"}
	if conf != nil {
		d.scheme = "https://"
	}
	d.server, err = sidecar.ServeHealth(ctx, sidecar.Config{
		Listen: s.Listen, TLS: conf, Token: s.Token.Reveal(), Names: serverNames(s, conf), Logger: log, Gatherer: reg,
	}, trouble)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// url is where it is reached, empty for nowhere.
func (d *healthServer) url() string {
	if d == nil {
		return ""
	}
	return d.scheme + reachable(d.server.Addr())
}

func (d *healthServer) close() error {
	if d == nil {
		return nil
	}
	return d.server.Close()
}

// candidacy is a candidate for coordinator in this process. A nil one is none.
type candidacy struct {
	candidate *coordinator.Coordinator
	cancel    context.CancelFunc
	// ended is closed when the candidacy has ended; err then says why, unless it resigned.
	ended chan struct{}
	err   error
}

// startCandidate runs a candidate with its own connections. It waits for etcd if that is
// unavailable.
func startCandidate(s config.Settings, log hclog.Logger, reg prometheus.Registerer) (*candidacy, error) {
	backend, err := newBackend(s, log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	st := &candidacy{
		cancel: cancel, ended: make(chan struct{}),
		candidate: coordinator.New(coordinator.Config{
			Backend: backend, Keys: store.NewKeys(s.Prefix), Host: hostName(s), Version: version(),
			TickInterval: s.TickInterval, StartTimeout: s.StartTimeout, Retention: s.RunRetention,
			CompactInterval: none(s.CompactInterval),
			Logger:          log, Registerer: reg,
		}),
	}
	go func() {
		defer close(st.ended)
		err := st.candidate.Run(ctx)
		if ctx.Err() != nil {
			err = nil // it was asked to
		}
		st.err = errors.Join(err, backend.Close())
	}()
	return st, nil
}

// ready is closed when it is seen among the hosts.
func (st *candidacy) ready() <-chan struct{} { return st.candidate.Ready() }

// failed is closed when the candidacy has ended.
func (st *candidacy) failed() <-chan struct{} {
	if st == nil {
		return nil
	}
	return st.ended
}

// resign ends the candidacy, so that another candidate leads at once. It returns the error
// of a candidacy that had ended before. It may be called again.
func (st *candidacy) resign() error {
	if st == nil {
		return nil
	}
	st.cancel()
	<-st.ended
	return st.err
}
