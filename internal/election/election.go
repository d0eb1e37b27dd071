package election

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

const (
	// writeTimeout bounds one try to register the candidate, or to revoke its lease.
	writeTimeout = 2 * time.Second
	// retryPause is the pause after a try to register.
	retryPause = 500 * time.Millisecond
)

var (
	// ErrDeposed ends a term: another process leads, or soon will.
	ErrDeposed = errors.New("this process is no longer the leader")

	errElsewhere     = problem.New(problem.EtcdUnavailable, "another etcd cluster has replaced the one before: the candidate is not registered there yet")
	errNotRegistered = problem.New(problem.Unavailable, "the candidate is not registered yet")
)

// Config configures a [Campaign].
type Config struct {
	// Presence is that of the process. Its OnChange is set by [New].
	Presence lease.PresenceConfig
	// Prefix is that of the candidates' keys.
	Prefix string
	// Decode reads a candidate: [Decode] if nil. See [DecodeInto] for its errors.
	Decode func(*mvccpb.KeyValue) (Candidate, error)
	// Watch is a prefix of Prefix whose other keys OnPut receives; Prefix if empty. OnPut is
	// called before the candidates of the same message are considered, and must not block.
	Watch string
	OnPut func(*mvccpb.KeyValue)
	// Lead is called when the process becomes the leader. Its context ends with the term.
	// It should return [ErrDeposed] if it finds that the term has ended. It is called
	// once per term, and one call at a time.
	Lead func(ctx context.Context, term Candidate) error
}

// Campaign is a process' part in an election.
type Campaign struct {
	cfg      Config
	backend  store.Backend
	log      hclog.Logger
	presence *lease.Presence
	leases   chan store.LeaseID // the newest presence lease
	feed     *store.Feed

	replaced   <-chan struct{} // closed when another etcd cluster has replaced that of what follows
	lease      store.LeaseID   // 0 if there is none
	candidates map[string]Candidate
	known      bool        // candidates is complete
	reading    atomic.Bool // the candidates of another cluster are being read
	lost       int64       // the last of our terms that Lead has found to have ended
	retry      *time.Timer
	failing    bool // the last try to register failed, which was logged
}

// New returns a campaign that does nothing until [Campaign.Run].
func New(cfg Config) *Campaign {
	if cfg.Decode == nil {
		cfg.Decode = func(kv *mvccpb.KeyValue) (Candidate, error) { return Decode(cfg.Prefix, kv) }
	}
	if cfg.Watch == "" {
		cfg.Watch = cfg.Prefix
	}
	c := &Campaign{
		cfg: cfg, backend: cfg.Presence.Backend, log: cfg.Presence.Logger,
		leases: make(chan store.LeaseID, 1), candidates: map[string]Candidate{}, retry: time.NewTimer(retryPause),
	}
	cfg.Presence.OnChange = c.setLease
	c.presence = lease.NewPresence(cfg.Presence)
	c.feed = store.NewFeed(c.backend, cfg.Watch, c.log, func() {})
	return c
}

// setLease passes the newest lease to the loop.
func (c *Campaign) setLease(id store.LeaseID) {
	select {
	case <-c.leases:
	default:
	}
	c.leases <- id
}

// Ready is closed when the process is first listed among the instances of its host.
func (c *Campaign) Ready() <-chan struct{} { return c.presence.Ready() }

// Trouble returns why the process is not a candidate, for example because etcd is not
// available; nil while it is one.
func (c *Campaign) Trouble() error {
	switch err := c.presence.Trouble(); {
	case err == nil:
	case problem.CodeOf(err) == problem.Internal:
		return store.Problem("the candidate could not be registered", err)
	default:
		return err
	}
	select {
	case <-c.Ready():
	default:
		return errNotRegistered
	}
	if _, there := c.presence.Lease(); !there || c.reading.Load() {
		return errElsewhere
	}
	return nil
}

