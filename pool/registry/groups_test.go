package registry_test

import (
	"testing"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// newGrouped is an etcd with pools whose slots are in groups.
func newGrouped(t *testing.T) *cluster {
	c := newCluster(t)
	c.reg = registry.Registry{Backend: c.client, Keys: c.keys.Keys}
	c.spec = func(name string) shown {
		c.t.Helper()
		r, err := pool.Read(c.ctx(), c.client, c.keys.Keys)
		if err != nil {
			t.Fatal(err)
		}
		d, err := r.Pool(name)
		if err != nil {
			t.Fatal(err)
		}
		return shown{d.Spec, d.SpecRevision, d.LimitSince}
	}
	return c
}

// FuzzDecodeOldAsBefore reads specs as the code has read them that has written them.
func FuzzDecodeOldAsBefore(f *testing.F) {
	for _, s := range oldSpecs {
		f.Add(pool.StoredSpec{}.Encode(s))
	}
	f.Add([]byte(`{"v":1,"limit":4,"lease_duration":"1m","reserve_after":"-1","groups":3,"limit_since":4}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		was, errWas := pool.DecodeSpec("k", data, 1<<40)
		got, retain, err := registry.DecodeOldSpec("k", data)
		if got.Retain = retain; errWas == nil && (err != nil || got != was.Spec) {
			t.Errorf("%s is read as %+v, %v, and was %+v", data, got, err, was.Spec)
		}
	})
}
