package sidecar

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// maxGoneLeases bounds the leases that etcd is asked about for one instance that is gone:
// all of one instance are renewed at about the same time.
const maxGoneLeases = 4

// HostsWithGone is [HostsOf], and those besides that are not seen any more, and have
// something that is their own still: until its leases have ended, they may come back to it.
func HostsWithGone(ctx context.Context, b store.Backend, keys store.Keys, seen []lease.PresenceRecord, active []step.Active, candidates []run.Candidate) ([]Host, error) {
	all := HostsOf(seen, active, candidates)
	known := make(map[[2]string]bool, len(all))
	for _, h := range all {
		known[[2]string{h.Host, h.Instance}] = true
	}
	for _, a := range active {
		if known[[2]string{a.Host, a.Instance}] {
			continue
		}
		// Who has just come, or can't be read, is among the executors, and not in the list.
		resp, err := b.Range(ctx, &pb.RangeRequest{Key: []byte(keys.Presence(a.Host, a.Instance)), KeysOnly: true})
		if err != nil {
			return nil, store.Problem("the hosts could not be read", err)
		}
		if len(resp.Kvs) > 0 {
			continue
		}
		left, err := workLeft(ctx, b, a.Leases)
		if err != nil {
			return nil, store.Problem("the leases of hosts that are gone could not be read", err)
		}
		if left > 0 {
			all = append(all, Host{
				Host: a.Host, Instance: a.Instance, ActiveSteps: a.Steps, ActiveRuns: a.Runs,
				Gone: true, WorkLeft: Duration(left),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b Host) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance))
	})
	return all, nil
}

// workLeft is how long the last of some leases lives unless it is renewed.
func workLeft(ctx context.Context, b store.Backend, leases []store.LeaseID) (longest time.Duration, err error) {
	for _, id := range leases[:min(len(leases), maxGoneLeases)] {
		left, err := b.TimeToLive(ctx, id)
		if err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
			return 0, err
		}
		longest = max(longest, left)
	}
	return longest, nil
}
