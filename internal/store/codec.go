package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Version is the version of the values that this build writes, and the only one
// it reads.
const Version = 1

// CorruptError tells that the value of a key can't be read. Nothing is guessed
// about it.
type CorruptError struct {
	Key    string
	Reason error
}

// Error names the key and what is wrong with its value.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("value of key %q can't be read: %v", e.Key, e.Reason)
}

// Unwrap returns the reason.
func (e *CorruptError) Unwrap() error { return e.Reason }

// VersionError tells that a value was written by a version of berth that this
// one does not know.
type VersionError struct {
	Version int // of the value
	Reads   int // the one that this berth reads
}

// Error names both versions and says what to do.
func (e *VersionError) Error() string {
	return fmt.Sprintf("it has version %d, and this berth reads version %d only: upgrade the older one", e.Version, e.Reads)
}

// Encode writes a value. Values are made of plain structs, so that failing is a
// fault of the program.
func Encode(value any) []byte {
	b, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("store: encode %T: %v", value, err))
	}
	return b
}

// Versioned is a value that tells its version.
type Versioned interface{ version() int }

// V is the version field, to be embedded by every value: `"v":1`.
type V struct {
	Version int `json:"v"`
}

func (v V) version() int { return v.Version }

// Now is the version that this build writes.
var Now = V{Version}

// Decode reads the value of a key strictly: its field "v" must be [Version],
// unknown fields and anything behind the value are errors. The error is a
// [*CorruptError].
func Decode(key string, data []byte, value Versioned) error {
	return DecodeVersion(Version, key, data, value)
}

// DecodeVersion is [Decode] of values of another version.
func DecodeVersion(version int, key string, data []byte, value Versioned) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(value)
	if err == nil {
		if _, end := d.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("it has something behind its end")
		}
	}
	// Another version is the better reason for whatever else is wrong.
	var head V
	if err != nil && json.Unmarshal(data, &head) == nil && head.Version != version {
		return &CorruptError{Key: key, Reason: &VersionError{Version: head.Version, Reads: version}}
	}
	if err != nil {
		return &CorruptError{Key: key, Reason: err}
	}
	if v := value.version(); v != version {
		return &CorruptError{Key: key, Reason: &VersionError{Version: v, Reads: version}}
	}
	return nil
}
