package wire

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
)

// specValue is the value of a spec in etcd.
type specValue struct {
	store.V
	Limit         int    `json:"limit"`
	LeaseDuration string `json:"lease_duration"`
	ReserveAfter  string `json:"reserve_after"`
	Paused        bool   `json:"paused,omitempty"`
	// LimitSince is the revision since which the limit holds; 0 is the revision of this very value.
	LimitSince int64 `json:"limit_since,omitempty"`
}

// EncodeSpec returns the value of a spec whose limit holds since a revision, or since the one that puts it if that is 0.
func EncodeSpec(s pool.Spec, limitSince int64) []byte {
	return store.Encode(specValue{
		V: now, Limit: s.Limit, Paused: s.Paused, LimitSince: limitSince,
		LeaseDuration: s.LeaseDuration.String(), ReserveAfter: pool.FormatReserveAfter(s.ReserveAfter),
	})
}

// DecodeSpec reads the spec that was put at a revision, and returns it with what claims depend on.
func DecodeSpec(key string, data []byte, revision int64) (pool.Spec, slots.Spec, error) {
	var v specValue
	if err := store.DecodeVersion(Version, key, data, &v); err != nil {
		return pool.Spec{}, slots.Spec{}, err
	}
	s, err := v.spec()
	if err == nil && (v.LimitSince < 0 || v.LimitSince > revision) {
		err = fmt.Errorf("limit_since must be a revision up to %d, and not %d", revision, v.LimitSince)
	}
	if err != nil {
		return pool.Spec{}, slots.Spec{}, &store.CorruptError{Key: key, Reason: err}
	}
	since := v.LimitSince
	if since == 0 {
		since = revision
	}
	return s, slots.Spec{Limit: s.Limit, Revision: revision, Since: since}, nil
}

func (v *specValue) spec() (s pool.Spec, err error) {
	s = pool.Spec{Limit: v.Limit, Paused: v.Paused}
	if s.LeaseDuration, err = time.ParseDuration(v.LeaseDuration); err != nil {
		return s, fmt.Errorf("lease_duration: %w", err)
	}
	if s.ReserveAfter, err = pool.ParseReserveAfter(v.ReserveAfter); err != nil {
		return s, err
	}
	return s, s.Validate()
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
