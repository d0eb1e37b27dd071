package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/internal/trace/otlp"
	"github.com/berthhq/berth/sidecar"
)

// service holds what long-running processes other than sidecars share.
type service struct {
	config.Settings
	log     hclog.Logger
	metrics *prometheus.Registry // nil without --listen: metrics that nothing reads are not kept
}

// newService reads the settings of the groups that all services use, and of the given groups.
func newService(r *request, groups ...config.Group) (*service, error) {
	groups = append(groups, config.Common, config.Etcd, config.Instance)
	if r.IsSet(listenFlag) {
		groups = append(groups, config.Serve)
	} else {
		for _, f := range healthFlags() {
			if name := f.Names()[0]; r.IsSet(name) {
				return nil, usagef("--%s has no effect without --listen: give the address of health and metrics, such as --listen 127.0.0.1:7421", name)
			}
		}
	}
	s, err := config.Load(config.FromCLI(r.Context), groups...)
	if err != nil {
		return nil, err
	}
	sv := &service{Settings: s, log: newLogger(r.App.ErrWriter, s, hclog.Info)}
	if r.IsSet(listenFlag) && s.Listen != "" {
		sv.metrics = newRegistry()
	}
	return sv, nil
}

// startTracing returns the tracer of this process, and a function that ends tracing: see
// [otlp.Start].
func startTracing(ctx context.Context, s config.Settings, role string, log hclog.Logger, reg prometheus.Registerer) (*trace.Tracer, func(), error) {
	return otlp.Start(ctx, otlp.Config{
		Service: "berth-" + role, Version: version(), Host: hostName(s), Logger: log.Named("trace"), Registerer: reg,
	})
}

// traceSidecar sets the tracer of a sidecar, and returns a function that ends tracing.
func traceSidecar(ctx context.Context, s config.Settings, cfg *sidecar.Config) (end func(), err error) {
	cfg.Tracer, end, err = startTracing(ctx, s, sidecar.Instance, cfg.Logger, cfg.Registerer)
	return end, err
}

// run serves health and metrics, and runs a process until a signal. When the process is ready, run
// prints the record, a function of the address of health and metrics.
func (sv *service) run(p *printer, of *process, record func(url string) any) error {
	health, err := serveHealth(context.Background(), sv.Settings, sv.log, sv.metrics, of.member.Trouble)
	if err != nil {
		return errors.Join(err, of.stop())
	}
	defer proc.ReturnMemory()()
	signaled := make(chan struct{})
	defer stopOnSignals(false, func(unix.Signal) bool { close(signaled); return true })()
	at := record(health.url())
	notifyReady(sv.log) // before etcd answers, which may take longer than systemd waits
	for ready := of.member.Ready(); ; {
		select {
		case <-ready:
			ready = nil
			if err := p.print(at, func(out *page) { out.line("%s", at) }); err != nil {
				return errors.Join(err, of.stop(), health.close())
			}
		case <-of.ended:
			return errors.Join(of.err, health.close())
		case <-signaled:
			return errors.Join(of.stop(), health.close())
		}
	}
}

// notifyReady notifies systemd that this process serves and handles signals.
func notifyReady(log hclog.Logger) {
	if err := proc.Notify(proc.Ready); err != nil {
		log.Error("systemd waits for a notification that can't be sent", "error", err)
	}
}

// healthText returns a text with the address of health and metrics, empty if there is none.
func healthText(url string) string {
	if url == "" {
		return ""
	}
	return ", with health and metrics at " + url
}

// member is a candidate for coordinator, or a source.
type member interface {
	Run(context.Context) error
	// Ready returns a channel that is closed when the member is listed among the instances.
	Ready() <-chan struct{}
	// Trouble returns why the member is not healthy, or nil if it is healthy.
	Trouble() error
}

// process is a member that runs in this process. The methods of a nil process do nothing.
type process struct {
	member member
	cancel context.CancelFunc
	// ended is closed when the member has ended; err is then the reason, or nil if it was stopped.
	ended chan struct{}
	err   error
}

// startProcess runs a member with its own connections to the etcd cluster of the process. The member
// waits for etcd if etcd is unavailable.
func startProcess(s config.Settings, log hclog.Logger, cluster *store.Cluster, newMember func(*store.Client) member) (*process, error) {
	backend, err := newBackend(s, log, cluster, nil)
	if err != nil {
		return nil, err
	}
	m := newMember(backend)
	return runProcess(m, m.Run, backend.Close), nil
}

// runProcess calls run, and then end. What run returns is no error if the process was stopped.
func runProcess(m member, run func(context.Context) error, end func() error) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{member: m, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		err := run(ctx)
		if ctx.Err() != nil {
			err = nil
		}
		p.err = errors.Join(err, end())
	}()
	return p
}

// failed is closed when the member has ended.
func (p *process) failed() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.ended
}

// stop stops the member. A leader resigns, so that another candidate leads at once. It returns the
// error of a member that had already ended. It may be called more than once.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	p.cancel()
	<-p.ended
	return p.err
}

// listenFlag is the name of the flag for the address to serve at.
const listenFlag = "listen"

// healthFlags returns the flags for health and metrics of processes other than sidecars. They do
// not use the setting listen, which is the address of the host's sidecar.
func healthFlags() []cli.Flag {
	tls := slices.DeleteFunc(config.Flags(config.Serve), func(f cli.Flag) bool {
		return f.Names()[0] == listenFlag || strings.HasPrefix(f.Names()[0], "socket")
	})
	return append(tls,
		config.Flag{StringFlag: &cli.StringFlag{Name: listenFlag, Usage: "serve health and metrics at HTTP `ADDRESS`, such as 127.0.0.1:7421; port 0 chooses a free port", DefaultText: "none"}},
	)
}

// newRegistry returns a registry with the metrics of Go and of the process.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// registererOf returns a registry as an interface, which is nil if the registry is nil.
func registererOf(reg *prometheus.Registry) prometheus.Registerer {
	if reg == nil {
		return nil
	}
	return reg
}

// healthServer serves health and metrics of a process that is not a sidecar. A nil server serves
// nothing.
type healthServer struct {
	server *sidecar.HealthServer
	scheme string
}

// serveHealth serves the metrics of a registry, and health as reported by trouble. Without a
// registry, it serves nothing and returns nil.
func serveHealth(ctx context.Context, s config.Settings, log hclog.Logger, reg *prometheus.Registry, trouble func() error) (*healthServer, error) {
	if reg == nil {
		return nil, nil
	}
	conf, err := s.ServerTLS(log)
	if err != nil {
		return nil, err
	}
	d := &healthServer{scheme: "http://"}
	if conf != nil {
		d.scheme = "https://"
	}
	tokens, err := s.ServerTokens(log)
	if err != nil {
		return nil, err
	}
	policy, err := access.ParsePolicy(s.Roles)
	if err != nil {
		return nil, err
	}
	d.server, err = sidecar.ServeHealth(ctx, sidecar.Config{
		Listen: s.Listen, TLS: conf, Tokens: tokens, Policy: policy, Names: serverNames(s), Logger: log, Registerer: reg, Gatherer: reg,
	}, trouble)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// url returns the address, or an empty text if it serves nothing.
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
