package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

const (
	// Unlimited is no limit.
	Unlimited = -1
	// DefaultMaxRuns is the default of max_concurrent_runs.
	DefaultMaxRuns = 10
	// MaxLimit bounds a limit.
	MaxLimit = 1_000_000
	// MaxTagLimits bounds the number of tag limits.
	MaxTagLimits = 1000
)

// Limits bound the runs in progress.
type Limits struct {
	// MaxConcurrentRuns bounds all runs in progress; [Unlimited] is no bound, and 0 admits
	// none.
	MaxConcurrentRuns int `json:"max_concurrent_runs"`
	// Tags bound the runs in progress with a tag.
	Tags []TagLimit `json:"tags"`
}

// DefaultLimits returns the limits that apply if none are set.
func DefaultLimits() Limits { return Limits{MaxConcurrentRuns: DefaultMaxRuns, Tags: []TagLimit{}} }

// Validate returns a problem that names the field if the limits are not valid.
func (l Limits) Validate() error {
	if err := validateLimit("max_concurrent_runs", l.MaxConcurrentRuns); err != nil {
		return err
	}
	if len(l.Tags) > MaxTagLimits {
		return problem.Field("tags", "%d tag limits are too many: use at most %d", len(l.Tags), MaxTagLimits)
	}
	seen := map[TagLimit]bool{}
	for i, t := range l.Tags {
		field := fmt.Sprintf("tags[%d]", i)
		if err := t.validate(field); err != nil {
			return err
		}
		if seen[t.what()] {
			return problem.Field(field, "'%s' has two limits", t.Name())
		}
		seen[t.what()] = true
	}
	return nil
}

func validateLimit(field string, n int) error {
	if n != Unlimited && (n < 0 || n > MaxLimit) {
		return problem.Field(field, "%d is out of range: use 0 to %d, and -1 (unlimited)", n, MaxLimit)
	}
	return nil
}

// normal orders the limits, so that equal sets are encoded alike.
func (l Limits) normal() Limits {
	l.Tags = slices.SortedFunc(slices.Values(l.Tags), TagLimit.compare)
	if l.Tags == nil {
		l.Tags = []TagLimit{}
	}
	return l
}

// equal reports whether two normal sets are the same.
func (l Limits) equal(o Limits) bool {
	return l.MaxConcurrentRuns == o.MaxConcurrentRuns && slices.Equal(l.Tags, o.Tags)
}

// LimitsChange is a change of limits. Fields that are nil stay unchanged.
type LimitsChange struct {
	MaxConcurrentRuns *int
	// Tags are set, or removed if their limit is [Unlimited].
	Tags []TagLimit
	// Replace replaces all tag limits by Tags.
	Replace bool
	// If is what the revision of the limits must satisfy, which is 0 if none are set.
	If store.Condition
}

