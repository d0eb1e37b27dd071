package run

import (
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// wantCorrupt checks that a refusal names the key.
func wantCorrupt(t *testing.T, key string, err error) {
	t.Helper()
	var c *store.CorruptError
	if !errors.As(err, &c) || c.Key != key {
		t.Errorf("key %q: %v", key, err)
	}
}

func FuzzDecodeRun(f *testing.F) {
	f.Add("a", []byte(`{"v":1,"status":"queued","queued_at":"2026-01-01T00:00:00Z"}`))
	f.Add("a", []byte(`{"v":1,"status":"running","queued_at":"2026-01-01T00:00:00Z","executor":{"host":"h","instance":"i"}}`))
	f.Add("a/b", []byte(`{"v":1,"status":"running"}`))
	keys := store.NewKeys("/b/")
	f.Fuzz(func(t *testing.T, id string, data []byte) {
		key := keys.Run(id)
		r, err := Decode(keys, &mvccpb.KeyValue{Key: []byte(key), Value: data})
		if err != nil {
			wantCorrupt(t, key, err)
			return
		}
		if r.ID != id || ValidateID(id) != nil || r.Spec.Validate() != nil {
			t.Errorf("%+v", r)
		}
		if _, err := Decode(keys, &mvccpb.KeyValue{Key: []byte(key), Value: r.Record.Encode()}); err != nil {
			t.Errorf("does not read back: %v", err)
		}
	})
}

func FuzzDecodeLimits(f *testing.F) {
	f.Add([]byte(`{"v":1,"max_concurrent_runs":3,"tags":[{"key":"a","limit":1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := DecodeLimits("k", data)
		if err != nil {
			wantCorrupt(t, "k", err)
		} else if err := l.Validate(); err != nil {
			t.Error(err)
		}
	})
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add("a/b", []byte(`{"v":1,"type":"RunQueued","at":"2026-01-01T00:00:00Z"}`))
	keys := store.NewKeys("/b/")
	f.Fuzz(func(t *testing.T, rest string, data []byte) {
		key := keys.EventsAll() + rest
		if e, err := DecodeEvent(keys, &mvccpb.KeyValue{Key: []byte(key), Value: data}); err != nil {
			wantCorrupt(t, key, err)
		} else if ValidateID(e.Run) != nil || e.Type == "" {
			t.Errorf("%+v", e)
		}
	})
}

func FuzzParseTagLimit(f *testing.F) {
	f.Add("env=prod=2")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseTagLimit(text)
		if err != nil {
			return
		}
		if again, err := ParseTagLimit(l.String()); err != nil || again != l {
			t.Errorf("%q reads as %+v, written %q, %v", text, l, l, err)
		}
	})
}
