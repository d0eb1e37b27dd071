package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Resumable is a lease of an earlier process of this instance.
type Resumable struct {
	ID       store.LeaseID
	Duration time.Duration
	// Window is how long the lease is valid by what etcd said of it, counted from
	// when it was asked: that process may have renewed it long ago.
	Window Window

	// Cluster is the etcd cluster that it is of.
	Cluster uint64
}

// Resume lists the leases of an earlier process of the instance, for [Keeper.Adopt].
// Those of other instances of the host are skipped. The
// instance must be the only one of its name: take its [State] and wait for
// [Presence.Ready] before.
//
// It is refused with [problem.HostInUse] while there are leases of the same
// instance with another token. Either another process has the name, which
// presence did not detect; or the state directory was lost, and then their owner
// is unknown. They end by themselves once no process renews them, and then Resume
// succeeds; the error states when. Wait, or take another name. There is no way to override it.
//
// A lease that was granted in another cluster is omitted: a restore from a snapshot has brought it
// back, and what it had may have another holder since. It ends by itself.
//
// An entry that can't be read refuses with [problem.CorruptValue]. A lease that has
// ended meanwhile is omitted.
func Resume(ctx context.Context, b store.Backend, clock Clock, keys store.Keys, host, instance, token string) ([]Resumable, error) {
	ctx = store.InCluster(ctx, b)
	own, foreign, err := listed(ctx, b, keys, host, instance, token)
	if err != nil {
		return nil, err
	}
	if err := refuseForeign(ctx, b, host, instance, foreign); err != nil {
		return nil, err
	}
	return readWindows(ctx, b, clock, own)
}

// Left returns how many leases of a host live that an instance with a token has left there.
func Left(ctx context.Context, b store.Backend, keys store.Keys, host, instance, token string) (int, error) {
	own, _, err := listed(ctx, b, keys, host, instance, token)
	if err != nil {
		return 0, err
	}
	alive, err := readWindows(ctx, b, BootClock(), own)
	return len(alive), err
}

// listed returns the leases of an instance of a host that have the token, and those that have another one.
func listed(ctx context.Context, b store.Backend, keys store.Keys, host, instance, token string) (own []Resumable, foreign []store.LeaseID, err error) {
	ctx = store.InCluster(ctx, b)
	all, err := store.ReadAll(ctx, b, keys.Leases(host))
	cluster, _ := b.Cluster()
	if err != nil {
		return nil, nil, fmt.Errorf("list the leases of host %q: %w", host, err)
	}
	for _, kv := range all.KVs {
		l, err := readListing(keys, host, kv)
		if err != nil {
			return nil, nil, problem.New(problem.CorruptValue, "%w", err)
		}
		switch {
		case l.Instance != instance:
		case l.Cluster != 0 && uint64(l.Cluster) != cluster:
		case l.Token == token:
			own = append(own, Resumable{ID: store.LeaseID(kv.Lease), Duration: time.Duration(l.Duration), Cluster: cluster})
		default:
			foreign = append(foreign, store.LeaseID(kv.Lease))
		}
	}
	return own, foreign, nil
}

// readWindows asks etcd how long the leases still live.
func readWindows(ctx context.Context, b store.Backend, clock Clock, all []Resumable) ([]Resumable, error) {
	alive := all[:0]
	for _, l := range all {
		sent := clock.Now()
		ttl, err := b.TimeToLive(ctx, l.ID)
		switch {
		case errors.Is(err, store.ErrLeaseNotFound):
			continue
		case err != nil:
			return nil, fmt.Errorf("read lease %s: %w", name(l.ID), err)
		}
		// As if the last renewal had been sent so much earlier.
		l.Window = NewWindow(sent-max(0, l.Duration-ttl), l.Duration)
		alive = append(alive, l)
	}
	return alive, nil
}

// readListing decodes an entry and checks that it hangs on the lease it names.
func readListing(keys store.Keys, host string, kv *mvccpb.KeyValue) (listing, error) {
	key := string(kv.Key)
	l, err := decodeListing(key, kv.Value)
	if err == nil && key != keys.Lease(host, store.LeaseID(kv.Lease)) {
		err = &store.CorruptError{Key: key, Reason: fmt.Errorf("it hangs on lease %s", name(store.LeaseID(kv.Lease)))}
	}
	return l, err
}

// refuseForeign returns an error if any of these leases still lives.
func refuseForeign(ctx context.Context, b store.Backend, host, instance string, ids []store.LeaseID) error {
	alive, longest := 0, time.Duration(0)
	for _, id := range ids {
		ttl, err := b.TimeToLive(ctx, id)
		switch {
		case errors.Is(err, store.ErrLeaseNotFound):
			continue
		case err != nil:
			return fmt.Errorf("read lease %s: %w", name(id), err)
		}
		alive++
		longest = max(longest, ttl)
	}
	if alive == 0 {
		return nil
	}
	within := (longest + time.Second).String()
	return problem.New(problem.HostInUse,
		"host %q has leases (%d) of another %q: either one is running under this name, or this one has lost its state directory; "+
			"stop the other one, or use another host name, or start again in %s, when leases that no process renews have ended",
		host, alive, instance, within).
		WithDetail(InUse{Host: host, Instance: instance, Leases: alive, EndsWithin: within})
}

// InUse is the detail of a [problem.HostInUse]: who has the name. What is not
// known is omitted.
type InUse struct {
	Host       string    `json:"host"`
	Instance   string    `json:"instance"`
	PID        int       `json:"pid,omitempty"`
	Since      time.Time `json:"since,omitzero"`
	Leases     int       `json:"leases,omitempty"`
	EndsWithin string    `json:"ends_within,omitempty"`
}
