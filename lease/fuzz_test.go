package lease

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/store"
)

func FuzzDecodePresence(f *testing.F) {
	key := testKeys.Presence(testHost, testInst)
	f.Add(key, encodePresence(PresenceRecord{Role: "sidecar", PID: 1, Since: time.Unix(1, 0).UTC(), Token: testToken}))
	f.Add(key, []byte(`{"v":2}`))
	f.Add(key+"/more", []byte(`{"v":1,"since":"2020"}`))
	f.Add("/berth/hosts//x", []byte(`null`))
	f.Fuzz(func(t *testing.T, key string, data []byte) {
		r, err := DecodePresence(testKeys, key, data)
		if err != nil {
			wantCorrupt(t, key, err)
			return
		}
		if testKeys.Presence(r.Host, r.Instance) != key {
			t.Fatalf("key %q was read as %q of %q", key, r.Instance, r.Host)
		}
		again, err := DecodePresence(testKeys, key, encodePresence(r))
		if err != nil || !cmp.Equal(r, again) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

func FuzzDecodeListing(f *testing.F) {
	f.Add([]byte(encodeListing(listing{testToken, testInst, span(90 * time.Second), 0xcdf818194e3a8c32})))
	f.Add([]byte(`{"v":1,"token":"t","instance":"i","duration":"-5s"}`))
	f.Add([]byte(`{"v":1,"token":"t","instance":"i","duration":5}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		const key = "/berth/leases/quay-1/1f"
		l, err := decodeListing(key, data)
		if err != nil {
			wantCorrupt(t, key, err)
			return
		}
		again, err := decodeListing(key, encodeListing(l))
		if err != nil || l != again {
			t.Fatalf("%+v became %+v, %v", l, again, err)
		}
	})
}

func FuzzParseToken(f *testing.F) {
	f.Add([]byte(testToken + "\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		token, err := parseToken(text)
		if err != nil {
			return
		}
		if len(token) != 2*tokenBytes || (string(text) != token && string(text) != token+"\n") {
			t.Fatalf("%q was read as %q", text, token)
		}
	})
}

func wantCorrupt(t *testing.T, key string, err error) {
	t.Helper()
	var corrupt *store.CorruptError
	if !errors.As(err, &corrupt) || corrupt.Key != key {
		t.Fatalf("error %v does not name key %q", err, key)
	}
}
