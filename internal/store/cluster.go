package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Cluster is the etcd cluster that a process works with: the one of its first response. What the
// process knows of etcd, its leases, and what it holds are of that cluster alone.
//
// A process that follows goes on with another cluster as soon as that one answers: etcd was
// restored from a snapshot. It never returns to a cluster that was replaced, so a member which
// still belongs to that cluster is only an endpoint that fails.
type Cluster struct {
	log     hclog.Logger
	changes prometheus.Counter
	follows bool

	at atomic.Pointer[history]

	mu       sync.Mutex // guards what follows, and changes of at
	replaced []uint64
	logins   map[*login]bool // of clients, to be forgotten
}

// history is one history of etcd: a cluster, until it is restored.
type history struct {
	cluster uint64 // 0 until the first response
	number  uint64 // of histories before this one
	// highest is the highest revision of any answer or watch.
	highest atomic.Int64
	// over is closed when another cluster has replaced this one.
	over chan struct{}
}

// NewCluster returns the cluster of a process that follows. All of its clients share it.
func NewCluster(log hclog.Logger, reg prometheus.Registerer) *Cluster {
	c := newCluster()
	c.follows = true
	if log != nil {
		c.log = log.Named("store")
	}
	c.changes = promauto.With(reg).NewCounter(prometheus.CounterOpts{
		Name: "berth_etcd_cluster_changed_total",
		Help: "How often another etcd cluster has answered in place of the one before: its claims, leases and views were dropped.",
	})
	return c
}

// newCluster returns one that stays with the cluster that answers first.
func newCluster() *Cluster {
	c := &Cluster{log: hclog.NewNullLogger(), logins: map[*login]bool{}}
	c.at.Store(&history{over: make(chan struct{})})
	return c
}

// has records a login in the cluster. It is forgotten when another cluster replaces this one.
func (c *Cluster) has(l *login) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logins[l] = true
}

// hasNot records that a login has ended.
func (c *Cluster) hasNot(l *login) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.logins, l)
}

// check checks that a response is of the cluster that the process has worked with since the
// request was sent. That of another cluster is refused, also if the process then goes on with that
// cluster: the request was made of what was known of the one before.
func (c *Cluster) check(sent *history, from uint64) error {
	now := c.at.Load()
	if now.cluster == from && from != 0 && (sent.cluster == from || sent.cluster == 0) {
		return nil
	}
	return c.differs(sent, from)
}

func (c *Cluster) differs(sent *history, from uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.at.Load()
	switch {
	case from == 0:
		return fmt.Errorf("%w: an answer without the id of its cluster", ErrOtherCluster)
	case now.cluster == 0:
		c.advance(from, now.number, 0, now.over)
	case now.cluster != from && (!c.follows || slices.Contains(c.replaced, from)):
		return fmt.Errorf("%w: cluster %x answered instead of %x", ErrOtherCluster, from, now.cluster)
	case now.cluster != from:
		c.replace(now, from)
		return fmt.Errorf("%w: cluster %x has replaced %x", ErrOtherCluster, from, now.cluster)
	case sent.cluster != 0 && sent.cluster != from:
		return fmt.Errorf("%w: cluster %x has replaced %x since the request was sent", ErrOtherCluster, from, sent.cluster)
	}
	return nil
}

// replace goes on with another cluster. The lock is held.
func (c *Cluster) replace(now *history, by uint64) {
	c.log.Error("another etcd cluster answers, probably because etcd was restored from a snapshot: all claims of this process end, and it reads everything again",
		"before", fmt.Sprintf("%x", now.cluster), "now", fmt.Sprintf("%x", by))
	c.replaced = append(c.replaced, now.cluster)
	c.advance(by, now.number+1, 0, make(chan struct{}))
	if c.changes != nil {
		c.changes.Inc()
	}
	close(now.over)
	for l := range c.logins {
		l.forget()
	}
}

// bumped is how many revisions later an answer is at least if etcd was restored with --bump-revision: it writes fewer in an hour.
const bumped = 100_000_000

// continues reports whether one history of etcd may have both revisions, the second one in a later answer.
func continues(seen, rev int64) bool { return rev >= seen && (seen == 0 || rev-seen < bumped) }

// checkRevision checks the revision of a response to a request that was sent when revision seen was
// known. Every such response is at least as new, and not much newer, unless etcd was restored from a snapshot. Then
// another history begins there, and [Client.History] has the feeds read everything again.
func (c *Cluster) checkRevision(sent *history, seen, rev int64) error {
	if continues(seen, rev) {
		c.note(sent, rev)
		return nil
	}
	c.restored(sent, seen, rev)
	return fmt.Errorf("%w: it is at revision %d after %d", ErrRestored, rev, seen)
}

// restored begins another history after one, if that has not ended yet.
func (c *Cluster) restored(of *history, seen, rev int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.at.Load()
	switch {
	case now != of:
		return
	case rev < seen:
		c.log.Warn("the revisions of etcd have gone back: it was restored without --bump-revision, so fencing tokens may be issued twice; restart all sidecars, coordinators and workers",
			"before", seen, "now", rev)
	default:
		c.log.Warn("etcd was restored from a snapshot, and is the same cluster: everything is read again", "before", seen, "now", rev)
	}
	c.advance(now.cluster, now.number+1, rev, now.over)
}

// advance begins another history. The lock is held.
func (c *Cluster) advance(cluster, number uint64, highest int64, over chan struct{}) {
	h := &history{cluster: cluster, number: number, over: over}
	h.highest.Store(highest)
	c.at.Store(h)
}

// note records a revision that etcd has reached in a history.
func (c *Cluster) note(of *history, rev int64) {
	h := c.at.Load()
	for h.number == of.number {
		now := h.highest.Load()
		switch {
		case now < rev && !continues(now, rev):
			c.restored(h, now, rev)
			return
		case now >= rev || h.highest.CompareAndSwap(now, rev):
			return
		}
	}
}

// clusterKey is the key of a context for the id of the cluster that its requests are for.
type clusterKey struct{}

// InCluster returns a context whose requests count only while b works with the cluster of now.
// Requests that belong together, such as those of a term of a leader, or of a read in pages, have it.
func InCluster(ctx context.Context, b Backend) context.Context {
	id, _ := b.Cluster()
	return WithCluster(ctx, id)
}

// WithCluster is [InCluster] with the id of a cluster. A context that has one already keeps it, and 0
// is none.
func WithCluster(ctx context.Context, id uint64) context.Context {
	if id == 0 || ctx.Value(clusterKey{}) != nil {
		return ctx
	}
	return context.WithValue(ctx, clusterKey{}, id)
}

// IsReplaced reports whether the requests of a context are for another cluster than the one with
// that id, which is the present one of a [Backend].
func IsReplaced(ctx context.Context, id uint64) bool {
	of, bound := ctx.Value(clusterKey{}).(uint64)
	return bound && of != id
}