// Apply returns the limits with the change.
func (ch LimitsChange) Apply(l Limits) Limits {
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

// Validate returns a problem if the change is not valid.
func (ch LimitsChange) Validate() error {
	max := DefaultMaxRuns
	if ch.MaxConcurrentRuns != nil {
		max = *ch.MaxConcurrentRuns
	}
	for i, t := range ch.Tags {
		if t.Limit == Unlimited {
			continue // any limit can be removed
		}
		if err := pool.ValidateLine(fmt.Sprintf("tags[%d]", i), t.Name()); err != nil {
			return err
		}
	}
	return Limits{MaxConcurrentRuns: max, Tags: ch.Tags}.Validate()
}

// limitsValue is the value of limits in etcd.
type limitsValue struct {
	store.V
	Limits
}

// DecodeLimits decodes the limits.
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

// Limits returns the limits and their revision, which is 0 if none are set.
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

// SetLimits changes the limits and returns the new ones, with their revision. Runs in progress
// continue.
func (s Store) SetLimits(ctx context.Context, ch LimitsChange) (l Limits, rev int64, err error) {
	if err := ch.Validate(); err != nil {
		return Limits{}, 0, err
	}
	l, err = store.Change(ctx, "the limits were not changed", func(ctx context.Context) (Limits, error) {
		var old Limits
		old, rev, err = s.limits(ctx)
		unreadable := err != nil
		if rev != 0 && ch.Replace && ch.MaxConcurrentRuns != nil {
			err = nil // even a value that cannot be read is replaced
		}
		if err != nil {
			return Limits{}, stopAtCorrupt("the limits were not changed", err)
		}
		l := ch.Apply(old)
		if err := l.Validate(); err != nil {
			return Limits{}, store.Stop(err)
		}
		if err := ch.If.Check(rev); err != nil {
			return Limits{}, err
		}
		if rev != 0 && !unreadable && l.equal(old) {
			return l, nil
		}
		key := s.Keys.Limits()
		rev, err = store.Commit(ctx, s.Backend, []*pb.Compare{store.ModEquals(key, rev)},
			store.Put(key, store.Encode(limitsValue{store.Now, l}), 0))
		return l, err
	})
	return l, rev, err
}

// TagLimit bounds the runs in progress with a tag.
type TagLimit struct {
	// Key is that of the tag.
	Key string `json:"key"`
	// Value is that of the tag. If it is empty, the limit applies to all values together,
	// or to each value separately with PerUniqueValue.
	Value          string `json:"value,omitempty"`
	PerUniqueValue bool   `json:"per_unique_value,omitempty"`
	// Limit is 0 to [MaxLimit]. In a change, [Unlimited] removes the limit.
	Limit int `json:"limit"`
}

// ParseTagLimit parses KEY=VALUE=N, KEY=N (all values together) or KEY=*=N (each value
// separately).
func ParseTagLimit(s string) (TagLimit, error) {
	const how = "%q is not a tag limit: write KEY=VALUE=N, KEY=N for all values together, or KEY=*=N for each value separately"
	at := strings.LastIndexByte(s, '=')
	if at < 0 {
		return TagLimit{}, problem.Field("tag", how, problem.Clip(s))
	}
	n, err := strconv.Atoi(s[at+1:])
	if err != nil || !text.IsDecimal(s[at+1:]) { // +1 looks like an increase
		return TagLimit{}, problem.Field("tag", how+"; N is the new limit, without the sign +", problem.Clip(s))
	}
	key, value, hasValue := strings.Cut(s[:at], "=")
	t := TagLimit{Key: key, Value: value, Limit: n}
	if value == "*" {
		t.Value, t.PerUniqueValue = "", true
	} else if hasValue && value == "" {
		return TagLimit{}, problem.Field("tag", how, problem.Clip(s))
	}
	return t, t.validate("tag")
}

// String returns the limit for [ParseTagLimit].
func (t TagLimit) String() string { return t.Name() + "=" + strconv.Itoa(t.Limit) }

// Name returns what is limited: KEY=VALUE, KEY or KEY=*.
func (t TagLimit) Name() string {
	switch {
	case t.PerUniqueValue:
		return t.Key + "=*"
	case t.Value != "":
		return t.Key + "=" + t.Value
	}
	return t.Key
}

// what returns the limit without its number.
func (t TagLimit) what() TagLimit {
	t.Limit = 0
	return t
}

func (t TagLimit) compare(o TagLimit) int {
	return cmp.Or(cmp.Compare(t.Key, o.Key), cmp.Compare(t.Name(), o.Name()))
}

func (t TagLimit) validate(field string) error {
	if t.PerUniqueValue && t.Value != "" {
		return problem.Field(field+".per_unique_value", "value '%s' and per_unique_value cannot be used together", problem.Clip(t.Value))
	}
	value := t.Value
	if value == "" {
		value = "any"
	}
	if err := ValidateTag(t.Key, value); err != nil {
		var p *problem.Error
		if errors.As(err, &p) {
			p.Field = field
		}
		return err
	}
	return validateLimit(field+".limit", t.Limit)
}
