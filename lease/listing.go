package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/internal/store"
)

// listing is the value of a key under leases/: the instance to which a lease belongs.
type listing struct {
	Token    string `json:"token"`
	Instance string `json:"instance"`
	Duration span   `json:"duration"`
	// Cluster is the etcd cluster in which the lease was granted. A restore from a snapshot
	// brings the key back in another one, where the lease is not to be resumed.
	Cluster clusterID `json:"cluster,omitempty"`
}

// clusterID is written as etcd prints it, such as "cdf818194e3a8c32".
type clusterID uint64

// MarshalText writes the id.
func (c clusterID) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(c), 16), nil }

// UnmarshalText reads the id.
func (c *clusterID) UnmarshalText(text []byte) error {
	id, err := strconv.ParseUint(string(text), 16, 64)
	*c = clusterID(id)
	return err
}

// span is a duration that is written as text, such as "5m0s".
type span time.Duration

// MarshalText writes the duration.
func (s span) MarshalText() ([]byte, error) { return []byte(time.Duration(s).String()), nil }

// UnmarshalText reads the duration.
func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*s = span(d)
	return err
}

// listingValue is a listing as it is written.
type listingValue struct {
	store.V
	listing
}

func encodeListing(l listing) []byte {
	return store.Encode(listingValue{V: store.Now, listing: l})
}

// decodeListing reads the value of a key under leases/. Its error is a
// [*store.CorruptError].
func decodeListing(key string, data []byte) (listing, error) {
	var value listingValue
	if err := store.Decode(key, data, &value); err != nil {
		return listing{}, err
	}
	l := value.listing
	if l.Token == "" || l.Instance == "" || l.Duration <= 0 {
		return listing{}, &store.CorruptError{Key: key, Reason: errors.New("it lacks a token, an instance or a duration")}
	}
	return l, nil
}

// ListedLease is a lease of an instance that a later process could resume.
type ListedLease struct {
	ID              store.LeaseID
	Instance, Token string
}

// Listed returns the leases of the instances of a host that can be resumed, without entries that can't be read.
func Listed(ctx context.Context, b store.Backend, keys store.Keys, host string) ([]ListedLease, error) {
	all, err := store.ReadAll(ctx, b, keys.Leases(host))
	if err != nil {
		return nil, fmt.Errorf("list the leases of host %q: %w", host, err)
	}
	var listed []ListedLease
	for _, kv := range all.KVs {
		if l, err := readListing(keys, host, kv); err == nil {
			listed = append(listed, ListedLease{store.LeaseID(kv.Lease), l.Instance, l.Token})
		}
	}
	return listed, nil
}

const (
	// leaseReads is how many leases etcd is asked about at once: so that 10,000 are
	// a matter of a second, and etcd has time for others.
	leaseReads = 32
	// leaseReadTime bounds the time for all of them.
	leaseReadTime = 2 * time.Second
)

// Ends returns how long leases live unless they are renewed; 0 if a lease has ended.
// Leases for which etcd does not answer within [leaseReadTime] are omitted.
func Ends(ctx context.Context, b store.Backend, ids []store.LeaseID) (map[store.LeaseID]time.Duration, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids))) // claims share leases
	limited, cancel := context.WithTimeout(ctx, leaseReadTime)
	defer cancel()
	asking, all := errgroup.WithContext(limited)
	asking.SetLimit(leaseReads)
	var mu sync.Mutex // guards ends
	ends := make(map[store.LeaseID]time.Duration, len(ids))
	for _, id := range ids {
		if all.Err() != nil {
			break
		}
		asking.Go(func() error {
			ttl, err := b.TimeToLive(all, id)
			if err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			ends[id] = ttl // 0 if it is gone
			return nil
		})
	}
	err := asking.Wait()
	switch {
	case ctx.Err() != nil:
		return ends, context.Cause(ctx)
	case err != nil && limited.Err() == nil:
		return ends, store.Problem("the leases could not be read", err)
	}
	return ends, nil
}
