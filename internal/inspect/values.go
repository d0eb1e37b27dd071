package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// Duration is a time.Duration that is written as users write it: 30s, 5m,
// 1h30m. [pool.NeverReserve] is written -1.
type Duration time.Duration

// String writes the duration.
func (d Duration) String() string { return pool.FormatReserveAfter(time.Duration(d)) }

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the duration. Its error is a [*json.UnmarshalTypeError], to
// which package json adds the field.
func (d *Duration) UnmarshalText(data []byte) error {
	v, err := pool.ParseReserveAfter(string(data))
	if err != nil {
		return &json.UnmarshalTypeError{Value: strconv.Quote(problem.Clip(string(data))), Type: reflect.TypeFor[Duration]()}
	}
	*d = Duration(v)
	return nil
}

// DurationOf returns a pointer to a duration, for optional fields.
func DurationOf(d time.Duration) *Duration { return (*Duration)(&d) }

// Slots is how many slots of each pool a claim takes.
type Slots map[string]int

// UnmarshalJSON reads slots. Its error names the pool.
func (s *Slots) UnmarshalJSON(data []byte) error {
	var m map[string]int
	err := json.Unmarshal(data, &m)
	if err == nil {
		*s = m
		return nil
	}
	var each map[string]json.RawMessage
	if json.Unmarshal(data, &each) != nil {
		return &json.UnmarshalTypeError{Value: kindOf(data), Type: reflect.TypeFor[Slots]()}
	}
	for _, name := range slices.Sorted(maps.Keys(each)) {
		var n int
		if json.Unmarshal(each[name], &n) != nil {
			return &json.UnmarshalTypeError{Value: kindOf(each[name]), Type: reflect.TypeFor[int](), Field: name}
		}
	}
	return err
}

// kindOf describes a JSON value in a message.
func kindOf(data []byte) string {
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return ""
	}
	switch data[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "the string " + problem.Clip(string(data))
	case 'n':
		return "null"
	}
	return problem.Clip(string(data))
}

// List is what lists are answered as.
type List[T any] struct {
	Items []T    `json:"items" nullable:"false"`
	Next  string `json:"next,omitempty" doc:"Where the next page begins, if there is more: give it as the query parameter cursor."`
}

// ListOf returns a list with the records of some values. It is never null in
// JSON.
func ListOf[T, R any](all []T, record func(T) R) List[R] {
	items := make([]R, len(all))
	for i, v := range all {
		items[i] = record(v)
	}
	return List[R]{Items: items}
}

// Unreadable is a key in etcd with a value that can't be read.
type Unreadable struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// MaxUnreadable bounds the unreadable values that one answer lists.
const MaxUnreadable = 100

// UnreadableOf returns the records of errors about values that can't be read, at
// most [MaxUnreadable] of them.
func UnreadableOf(bad []error) (all []Unreadable) {
	for _, err := range bad[:min(len(bad), MaxUnreadable)] {
		u := Unreadable{Reason: err.Error()}
		if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
			u = Unreadable{Key: corrupt.Key, Reason: corrupt.Reason.Error()}
		}
		all = append(all, u)
	}
	return all
}

// Validity is how long what a server granted is valid.
type Validity struct {
	ValidFor   Duration  `json:"valid_for" doc:"How long it is valid unless it is renewed, from the sending of the request; 0s if it is not valid."`
	ValidUntil time.Time `json:"valid_until,omitzero" doc:"The same as an instant of the server's clock."`
	Grace      Duration  `json:"grace,omitzero" doc:"How long the executor may take to stop; it must begin that much before the validity ends."`

	// Deadline is when the validity ends, on the boot clock of the client's machine; 0 if
	// it is not valid. The Go client sets it.
	Deadline time.Duration `json:"-"`
}

// Sent sets the deadline of the answer to a request that was sent at an instant of the boot
// clock.
func (v *Validity) Sent(at time.Duration) { v.Deadline = Deadline(at, v.ValidFor) }

// Remaining returns how long it is still valid, and how long the executor may take to stop.
func (v *Validity) Remaining() (left, grace time.Duration) { return remaining(v.Deadline, v.Grace) }

// maxValidity bounds what a client believes: the longest wait, and the longest lease.
const maxValidity = 365*24*time.Hour + pool.MaxLeaseDuration

// Deadline returns when the validity ends that an answer states, if its request was sent at
// an instant; 0 if it is not valid.
func Deadline(sent time.Duration, validFor Duration) time.Duration {
	if validFor <= 0 {
		return 0
	}
	return sent + min(time.Duration(validFor), maxValidity)
}

// remaining returns how long something is valid whose validity ends at a deadline.
func remaining(deadline time.Duration, grace Duration) (left, stop time.Duration) {
	left = deadline - lease.BootClock().Now()
	if deadline == 0 || left <= 0 {
		return 0, 0
	}
	return left, min(max(0, time.Duration(grace)), maxValidity)
}
