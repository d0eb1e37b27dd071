package sidecar

import (
	"cmp"
	"context"
	"crypto/tls"
	"io/fs"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/sidecar/server"
)

const (
	// Instance is the name of a host's sidecar among its instances, unless
	// [Config.Options] names another.
	Instance = "sidecar"
	// DefaultDrainTimeout is how long a stop waits for holders to release.
	DefaultDrainTimeout = 30 * time.Second
)

// Config is what a [Server] needs.
type Config struct {
	// Options of the instance. Instance and Role are "sidecar" unless they are
	// set. With a StateDir, a later server takes over what this one leaves.
	Options instance.Options

	// Await is called before the first request to etcd, and returns when etcd may answer, with the
	// name of the host to use; nil does not wait, and uses that of Options.
	Await func(context.Context) (host string, err error)
	// Waits returns what Await waits for, nil if it does not wait. Requests are refused with it, and
	// /readyz shows it. After Await, it is what etcd waits for: only /readyz shows that. Without Waits, they say
	// only that etcd has not answered yet.
	Waits func() *problem.Error
	// Explain returns an error that the instance waits for with what to do about it in this process; nil
	// leaves all as they are.
	Explain func(error) error
	// Persist has [Server.Run] try again when it can't begin, for example because another process has
	// the name of the host. Meanwhile /readyz has the reason. Otherwise only a failure of etcd is waited
	// for.
	Persist bool

	// Listen is the TCP address, host:port, empty for none; port 0 is any free
	// one. Other than loopback addresses need TLS, and Tokens or client certificates.
	Listen string
	// Socket is the path of the unix socket, empty for none. Its folder is made,
	// for the user alone, if there is none.
	Socket string
	// SocketMode is the mode of the socket; 0660 if 0. SocketGroup is its group, a name or a
	// number; the group of the process if empty.
	SocketMode  fs.FileMode
	SocketGroup string
	// TLS is called for each connection over TCP, and returns how it speaks TLS; nil is plain
	// text. Client certificates that it verifies are identities.
	TLS func() *tls.Config
	// Tokens returns the tokens that requests over TCP can show; nil if there are none.
	Tokens func() access.Tokens
	// Policy says what callers may do. The zero value gives users of the socket, and callers
	// on loopback that can't show who they are, [access.DefaultGrants].
	Policy access.Policy
	// Names are the names, beyond localhost, the addresses and those in the certificate, under
	// which the server is reached: what a Host header may say. One that begins with "*."
	// matches any first label, as in certificates.
	Names []string

	// DrainTimeout bounds the wait for holders and for the executors of runs in a
	// stop; [DefaultDrainTimeout] if 0, and no wait if negative.
	DrainTimeout time.Duration
	// RunRetention is how long the events of runs are kept; [run.DefaultRetention]
	// if 0.
	RunRetention time.Duration
	// MaxUnfinishedRuns, MaxStoredRunData (in bytes) and MaxNotBefore bound what one identity
	// can submit: see [run.Quota]. MaxRunEvents bounds the events of a run. Each has a default
	// if it is 0.
	MaxUnfinishedRuns int
	MaxStoredRunData  int64
	MaxNotBefore      time.Duration
	MaxRunEvents      int

	// Tracer makes the spans of requests, claims and executors; nil makes none.
	Tracer *trace.Tracer
	// Logger is silent if nil. It serves Options too, unless that has one.
	Logger hclog.Logger
	// Registerer takes the metrics, of Options too unless that has one; nil keeps
	// none. Gatherer is what /metrics shows; nil shows none.
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
}

// fill sets what was left out.
func (c *Config) fill() {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Options.Logger == nil {
		c.Options.Logger = c.Logger
	}
	if c.Options.Registerer == nil {
		c.Options.Registerer = c.Registerer
	}
	if c.Options.Instance == "" {
		c.Options.Instance = Instance
	}
	if c.Options.Role == "" {
		c.Options.Role = Instance
	}
	if c.Gatherer == nil {
		c.Gatherer = prometheus.NewRegistry()
	}
	if c.RunRetention == 0 {
		c.RunRetention = run.DefaultRetention
	}
	c.MaxUnfinishedRuns = cmp.Or(c.MaxUnfinishedRuns, run.DefaultMaxUnfinished)
	c.MaxStoredRunData = cmp.Or(c.MaxStoredRunData, run.DefaultMaxStored)
	c.MaxNotBefore = cmp.Or(c.MaxNotBefore, run.DefaultMaxAhead)
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
}

// http is the part of the configuration that is about HTTP.
func (c *Config) http() server.Config {
	return server.Config{
		Listen: c.Listen, Socket: c.Socket, SocketMode: c.SocketMode, SocketGroup: c.SocketGroup,
		TLS: c.TLS, Tokens: c.Tokens, Policy: c.Policy, Names: c.Names,
	}
}

// etcdWaits returns what the etcd of a server waits for, nil if it does not wait.
func (c *Config) etcdWaits() *problem.Error {
	if c.Waits == nil {
		return nil
	}
	return c.Waits()
}
