package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// oldVersion is that of all values before slots had numbers.
const oldVersion = 1

// oldSpecValue is the value of a spec then.
type oldSpecValue struct {
	store.V
	Limit         int    `json:"limit"`
	LeaseDuration string `json:"lease_duration"`
	ReserveAfter  string `json:"reserve_after"`
	Retain        string `json:"retain"`
	Paused        bool   `json:"paused"`
	// LimitSince and Groups were about slots, of which none are left.
	LimitSince int64 `json:"limit_since"`
	Groups     int   `json:"groups"`
}

// decodeOldSpec reads a spec, and for how long hosts retained slots of the pool.
func decodeOldSpec(key string, data []byte) (s pool.Spec, retain time.Duration, err error) {
	var v oldSpecValue
	if err := store.DecodeVersion(oldVersion, key, data, &v); err != nil {
		return pool.Spec{}, 0, err
	}
	s = pool.Spec{Limit: v.Limit, Paused: v.Paused}
	if s.LeaseDuration, err = time.ParseDuration(v.LeaseDuration); err != nil {
		err = fmt.Errorf("lease_duration: %w", err)
	} else if s.ReserveAfter, err = pool.ParseReserveAfter(v.ReserveAfter); err == nil {
		err = s.Validate()
	}
	if err == nil && v.Retain != "" {
		if retain, err = time.ParseDuration(v.Retain); err != nil {
			err = fmt.Errorf("retain: %w", err)
		}
	}
	if err != nil {
		return pool.Spec{}, 0, &store.CorruptError{Key: key, Reason: err}
	}
	return s, retain, nil
}

// oldSlotValue is the value of a slot then, as far as it says who holds it. A claim has a record in its main key; its
// other keys name that.
type oldSlotValue struct {
	Claim  string `json:"claim"`
	Record *struct {
		Holder struct {
			Host     string `json:"host"`
			Instance string `json:"instance"`
		} `json:"holder"`
	} `json:"record"`
}

// decodeOldHolder returns who holds a slot, as HOST/INSTANCE/CLAIM; it is empty for a key that does not say so.
func decodeOldHolder(data []byte) (string, error) {
	var v oldSlotValue
	if err := json.Unmarshal(data, &v); err != nil {
		return "", err
	}
	if v.Record == nil {
		return "", nil
	}
	by := v.Record.Holder
	if err := errors.Join(pool.ValidateName(by.Host), pool.ValidateName(by.Instance), pool.ValidateID(v.Claim)); err != nil {
		return "", err
	}
	return by.Host + "/" + by.Instance + "/" + v.Claim, nil
}

// oldTaskValue is the value of the key of a task whose pool was created by a run that declares its limit, then and now.
type oldTaskValue struct {
	store.V
	// Spec is the revision of the pool's spec; 0 is that of the value.
	Spec int64 `json:"spec,omitempty"`
}

// decodeTask returns the revision of the spec that a run has created for a task, whose key was put at a revision.
func decodeTask(key string, data []byte, revision int64) (spec int64, err error) {
	var v oldTaskValue
	if err := store.DecodeVersion(oldVersion, key, data, &v); err != nil {
		return 0, err
	}
	if v.Spec == 0 {
		return revision, nil
	}
	return v.Spec, nil
}

// encodeTask returns the value of the key of a task that is put together with the spec of its pool.
func encodeTask() []byte { return store.Encode(oldTaskValue{V: store.V{Version: oldVersion}}) }
