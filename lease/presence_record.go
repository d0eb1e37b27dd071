package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// PresenceRecord is what is seen of a live instance: the value of its key under
// hosts/.
type PresenceRecord struct {
	// Host and Instance are spelled by the key.
	Host     string `json:"-"`
	Instance string `json:"-"`
	// Lease is that of the key, which the instance renews: see [LastSeen].
	Lease store.LeaseID `json:"-"`

	// Role is what the instance does: sidecar, worker, coordinator, exec, …
	Role string `json:"role"`
	// Version of berth.
	Version string `json:"version"`
	PID     int    `json:"pid"`
	// Capacity is how many steps the instance runs at a time; 0 for one that
	// runs none.
	Capacity int `json:"capacity"`
	// Queues are those that the instance takes steps from; none of one that runs none.
	Queues []string `json:"queues,omitempty"`
	// Since is when the process took its name, by its host's wall clock.
	Since time.Time `json:"since"`
	// Token tells whose the key is when its name is taken again.
	Token string `json:"token"`
}

// Works tells which instance it is, from which queues it takes steps, and how many it runs
// at a time: what there is to know of a worker.
func (r PresenceRecord) Works() (host, instance string, queues []string, capacity int) {
	return r.Host, r.Instance, r.Queues, r.Capacity
}

// presenceValue is a record as it is written.
type presenceValue struct {
	store.V
	PresenceRecord
}

func encodePresence(r PresenceRecord) []byte {
	return store.Encode(presenceValue{V: store.Now, PresenceRecord: r})
}

// DecodePresence reads a key under [store.Keys.Hosts] and its value. Its error
// is a [*store.CorruptError].
func DecodePresence(keys store.Keys, key string, value []byte) (PresenceRecord, error) {
	rest, _ := strings.CutPrefix(key, keys.Hosts())
	host, instance, _ := strings.Cut(rest, "/")
	if host == "" || instance == "" || keys.Presence(host, instance) != key {
		return PresenceRecord{}, &store.CorruptError{Key: key, Reason: fmt.Errorf("no instance has such a key")}
	}
	var v presenceValue
	if err := store.Decode(key, value, &v); err != nil {
		return PresenceRecord{}, err
	}
	v.Host, v.Instance = host, instance
	return v.PresenceRecord, nil
}

// SeenWithin is the age from which the last renewal of a presence is late: an instance that
// lives renews it every third of [PresenceTTL], and etcd rounds to seconds.
const SeenWithin = 5 * time.Second

// LastSeen returns when an instance renewed its presence last, if the lease of its key lives on for
// so long now. It is exact to a second. When etcd changes its leader, it prolongs all leases, so
// that an instance that ended before seems to have been seen at that moment.
func LastSeen(now time.Time, left time.Duration) time.Time {
	return now.Add(-max(0, PresenceTTL-time.Second-left)) // left is without a fraction of a second
}

// Instances returns the instances that have a presence key, by host and name. Keys that
// can't be read are omitted from the list; the error joins a [*store.CorruptError] for
// each.
func Instances(ctx context.Context, b store.Backend, keys store.Keys) ([]PresenceRecord, error) {
	s, err := store.ReadAll(ctx, b, keys.Hosts())
	if err != nil {
		return nil, store.Problem("the hosts could not be read", err)
	}
	var all []PresenceRecord
	var errs []error
	for _, kv := range s.KVs {
		r, err := DecodePresence(keys, string(kv.Key), kv.Value)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.Lease = store.LeaseID(kv.Lease)
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b PresenceRecord) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance))
	})
	return all, errors.Join(errs...)
}
