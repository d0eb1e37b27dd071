package lease

import (
	"errors"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// listing is the value of a key under leases/: to whom a lease belongs.
type listing struct {
	Token    string `json:"token"`
	Instance string `json:"instance"`
	Duration span   `json:"duration"`
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
