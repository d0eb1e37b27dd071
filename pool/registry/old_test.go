package registry

import (
	"errors"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func TestOldSpecsAreReadAsTheyWereWritten(t *testing.T) {
	for _, s := range []pool.Spec{
		{Limit: 3, LeaseDuration: time.Minute, ReserveAfter: time.Second},
		{Limit: pool.Unlimited, LeaseDuration: time.Hour, ReserveAfter: pool.NeverReserve, Paused: true},
		{Limit: pool.Closed, LeaseDuration: time.Hour, Retain: time.Second},
		{Limit: pool.MaxLimit, LeaseDuration: time.Hour},
	} {
		got, retain, err := decodeOldSpec("k", pool.StoredSpec{}.Encode(s))
		if want := s.Retain; err != nil || retain != want {
			t.Errorf("%+v: retained for %s, %v", s, retain, err)
		}
		if s.Retain = 0; got != s {
			t.Errorf("%+v is read as %+v", s, got)
		}
	}
}

func TestOldSpecsThatCanNotBeReadAreNamed(t *testing.T) {
	for name, value := range map[string]string{
		"nothing": ``, "not JSON": `?`, "more behind it": `{"v":1,"limit":1,"lease_duration":"1m","reserve_after":"0s"} 1`,
		"another field":   `{"v":1,"limit":1,"lease_duration":"1m","reserve_after":"0s","other":1}`,
		"another version": `{"v":2,"limit":1,"lease_duration":"1m","reserve_after":"0s"}`,
		"no version":      `{"limit":1,"lease_duration":"1m","reserve_after":"0s"}`,
		"limit":           `{"v":1,"limit":-2,"lease_duration":"1m","reserve_after":"0s"}`,
		"lease":           `{"v":1,"limit":1,"lease_duration":"1","reserve_after":"0s"}`,
		"short lease":     `{"v":1,"limit":1,"lease_duration":"1s","reserve_after":"0s"}`,
		"no lease":        `{"v":1,"limit":1,"reserve_after":"0s"}`,
		"reserve":         `{"v":1,"limit":1,"lease_duration":"1m","reserve_after":"x"}`,
		"retain":          `{"v":1,"limit":1,"lease_duration":"1m","reserve_after":"0s","retain":"x"}`,
	} {
		_, _, err := decodeOldSpec("key-1", []byte(value))
		var corrupt *store.CorruptError
		if !errors.As(err, &corrupt) || corrupt.Key != "key-1" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecodeOld reads values of the old layout. A spec that is read can be the spec of a pool, and is what the code
// reads that has written it; what else is read has the names of a holder.
func FuzzDecodeOld(f *testing.F) {
	f.Add(pool.StoredSpec{}.Encode(pool.Spec{Limit: 60, LeaseDuration: time.Minute, Retain: time.Second, Paused: true}))
	f.Add([]byte(`{"v":1,"limit":4,"lease_duration":"1m","reserve_after":"-1","groups":3,"limit_since":4}`))
	f.Add([]byte(`{"v":1,"n":2,"claim":"a","record":{"pools":{"db":2},"holder":{"host":"one","instance":"i"},"since":"2026-01-01T00:00:00Z"}}`))
	f.Add([]byte(`{"v":1,"n":2,"claim":"a","main":"db/0/1"}`))
	f.Add([]byte(`{"v":1,"spec":4}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, _, err := decodeOldSpec("k", data)
		if err == nil && got.Validate() != nil {
			t.Errorf("%s: %v", data, got.Validate())
		}
		was, errWas := pool.DecodeSpec("k", data, 1<<40)
		if was.Retain = 0; errWas == nil && (err != nil || got != was.Spec) {
			t.Errorf("%s is read as %+v, %v, and was %+v", data, got, err, was.Spec)
		}
		if by, err := decodeOldHolder(data); err == nil && by != text.Visible(by) {
			t.Errorf("%s is held by %q", data, by)
		}
		if spec, err := decodeTask("k", data, 7); err == nil && spec == 0 {
			t.Errorf("%s is of no spec", data)
		}
	})
}
