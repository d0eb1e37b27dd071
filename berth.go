// Package berth claims slots of named pools from Go programs. All programs that use the
// same etcd and key prefix share the pools.
//
// [Open] connects a client, [Client.Claim] takes slots of one or several pools, all or
// none, and [Claim.Release] frees them. The keys of a claim are attached to leases that
// the client renews: if the program dies, its slots are free when its lease ends.
//
// # Guarantees and limits
//
// At no revision of etcd are more slots of a pool taken than it had when they were
// granted, and no revision shows a part of a claim. [Claim.Context] ends before the
// lease of a program that is cut off from etcd can end. A program that ignores the
// context, or that was stopped (SIGSTOP, a frozen machine), can still run when its slots
// have a new holder. A resource that a pool of one slot guards can reject its writes by
// [Claim.Fence], which is larger for every later holder.
package berth

import (
	"context"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/instance"
)

// Options configure a [Client]: where etcd is and how the client is named. Only Endpoints
// is required.
type Options struct {
	// Endpoints are the client addresses of etcd's members.
	Endpoints []string
	// TLS configures the connections to etcd; nil means plain text.
	TLS *tls.Config
	// Username and Password authenticate the client to etcd, if it requires it.
	Username, Password string
	// Prefix starts all keys; the default is "/berth/".
	Prefix string

	// Host is the name that is shown for this machine's claims; the default is the host
	// name of the machine.
	Host string
	// Instance names this process on its host. The default is a name that is unique to
	// the process. Open refuses a name that another process uses.
	Instance string
	// StateDir makes the client resumable: a process that opens the same directory
	// before the leases end takes over the claims of the previous process. It requires
	// Instance, and is locked while in use.
	StateDir string
	// Role and Version are shown in lists of hosts.
	Role, Version string

	// ClaimTimeout limits the wait of claims without [WithWait]. The default is 10
	// minutes; a negative value means no wait.
	ClaimTimeout time.Duration
	// PollInterval and PollJitter set how often waiting claims are checked without an event,
	// at least every 5s. The defaults are 1s and 500ms; with a negative interval it is every 5s,
	// and a negative jitter is none.
	PollInterval, PollJitter time.Duration

	// OnWait, if not nil, is called with the error that [Open] waits for whenever it
	// changes, for example host_in_use while another process has the name. It must not
	// block.
	OnWait func(why error)

	// Logger receives the log; nil discards it.
	Logger *slog.Logger
	// Registerer receives the metrics; nil disables them. Two clients with one registry
	// need [prometheus.WrapRegistererWith] to distinguish them.
	Registerer prometheus.Registerer
}

// Client makes claims and manages pools. Open one per process. Its methods are safe for
// concurrent use.
type Client struct{ in *instance.Client }

// Open connects to etcd and returns when the client can claim. With a state directory it
// first takes over the claims of the previous process: see [Client.Held]. The codes of
// its errors are etcd_unavailable, etcd_denied, host_in_use and invalid.
func Open(ctx context.Context, o Options) (*Client, error) {
	var conf func() *tls.Config
	if o.TLS != nil {
		conf = func() *tls.Config { return o.TLS }
	}
	var onWait func(error)
	if o.OnWait != nil {
		onWait = func(why error) { o.OnWait(public(why)) }
	}
	in, err := instance.Open(ctx, instance.Options{
		Endpoints: o.Endpoints, TLS: conf, Username: o.Username, Password: o.Password, Prefix: o.Prefix,
		Host: o.Host, Instance: o.Instance, StateDir: o.StateDir, Role: o.Role, Version: o.Version,
		ClaimTimeout: o.ClaimTimeout, PollInterval: o.PollInterval, PollJitter: o.PollJitter,
		OnWait: onWait, Logger: logTo(o.Logger), Registerer: o.Registerer,
	})
	if err != nil {
		return nil, public(err)
	}
	return &Client{in}, nil
}

// Close stops the client. It refuses new claims and waits until those it holds are
// released or ctx ends, and renews leases all the while. Then it cancels the contexts of
// the remaining claims, gives their holders a sixth of the lease, at most 10 s, to stop,
// and revokes all leases. It may be called once.
func (c *Client) Close(ctx context.Context) error { return public(c.in.Close(ctx)) }

// Leave stops the client at once. Its claims stay for the next process that opens the
// state directory before their leases end. The contexts of the claims end, because this
// process can no longer tell whether they are held.
func (c *Client) Leave() error { return public(c.in.Leave()) }

// Done returns a channel that is closed when the client has failed or was closed.
// [Client.Err] then returns the cause.
func (c *Client) Done() <-chan struct{} { return c.in.Done() }

// Err returns why the client has ended, or nil while it runs.
func (c *Client) Err() error { return public(c.in.Err()) }
