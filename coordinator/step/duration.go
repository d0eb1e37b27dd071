package step

import (
	"encoding/json"
	"reflect"
	"strconv"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

// Duration is a time span that is written as text, such as "1m30s".
type Duration time.Duration

// String writes the duration.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the duration. Its error is one to which package json adds
// the field.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return &json.UnmarshalTypeError{Value: strconv.Quote(problem.Clip(string(text))), Type: reflect.TypeFor[Duration]()}
	}
	*d = Duration(v)
	return nil
}