// Run campaigns until ctx ends, and returns its cause. It returns earlier if another live
// process has the instance's name. A term under way ends first, and the lease is revoked.
func (c *Campaign) Run(ctx context.Context) error {
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() error { return c.presence.Run(inner) })
	g.Go(func() error { return c.feed.Run(inner) })
	g.Go(func() error { return c.loop(inner) })
	err := g.Wait()
	revoke, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if err := c.presence.Revoke(revoke); err != nil {
		c.log.Warn("could not step down: the next candidate leads when the lease has expired", "error", err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// tenure is a term of this process while Lead runs.
type tenure struct {
	term   int64
	cancel context.CancelCauseFunc
	over   chan struct{} // closed when Lead has returned
}

// begin begins a term, unless another cluster has replaced the one that it is of: nil.
func (c *Campaign) begin(ctx context.Context, term Candidate) *tenure {
	cluster, replaced := c.backend.Cluster()
	if replaced != c.replaced {
		return nil
	}
	inner, cancel := context.WithCancelCause(store.WithCluster(ctx, cluster))
	t := &tenure{term: term.Term, cancel: cancel, over: make(chan struct{})}
	log := c.log.With("term", term.Term)
	log.Info("leading")
	go func() {
		defer close(t.over)
		err := c.cfg.Lead(inner, term)
		if isStop(ctx, err) {
			log.Info("no longer leading: this process ends")
			return
		}
		log.Info("no longer leading", "reason", err)
	}()
	return t
}

// isStop reports whether a term has ended with the error because the process was stopped, and nothing has failed.
func isStop(ctx context.Context, err error) bool {
	stopped := errors.Is(err, context.Canceled) || errors.Is(err, ErrDeposed)
	return stopped && errors.Is(context.Cause(ctx), context.Canceled)
}

func (t *tenure) end() {
	t.cancel(ErrDeposed)
	<-t.over
}

func (c *Campaign) loop(ctx context.Context) error {
	defer c.retry.Stop()
	_, c.replaced = c.backend.Cluster()
	var t *tenure // nil while the process does not lead
	defer func() {
		if t != nil {
			t.end()
		}
	}()
	for {
		term := c.elected()
		if t != nil && t.term != term.Term {
			t.end()
			t = nil
		}
		var over <-chan struct{}
		if t == nil && term.Term != 0 {
			t = c.begin(ctx, term)
		}
		if t != nil {
			over = t.over
		}
		select {
		case <-c.replaced:
			t = c.void(t)
		case <-c.leases:
			t = c.void(t) // or the lease would be forgotten with what is of the cluster before
			if id, there := c.presence.Lease(); there {
				c.lease = id
			}
			c.register(ctx)
		case m, ok := <-c.feed.Messages():
			if ok && m.History == c.backend.History() { // else it is read again
				t = c.void(t)
				c.message(m)
				c.register(ctx)
			}
		case <-c.retry.C:
			c.register(ctx)
		case <-over: // the feed reports the end of the key later
			c.lost = t.term
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// void forgets the candidates and the lease, and ends the term under way, if they are of a cluster
// that another one has replaced. It returns the term that goes on.
func (c *Campaign) void(t *tenure) *tenure {
	_, replaced := c.backend.Cluster()
	if replaced == c.replaced {
		return t
	}
	if t != nil {
		t.end()
	}
	clear(c.candidates)
	c.reading.Store(true)
	c.replaced, c.lease, c.known, c.lost = replaced, 0, false, 0
	return nil
}

// message applies a message of the feed.
func (c *Campaign) message(m store.FeedMessage) {
	var puts []*mvccpb.KeyValue
	if m.Snapshot != nil {
		clear(c.candidates)
		c.known = true
		c.reading.Store(false)
		puts = m.Snapshot.KVs
	}
	for _, kv := range puts {
		c.put(kv)
	}
	for _, ev := range m.Events {
		if len(ev.Kv.Value) == 0 {
			delete(c.candidates, string(ev.Kv.Key))
			continue
		}
		c.put(ev.Kv)
	}
}

func (c *Campaign) put(kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	if !strings.HasPrefix(key, c.cfg.Prefix) {
		if c.cfg.OnPut != nil {
			c.cfg.OnPut(kv)
		}
		return
	}
	candidate, err := c.cfg.Decode(kv)
	switch {
	case err == nil:
	case candidate.Term == 0:
		c.log.Error("ignoring a key among the candidates", "error", err)
		delete(c.candidates, key)
		return
	default: // for example of another version: it leads in its turn
		c.log.Warn("a candidate cannot be read", "error", err)
	}
	c.candidates[key] = candidate
}

// mine returns the candidate on our lease, with term 0 if it is not registered.
func (c *Campaign) mine() Candidate {
	if c.lease == 0 {
		return Candidate{}
	}
	return c.candidates[store.CandidateKey(c.cfg.Prefix, c.lease)]
}

// elected returns our candidate if it leads, and else one with term 0.
func (c *Campaign) elected() Candidate {
	mine := c.mine()
	if mine.Term == c.lost {
		return Candidate{}
	}
	for _, other := range c.candidates {
		if other.Term < mine.Term {
			return Candidate{}
		}
	}
	return mine
}

// register puts our key if it does not exist. The feed reports it back.
func (c *Campaign) register(ctx context.Context) {
	if _, replaced := c.backend.Cluster(); replaced != c.replaced {
		return
	}
	if c.mine().Term != 0 || c.lease == 0 || !c.known {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	key := store.CandidateKey(c.cfg.Prefix, c.lease)
	p := c.cfg.Presence
	me := Candidate{Host: p.Host, Instance: p.Instance, Version: p.Version, Since: time.Now().UTC().Truncate(time.Millisecond)}
	_, err := store.Commit(ctx, c.backend, []*pb.Compare{store.CreateEquals(key, 0)}, store.Put(key, me.encode(), c.lease))
	failed := err != nil && !errors.Is(err, store.ErrChanged)
	if failed && !c.failing { // once in a row
		c.log.Warn("the candidate could not be registered, trying again", "error", err)
	}
	c.failing = failed
	c.retry.Reset(retryPause)
}
