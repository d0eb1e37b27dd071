package source

import (
	"time"

	"github.com/berthhq/berth/internal/store"
)

// Look is what the last look of a source came to.
type Look struct {
	// By is the host that looked, and Interval how often the source looks.
	By       string        `json:"by"`
	Interval time.Duration `json:"interval_ns"`
	At       time.Time     `json:"at"`
	Took     time.Duration `json:"took_ns"`
	// Listed is how many items there were, those that were refused among them, and
	// Submitted how many became runs.
	Listed    int `json:"listed"`
	Refused   int `json:"refused,omitempty"`
	Submitted int `json:"submitted"`
	// Refusal is why the first of those was refused.
	Refusal string `json:"refusal,omitempty"`
	// Error is why the look failed, and Failures how many have, in a row.
	Error    string `json:"error,omitempty"`
	Failures int    `json:"failures,omitempty"`
	// LastGood is when the last look began that did not fail.
	LastGood time.Time `json:"last_good,omitzero"`
	// Wake is the revision of the wish that it had heard of when it began.
	Wake int64 `json:"wake,omitempty"`
}

type lookValue struct {
	store.V
	Look
}

func (l Look) encode() []byte { return store.Encode(lookValue{store.Now, l}) }

// decodeLook reads what a look came to. Its error is a [*store.CorruptError].
func decodeLook(key string, data []byte) (Look, error) {
	var v lookValue
	err := store.Decode(key, data, &v)
	return v.Look, err
}

// tellEvery is how old what is told of looks may become while nothing else changes.
const tellEvery = 10 * time.Second

// worthTelling tells whether others should see it, after what they have seen before.
func (l Look) worthTelling(told Look) bool {
	if l.At.Sub(told.At) >= tellEvery || l.At.Before(told.At) {
		return true
	}
	// Only times differ.
	told.At, told.Took, told.LastGood = l.At, l.Took, l.LastGood
	return l != told
}

// wish asks a source to look at once.
type wish struct {
	At time.Time `json:"at"`
}

type wishValue struct {
	store.V
	wish
}

func (w wish) encode() []byte { return store.Encode(wishValue{store.Now, w}) }

func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
