package run

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// Unlimited is the limit that is none.
	Unlimited = -1
	// DefaultMaxRuns is max_concurrent_runs where nobody has set any.
	DefaultMaxRuns = 10
	// MaxLimit bounds a limit.
	MaxLimit = 1_000_000
	// MaxTagLimits bounds how many tags are limited: each queued run is held
	// against those of its tags in every tick.
	MaxTagLimits = 1000
)

// Limits are what runs are admitted under.
type Limits struct {
	// MaxConcurrentRuns bounds the runs in progress; [Unlimited] is no bound, and 0
	// admits none.
	MaxConcurrentRuns int `json:"max_concurrent_runs"`
	// Tags are limits of runs in progress that have a tag, by key and value.
	Tags []TagLimit `json:"tags"`
}

// DefaultLimits are those where nobody has set any.
func DefaultLimits() Limits { return Limits{MaxConcurrentRuns: DefaultMaxRuns, Tags: []TagLimit{}} }

// Validate refuses what can't be a set of limits, and names the field.
func (l Limits) Validate() error {
	if err := validateLimit("max_concurrent_runs", l.MaxConcurrentRuns); err != nil {
		return err
	}
	if len(l.Tags) > MaxTagLimits {
		return problem.Field("tags", "%d limits of tags are too many: allowed are %d", len(l.Tags), MaxTagLimits)
	}
	seen := map[TagLimit]bool{}
	for i, t := range l.Tags {
		field := fmt.Sprintf("tags[%d]", i)
		if err := t.validate(field); err != nil {
			return err
		}
		if seen[t.what()] {
			return problem.Field(field, "'%s' is limited twice: one of the two has to go", t.Name())
		}
		seen[t.what()] = true
	}
	return nil
}

func validateLimit(field string, n int) error {
	if n != Unlimited && (n < 0 || n > MaxLimit) {
		return problem.Field(field, "%d is out of range: allowed are 0 to %d, and -1 (unlimited)", n, MaxLimit)
	}
	return nil
}

// normal puts limits in the order in which they are shown: two that mean the same
// are written the same.
func (l Limits) normal() Limits {
	l.Tags = slices.SortedFunc(slices.Values(l.Tags), TagLimit.compare)
	if l.Tags == nil {
		l.Tags = []TagLimit{}
	}
	return l
}

// equal tells whether two normal sets are the same.
func (l Limits) equal(o Limits) bool {
	return l.MaxConcurrentRuns == o.MaxConcurrentRuns && slices.Equal(l.Tags, o.Tags)
}

// LimitsChange is what an operator wants of the limits. What is nil stays.
type LimitsChange struct {
	MaxConcurrentRuns *int
	// Tags are set, or removed if their limit is [Unlimited].
	Tags []TagLimit
	// Replace has Tags replace all that there are.
	Replace bool
}

func (ch LimitsChange) apply(l Limits) Limits {
	if ch.MaxConcurrentRuns != nil {
		l.MaxConcurrentRuns = *ch.MaxConcurrentRuns
	}
	tags := slices.Clone(l.Tags)
	if ch.Replace {
		tags = nil
	}
	for _, t := range ch.Tags {
		if !ch.Replace {
			tags = slices.DeleteFunc(tags, func(o TagLimit) bool { return o.what() == t.what() })
		}
		if t.Limit != Unlimited {
			tags = append(tags, t)
		}
	}
	l.Tags = tags
	return l.normal()
}

// validate refuses a change that contradicts itself.
func (ch LimitsChange) validate() error {
	max := DefaultMaxRuns
	if ch.MaxConcurrentRuns != nil {
		max = *ch.MaxConcurrentRuns
	}
	for i, t := range ch.Tags {
		if t.Limit == Unlimited {
			continue // it can be removed, whatever it is
		}
		if err := pool.ValidateLine(fmt.Sprintf("tags[%d]", i), t.Name()); err != nil {
			return err
		}
	}
	return Limits{MaxConcurrentRuns: max, Tags: ch.Tags}.Validate()
}

// limitsValue is how limits stand in etcd.
type limitsValue struct {
	store.V
	Limits
}

// DecodeLimits reads the value of the key of the limits.
func DecodeLimits(key string, data []byte) (Limits, error) {
	var v limitsValue
	if err := store.Decode(key, data, &v); err != nil {
		return Limits{}, err
	}
	if err := v.Limits.Validate(); err != nil {
		return Limits{}, &store.CorruptError{Key: key, Reason: err}
	}
	if slices.ContainsFunc(v.Tags, func(t TagLimit) bool { return t.Limit == Unlimited }) {
		return Limits{}, &store.CorruptError{Key: key, Reason: errors.New("tags: one is unlimited")}
	}
	return v.Limits.normal(), nil
}

// Limits returns the limits, and the revision since which they hold: 0 if nobody
// has set any.
func (s Store) Limits(ctx context.Context) (Limits, int64, error) {
	l, rev, err := s.limits(ctx)
	if err != nil {
		return Limits{}, 0, store.Problem("the limits could not be read", err)
	}
	return l, rev, nil
}

func (s Store) limits(ctx context.Context) (Limits, int64, error) {
	key := s.Keys.Limits()
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil || len(resp.Kvs) == 0 {
		return DefaultLimits(), 0, err
	}
	l, err := DecodeLimits(key, resp.Kvs[0].Value)
	return l, resp.Kvs[0].ModRevision, err
}

// SetLimits changes the limits, and returns what they are then. Runs in progress
// go on, whatever the limits are.
func (s Store) SetLimits(ctx context.Context, ch LimitsChange) (Limits, error) {
	if err := ch.validate(); err != nil {
		return Limits{}, err
	}
	return store.Change(ctx, "the limits were not changed", func(ctx context.Context) (Limits, error) {
		old, rev, err := s.limits(ctx)
		if rev != 0 && ch.Replace && ch.MaxConcurrentRuns != nil {
			err = nil // whatever was there is replaced, also what can't be read
		}
		if err != nil {
			return Limits{}, stopAtCorrupt("the limits were not changed", err)
		}
		l := ch.apply(old)
		if err := l.Validate(); err != nil {
			return Limits{}, store.Stop(err)
		}
		if rev != 0 && l.equal(old) {
			return l, nil
		}
		key := s.Keys.Limits()
		_, err = store.Commit(ctx, s.Backend, []*pb.Compare{store.ModEquals(key, rev)},
			store.Put(key, store.Encode(limitsValue{store.Now, l}), 0))
		return l, err
	})
}
