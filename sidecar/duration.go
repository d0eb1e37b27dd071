package sidecar

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/pool"
)

// Duration is a time.Duration that is written as users write it: 30s, 5m,
// 1h30m. [pool.NeverReserve] is written -1.
type Duration time.Duration

// String writes the duration.
func (d Duration) String() string { return pool.FormatReserveAfter(time.Duration(d)) }

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the duration. Its error is one to which package json adds
// the field.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := pool.ParseReserveAfter(string(text))
	if err != nil {
		return &json.UnmarshalTypeError{Value: quote(string(text)), Type: durationType}
	}
	*d = Duration(v)
	return nil
}

var durationType = reflect.TypeFor[Duration]()

// Schema describes a duration in the OpenAPI document.
func (Duration) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type:     huma.TypeString,
		Pattern:  `^(-1|[0-9.]+(ns|us|µs|ms|s|m|h)([0-9.]+(ns|us|µs|ms|s|m|h))*)$`,
		Examples: []any{"30s", "5m", "1h30m"},
	}
}

// DurationOf returns a pointer to a duration, for fields that may be left out.
func DurationOf(d time.Duration) *Duration { return (*Duration)(&d) }
