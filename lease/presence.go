package lease

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/store"
)

// PresenceTTL is how long an instance is still seen after its end.
const PresenceTTL = 10 * time.Second

// PresenceConfig is what a [Presence] needs.
type PresenceConfig struct {
	Backend store.Backend
	Keys    store.Keys
	// Host and Instance name the instance: one process at a time.
	Host, Instance string
	// Token shows that a key of this name is the instance's own, of an earlier process.
	// Empty makes a new one.
	Token string
	// Role, Version, PID, Capacity and Queues are shown; see [PresenceRecord].
	Role     string
	Version  string
	PID      int
	Capacity int
	Queues   []string
	// Rights are those that the process needs of etcd. Run fails at once if the user has
	// not all of them.
	Rights []store.Right
	// Check, if not nil, is called before the name is taken, also again in an etcd that was restored. Run ends with a
	// [problem.Precondition] or [problem.CorruptValue] of it: the process must not use what etcd has.
	Check func(context.Context) error
	// Logger is silent if nil.
	Logger hclog.Logger

	// OnChange is called with the presence lease each time a new one is in place. Keys on
	// the lease before must be put again on this one. It must not block: Run calls it,
	// and renews nothing meanwhile.
	OnChange func(id store.LeaseID)
	// OnTrouble, if not nil, is called with what [Presence.Trouble] returns whenever a try
	// to take the name has failed for a new reason. It must not block.
	OnTrouble func(why error)
}

// Presence shows an instance among the hosts, and makes it the only one of its
// name.
//
// All methods may be called by many goroutines. Losing the lease costs being
// seen, and nothing else: it is made and put again, also if another etcd cluster has replaced
// that of the lease.
type Presence struct {
	cfg    PresenceConfig
	key    string
	record PresenceRecord
	log    hclog.Logger

	ran   atomic.Bool
	ready chan struct{}

	mu      sync.Mutex // guards what follows
	id      store.LeaseID
	cluster uint64 // of etcd that id is of
	present bool   // id is in place
	trouble error  // why the last try to take the name failed; nil after a success
}

// NewPresence returns the presence of an instance that is not seen yet. It does
// no I/O.
func NewPresence(cfg PresenceConfig) *Presence {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.OnChange == nil {
		cfg.OnChange = func(store.LeaseID) {}
	}
	return &Presence{
		cfg:   cfg,
		key:   cfg.Keys.Presence(cfg.Host, cfg.Instance),
		log:   cfg.Logger.Named("presence"),
		ready: make(chan struct{}),
		record: PresenceRecord{
			Host: cfg.Host, Instance: cfg.Instance,
			Role: cfg.Role, Version: cfg.Version, PID: cfg.PID, Capacity: cfg.Capacity,
			Queues: slices.Clone(cfg.Queues),
			Since:  time.Now().UTC().Truncate(time.Millisecond),
			Token:  cmp.Or(cfg.Token, newToken()),
		},
	}
}

// Run makes the instance seen and keeps it so until ctx ends, and returns the
// cause. It returns earlier with [problem.HostInUse] if another live process
// has the name, at the start or after a loss: no claim may be made then, or any
// more. An owner that has ended is seen for 10 s, so it takes 12 s to refuse.
//
// The lease lives on for its 10 s: an earlier end is Revoke's. A presence runs
// once; a second call is [ErrRan].
func (p *Presence) Run(ctx context.Context) error {
	if !p.ran.CompareAndSwap(false, true) {
		return ErrRan
	}
	for first := true; ; first = false {
		cluster, replaced := p.cfg.Backend.Cluster()
		id, ttl, err := p.enter(ctx, first)
		if err != nil {
			return err
		}
		if cluster == 0 { // etcd had not answered yet
			cluster, _ = p.cfg.Backend.Cluster()
		}
		p.entered(id, cluster)
		if first {
			close(p.ready)
		}
		p.cfg.OnChange(id)
		switch err := p.hold(store.WithCluster(ctx, cluster), id, ttl, replaced); {
		case errors.Is(err, store.ErrOtherCluster):
			p.setTrouble(err)
			p.log.Info("announcing the host in the etcd cluster that answers now")
		case errors.Is(err, store.ErrLeaseNotFound):
			p.log.Warn("the presence lease is gone, making another")
		default:
			return err
		}
		p.deregister()
	}
}

// Ready is closed when the instance is seen for the first time. From then on it
// is known to be the only one of its name.
func (p *Presence) Ready() <-chan struct{} { return p.ready }

// Lease returns the presence lease. It is false while there is none; OnChange will be
// called.
func (p *Presence) Lease() (store.LeaseID, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cluster, _ := p.cfg.Backend.Cluster()
	return p.id, p.present && cluster == p.cluster
}

// Revoke ends the lease at once. It is for a graceful stop, after Run has returned. What it can't reach ends within 10 s.
func (p *Presence) Revoke(ctx context.Context) error {
	p.mu.Lock()
	id, present := p.id, p.present
	ctx = store.WithCluster(ctx, p.cluster)
	p.present = false
	p.mu.Unlock()
	if !present {
		return nil
	}
	return revoke(ctx, p.cfg.Backend, id)
}

func (p *Presence) entered(id store.LeaseID, cluster uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id, p.cluster, p.present, p.trouble = id, cluster, true, nil
}

// Trouble tells why the instance is not seen, nil if nothing has failed: etcd is
// full, say, or another process has the name.
func (p *Presence) Trouble() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trouble
}

func (p *Presence) setTrouble(err error) {
	p.mu.Lock()
	p.trouble = err
	p.mu.Unlock()
	if p.cfg.OnTrouble != nil {
		p.cfg.OnTrouble(err)
	}
}

func (p *Presence) deregister() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.present = false
}

// hold renews the lease until it is gone, another cluster has replaced its own, or ctx ends; its
// error tells which.
func (p *Presence) hold(ctx context.Context, id store.LeaseID, ttl time.Duration, replaced <-chan struct{}) error {
	next := time.NewTimer(renewAfter(ttl))
	defer next.Stop()
	failed := false
	for {
		select {
		case <-next.C:
		case <-replaced:
			return errReplaced
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		granted, err := p.renew(ctx, id, ttl)
		switch {
		case err == nil:
			ttl, failed = granted, false
			next.Reset(renewAfter(ttl))
			continue
		case errors.Is(err, store.ErrLeaseNotFound):
			return err
		case ctx.Err() == nil && !failed:
			p.log.Warn("the presence lease could not be renewed, trying again", "error", err)
		}
		failed = true
		next.Reset(retryPause(ttl))
	}
}

// renew tries once.
func (p *Presence) renew(ctx context.Context, id store.LeaseID, ttl time.Duration) (time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, tryTimeout(ttl))
	defer cancel()
	return p.cfg.Backend.Renew(limited, id)
}
