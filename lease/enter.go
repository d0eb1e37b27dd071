package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// patience is how long another owner of the name is waited for: the time for
	// which a dead one is still seen, and some for etcd to notice.
	patience = PresenceTTL + 2*time.Second
	// readAgain is the time between two reads of the other owner's key.
	readAgain = time.Second
	// ttlSlack is how much larger the remaining time of a lease may look: etcd rounds to seconds.
	ttlSlack = 1500 * time.Millisecond
	// aliveAfter is how many renewals of its lease show that the owner is alive: a dead one's lease also
	// starts again with each new leader of etcd.
	aliveAfter = 2
)

// errRaced: the key changed between the read and the put.
var errRaced = errors.New("another process took the name at the same moment")

// taken is the error that the name belongs to another process.
type taken struct {
	owner   PresenceRecord
	lease   store.LeaseID
	corrupt error // the owner can't be read
}

// Error names the owner.
func (t *taken) Error() string { return t.refusal().Error() }

// refusal says who has the name and what to do.
func (t *taken) refusal() *problem.Error {
	if t.corrupt != nil {
		return problem.New(problem.CorruptValue,
			"the name of this instance may be in use: %w; if no process has that name, delete the key", t.corrupt)
	}
	o := t.owner
	return problem.New(problem.HostInUse,
		"the name \"%s/%s\" is in use by process %d on that host, since %s: stop that process, or use another name (--name of a worker, else --host)",
		o.Host, o.Instance, o.PID, o.Since.Format(time.RFC3339)).
		WithDetail(InUse{Host: o.Host, Instance: o.Instance, PID: o.PID, Since: o.Since})
}

// leaseWatch counts how often the lease of another owner was renewed.
type leaseWatch struct {
	count int
	left  time.Duration
	at    time.Time
}

// note notes how much time is left of the lease. If that can't be read, it counts as renewed.
func (r *leaseWatch) note(ctx context.Context, backend store.Backend, lease store.LeaseID) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout(PresenceTTL))
	defer cancel()
	left, err := backend.TimeToLive(ctx, lease)
	now := time.Now()
	if err != nil || !r.at.IsZero() && left > r.left-now.Sub(r.at)+ttlSlack {
		r.count++
	}
	r.left, r.at = left, now
}

// enter takes the name on a new lease, however often that takes; but another
// owner that renews its lease is waited for no longer than patience, and a user
// that etcd refuses from the first try on gets that error.
func (p *Presence) enter(ctx context.Context, first bool) (store.LeaseID, time.Duration, error) {
	between := pauses()
	var found time.Time // since when each read has found another owner
	var renewed leaseWatch
	for failed := 0; ; {
		id, ttl, err := p.enterOnce(ctx, first)
		if err == nil {
			return id, ttl, nil
		}
		pause := readAgain
		var t *taken
		if errors.As(err, &t) {
			renewed.note(ctx, p.cfg.Backend, t.lease)
		}
		switch {
		case ctx.Err() != nil:
			return 0, 0, context.Cause(ctx)
		case first && errors.Is(err, store.ErrDenied):
			return 0, 0, problem.New(problem.EtcdDenied, "the host could not be announced: %w", err)
		case refuses(err):
			return 0, 0, err
		case !errors.As(err, &t):
			found, renewed, pause = time.Time{}, leaseWatch{}, between.NextBackOff()
			p.noteFailure(failed, err)
			failed++
		case found.IsZero():
			found = time.Now()
			p.setTrouble(t.refusal())
			p.log.Info("the name is taken, waiting for its owner's end", "error", err, "wait", patience)
		case time.Since(found) >= patience && renewed.count >= aliveAfter:
			return 0, 0, t.refusal()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		}
	}
}

// refuses reports whether an error of [PresenceConfig.Check] ends the process: to try again does not help.
func refuses(err error) bool {
	code := problem.CodeOf(err)
	return code == problem.Precondition || code == problem.CorruptValue
}

func (p *Presence) noteFailure(before int, err error) {
	p.setTrouble(err)
	if before == 0 {
		p.log.Warn("the host could not be announced, trying again", "error", err)
		return
	}
	p.log.Debug("the host could still not be announced", "tries", before+1, "error", err)
}

// enterOnce tries to take the name. A try without an answer may yet succeed;
// then the next one finds our own token. The lease of an earlier process ends
// with its place. At first, the user of etcd must have all rights that its process needs:
// later, a missing one would only show when it is needed.
func (p *Presence) enterOnce(ctx context.Context, first bool) (store.LeaseID, time.Duration, error) {
	ctx = store.InCluster(ctx, p.cfg.Backend)
	if first {
		if err := store.Require(ctx, p.cfg.Backend, p.cfg.Rights...); err != nil {
			return 0, 0, err
		}
	}
	if p.cfg.Check != nil {
		if err := p.cfg.Check(ctx); err != nil {
			return 0, 0, err
		}
	}
	rev, old, err := p.read(ctx)
	if err != nil {
		return 0, 0, err
	}
	limited, cancel := context.WithTimeout(ctx, tryTimeout(PresenceTTL))
	defer cancel()
	id, ttl, err := p.cfg.Backend.Grant(limited, PresenceTTL)
	if err != nil {
		return 0, 0, err
	}
	if err := p.put(ctx, rev, id); err != nil {
		p.drop(ctx, id)
		return 0, 0, err
	}
	if old != 0 {
		p.drop(ctx, old)
	}
	return id, ttl, nil
}

// read returns the revision and the lease of the key if it is free to take:
// absent (0), or our own.
func (p *Presence) read(ctx context.Context) (rev int64, on store.LeaseID, err error) {
	limited, cancel := context.WithTimeout(ctx, tryTimeout(PresenceTTL))
	defer cancel()
	resp, err := p.cfg.Backend.Range(limited, &pb.RangeRequest{Key: []byte(p.key)})
	if err != nil {
		return 0, 0, err
	}
	if len(resp.Kvs) == 0 {
		return 0, 0, nil
	}
	owner, err := DecodePresence(p.cfg.Keys, p.key, resp.Kvs[0].Value)
	if err != nil {
		return 0, 0, &taken{corrupt: err}
	}
	if owner.Token != p.record.Token {
		return 0, 0, &taken{owner: owner, lease: store.LeaseID(resp.Kvs[0].Lease)}
	}
	return resp.Kvs[0].ModRevision, store.LeaseID(resp.Kvs[0].Lease), nil
}

// put puts the key on the lease, unless it was changed after rev.
func (p *Presence) put(ctx context.Context, rev int64, id store.LeaseID) error {
	limited, cancel := context.WithTimeout(ctx, tryTimeout(PresenceTTL))
	defer cancel()
	resp, err := p.cfg.Backend.Txn(limited, &pb.TxnRequest{
		Compare: []*pb.Compare{store.ModEquals(p.key, rev)},
		Success: []*pb.RequestOp{store.Put(p.key, encodePresence(p.record), id)},
	})
	if err != nil {
		return fmt.Errorf("announce %s: %w", p.key, err)
	}
	if !resp.Succeeded {
		return errRaced
	}
	return nil
}

// drop ends a lease that does not have the key. If it can't, the lease runs out.
func (p *Presence) drop(ctx context.Context, id store.LeaseID) {
	limited, cancel := context.WithTimeout(ctx, tryTimeout(PresenceTTL))
	defer cancel()
	if err := p.cfg.Backend.Revoke(limited, id); err != nil {
		p.log.Debug("a presence lease could not be given back and will run out", "lease", name(id), "error", err)
	}
}
