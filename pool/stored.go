package pool

// StoredSpec is a spec as etcd has it. Zero is that of a pool which does not exist.
type StoredSpec struct {
	Spec
	layout layout
	// since is the revision since which the limit holds.
	since int64
}

// DecodeSpec reads a spec that was put at a revision.
func DecodeSpec(key string, data []byte, revision int64) (s StoredSpec, err error) {
	s.Spec, s.layout, s.since, err = decodeSpec(key, data, revision)
	return s, err
}

// Encode returns the value of the spec that replaces s.
func (s StoredSpec) Encode(next Spec) []byte {
	l, since := s.layout, s.since
	switch {
	case since == 0:
		l = layoutOf(next.Limit)
	case next.Limit != s.Limit:
		l, since = l.change(next.Limit), 0
	}
	return encodeSpec(next, l, since)
}
