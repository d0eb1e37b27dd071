package store

// KeyRange is a range of keys as etcd has it in its requests: Key is the first key, and End the first one behind the
// last. An empty End is Key alone, and End "\x00" is every key from Key on.
type KeyRange struct{ Key, End string }

// Prefix is the range of every key under a prefix, and of every key there is for an empty one.
func Prefix(prefix string) KeyRange {
	if prefix == "" {
		return KeyRange{"\x00", "\x00"} // etcd has no empty key, and reads none
	}
	return KeyRange{prefix, string(RangeEnd(prefix))}
}

// Contains reports whether a key lies in the range.
func (r KeyRange) Contains(key []byte) bool {
	switch r.End {
	case "":
		return string(key) == r.Key
	case "\x00":
		return string(key) >= r.Key
	}
	return string(key) >= r.Key && string(key) < r.End
}

// String returns the prefix or the key that the range is of, and both ends of other ranges.
func (r KeyRange) String() string {
	if r.End == "" || r == Prefix(r.Key) {
		return r.Key
	}
	return r.Key + " to " + r.End
}
