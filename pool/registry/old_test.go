package registry_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// oldSpecs are specs of the old layout.
var oldSpecs = []pool.Spec{
	{Limit: 3, LeaseDuration: time.Minute, ReserveAfter: time.Second},
	{Limit: pool.Unlimited, LeaseDuration: time.Hour, ReserveAfter: pool.NeverReserve, Paused: true},
	{Limit: pool.Closed, LeaseDuration: time.Hour},
	{Limit: pool.MaxLimit, LeaseDuration: 5 * time.Second},
}

// oldSpec returns the value of a spec of the old layout. Retain is for how long hosts retained slots, if it is not empty.
func oldSpec(s pool.Spec, retain string) string {
	more := ""
	if retain != "" {
		more += fmt.Sprintf(`,"retain":%q`, retain)
	}
	if s.Paused {
		more += `,"paused":true`
	}
	return fmt.Sprintf(`{"v":1,"limit":%d,"lease_duration":%q,"reserve_after":%q%s}`, s.Limit, s.LeaseDuration, pool.FormatReserveAfter(s.ReserveAfter), more)
}

// Keys of the old layout.
func oldSlot(k store.Keys, pool string, group, index int) string {
	return fmt.Sprintf("%s%02d/%05d", k.Slots(pool), group, index)
}

func oldWaiter(k store.Keys, pool, order string) string { return k.Pool(pool) + "waiters/" + order }

func oldQueued(k store.Keys, pool string) string { return k.Pool(pool) + "queued" }

func TestOldSpecsAreReadAsTheyWereWritten(t *testing.T) {
	for _, s := range oldSpecs {
		for _, retain := range []string{"", "1s"} {
			got, retained, err := registry.DecodeOldSpec("k", []byte(oldSpec(s, retain)))
			if want, _ := time.ParseDuration(retain); got != s || retained != want || err != nil {
				t.Errorf("%+v is read as %+v, retained for %s, %v", s, got, retained, err)
			}
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
		_, _, err := registry.DecodeOldSpec("key-1", []byte(value))
		var corrupt *store.CorruptError
		if !errors.As(err, &corrupt) || corrupt.Key != "key-1" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecodeOld reads values of the old layout. A spec that is read can be the spec of a pool, and is read again as it was
// read; what else is read has the names of a holder, and a revision.
func FuzzDecodeOld(f *testing.F) {
	for _, s := range oldSpecs {
		f.Add([]byte(oldSpec(s, "1s")))
	}
	f.Add([]byte(`{"v":1,"n":2,"claim":"a","record":{"pools":{"db":2},"holder":{"host":"one","instance":"i"},"since":"2026-01-01T00:00:00Z"}}`))
	f.Add([]byte(`{"v":1,"n":2,"claim":"a","main":"db/0/1"}`))
	f.Add([]byte(`{"v":1,"spec":4}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, _, err := registry.DecodeOldSpec("k", data); err == nil {
			again, _, err := registry.DecodeOldSpec("k", []byte(oldSpec(got, "")))
			if again != got || err != nil || got.Validate() != nil {
				t.Errorf("%s is read as %+v, and then as %+v, %v, %v", data, got, again, err, got.Validate())
			}
		}
		if by, err := registry.DecodeOldHolder(data); err == nil && by != text.Visible(by) {
			t.Errorf("%s is held by %q", data, by)
		}
		if spec, err := registry.DecodeTask("k", data, 7); err == nil && spec == 0 {
			t.Errorf("%s is of no spec", data)
		}
	})
}
