package store_test

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

// drawKeys draws a prefix as users set it, with a closing slash or without.
func drawKeys(t *rapid.T) store.Keys {
	return store.NewKeys(rapid.SampledFrom([]string{"", "/", "/berth/", "/berth", "b", "/a/b/", "/pools/", "pools"}).Draw(t, "prefix"))
}

func drawPool(t *rapid.T) string {
	return rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,62}`).Draw(t, "pool")
}

// spell is the inverse of ParsePoolKey.
func spell(k store.Keys, p store.PoolKey) string {
	switch p.Kind {
	case store.SpecKey:
		return k.Spec(p.Pool)
	case store.SlotKey:
		return k.Slot(p.Pool, p.Group, p.Index)
	case store.QueuedKey:
		return k.Queued(p.Pool)
	case store.DispatcherKey:
		return k.Dispatcher(p.Pool)
	case store.NoticeKey:
		return k.Notice(p.Pool, p.Host, p.Instance, p.Claim)
	default:
		return k.Waiter(p.Pool, p.Order)
	}
}

func TestEveryKeyOfAPoolReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys, pool := drawKeys(t), drawPool(t)
		want := rapid.SampledFrom([]store.PoolKey{
			{Kind: store.SpecKey, Pool: pool},
			{Kind: store.SlotKey, Pool: pool,
				Group: rapid.IntRange(0, 120).Draw(t, "group"),
				Index: rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(0, 1<<30)).Draw(t, "index")},
			{Kind: store.WaiterKey, Pool: pool,
				Order: rapid.StringMatching(`[0-9]{4}-[0-9a-f]{16}-[A-Za-z0-9._-]{1,20}`).Draw(t, "order")},
			{Kind: store.QueuedKey, Pool: pool},
			{Kind: store.DispatcherKey, Pool: pool},
			{Kind: store.NoticeKey, Pool: pool,
				Host:     rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,20}`).Draw(t, "host"),
				Instance: rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,20}`).Draw(t, "instance"),
				Claim:    rapid.StringMatching(`[A-Za-z0-9._:-]{1,20}`).Draw(t, "claim")},
		}).Draw(t, "key")
		key := spell(keys, want)
		if got, err := keys.ParsePoolKey(key); err != nil || got != want {
			t.Fatalf("%q reads as %+v, %v, want %+v", key, got, err, want)
		}
		if !strings.HasPrefix(key, keys.Pools()) {
			t.Fatalf("%q is outside %q", key, keys.Pools())
		}
	})
}

func TestKeysHangUnderTheirPrefixes(t *testing.T) {
	k := store.NewKeys("/b")
	for _, pair := range [][2]string{
		{k.Slot("db", 1, 2), "/b/pools/db/slots/01/00002"},
		{k.Group("db", 1), "/b/pools/db/slots/01/"},
		{k.Spec("db"), "/b/pools/db/spec"},
		{k.Waiter("db", "o"), "/b/pools/db/waiters/o"},
		{k.Queued("db"), "/b/pools/db/queued"},
		{k.Dispatcher("db"), "/b/pools/db/dispatcher"},
		{k.Notice("db", "h", "i", "c"), "/b/pools/db/grants/h/i/c"},
		{k.Presence("h", "i"), k.Hosts() + "h/i"},
		{k.Lease("h", 0x1f), k.Leases("h") + "1f"},
		{k.Lease("h", -1), k.Leases("h") + "ffffffffffffffff"},
		{k.Guard("h", "i"), k.Guards("h") + "i"},
		{k.Revocation("h", "c"), k.Revocations("h") + "c"},
		{k.SourcePoll("s"), k.Source("s") + "poll"},
		{k.SourceWake("s"), k.SourceLive("s") + "wake"},
		{k.SourceCandidate("s", 0x1f), k.SourceLive("s") + "candidates/1f"},
		{k.DedupRecord("s", "i"), k.DedupRecords("s") + "i"},
		{k.DedupRecord("s", "i"), k.Sources() + "s/dedup/i"},
		{k.Action("01H"), k.Actions() + "01H"},
		{k.Follower(store.StepID{Run: "r", Step: "s", Index: 3}), k.Followers() + "r/s/000003"},
		{k.UnfinishedRun("cert:a/b c", "r"), "/b/usage/cert:a%2Fb%20c/unfinished/r"},
		{k.StoredRun("user:ann", 12, "r"), k.UsageOf("user:ann") + "stored/12/r"},
		{k.Prefix(), "/b/"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%q, want %q", pair[0], pair[1])
		}
		if !strings.HasPrefix(pair[0], k.Prefix()) {
			t.Errorf("%q is outside the prefix", pair[0])
		}
	}
}

// TestPrefixesOfTwoPoolsShareNoKey is what keeps the pools "a" and "a.b" apart.
func TestPrefixesOfTwoPoolsShareNoKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := drawKeys(t)
		a, b := drawPool(t), drawPool(t)
		if a != b && (strings.HasPrefix(keys.Slots(a), keys.Slots(b)) || strings.HasPrefix(keys.Waiters(a), keys.Waiters(b))) {
			t.Fatalf("the keys of %q are among those of %q", a, b)
		}
	})
}

func TestKeysThatBerthDoesNotSpellAreRefusedByName(t *testing.T) {
	k := store.NewKeys("/b/")
	for name, key := range map[string]string{
		"outside":                     "/other/pools/db/spec",
		"the prefix itself":           "/b/pools/",
		"no pool":                     "/b/pools//spec",
		"only a pool":                 "/b/pools/db",
		"nothing of a pool":           "/b/pools/db/",
		"an unknown kind":             "/b/pools/db/limits",
		"something behind spec":       "/b/pools/db/spec/x",
		"a slash behind spec":         "/b/pools/db/spec/",
		"no waiter":                   "/b/pools/db/waiters/",
		"no waiter, no slash":         "/b/pools/db/line",
		"a path in a waiter":          "/b/pools/db/waiters/a/b",
		"something behind queued":     "/b/pools/db/queued/x",
		"a slash behind queued":       "/b/pools/db/queued/",
		"something behind dispatcher": "/b/pools/db/dispatcher/x",
		"a slash behind dispatcher":   "/b/pools/db/dispatcher/",
		"no notice":                   "/b/pools/db/grants/",
		"no notice, no slash":         "/b/pools/db/grants",
		"a notice without host":       "/b/pools/db/grants//i/c",
		"a notice without instance":   "/b/pools/db/grants/h//c",
		"a notice without claim":      "/b/pools/db/grants/h/i/",
		"a notice of two parts":       "/b/pools/db/grants/h/i",
		"a path behind a notice":      "/b/pools/db/grants/h/i/c/x",
		"a slash behind a notice":     "/b/pools/db/grants/h/i/c/",
		"no group":                    "/b/pools/db/slots/",
		"a group without index":       "/b/pools/db/slots/01",
		"an empty index":              "/b/pools/db/slots/01/",
		"a short group":               "/b/pools/db/slots/1/00001",
		"a long group":                "/b/pools/db/slots/001/00001",
		"a short index":               "/b/pools/db/slots/01/1",
		"a long index":                "/b/pools/db/slots/01/000001",
		"a signed index":              "/b/pools/db/slots/01/+0001",
		"a negative index":            "/b/pools/db/slots/01/-0001",
		"a word for an index":         "/b/pools/db/slots/01/abcde",
		"an index out of range":       "/b/pools/db/slots/01/9999999999",
		"an index beyond an int":      "/b/pools/db/slots/01/99999999999999999999",
		"a path behind an index":      "/b/pools/db/slots/01/00001/x",
		"a slash behind":              "/b/pools/db/slots/01/00001/",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := k.ParsePoolKey(key); err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%q reads as %+v, %v", key, got, err)
			}
		})
	}
}

func FuzzParsePoolKey(f *testing.F) {
	for _, s := range []string{"db/spec", "db/spec/", "db/slots/01/00002", "db/slots/1/2", "db/waiters/1000-0000000000000007-c", "db/queued", "db/dispatcher", "db/grants/h/i/c", "db/grants/h/i/c/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		k := store.NewKeys("/b/")
		if p, err := k.ParsePoolKey(k.Pools() + rest); err == nil && spell(k, p) != k.Pools()+rest {
			t.Errorf("%q and %q read as the same %+v", k.Pools()+rest, spell(k, p), p)
		}
	})
}

func TestRangeEndIsBehindTheLastKeyOfAPrefix(t *testing.T) {
	for prefix, want := range map[string]string{
		"/berth/":      "/berth0",
		"a":            "b",
		"a\xff":        "b",
		"a\xff\xff":    "b",
		"a\xffb":       "a\xffc",
		"\xff":         "\x00",
		"\xff\xff\xff": "\x00",
		"":             "\x00",
	} {
		if got := string(store.RangeEnd(prefix)); got != want {
			t.Errorf("prefix %q ends at %q, want %q", prefix, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 0xfe, 0xff}), 0, 5)
		prefix, key := some.Draw(t, "prefix"), some.Draw(t, "key")
		before := bytes.Clone(prefix)
		end := store.RangeEnd(string(prefix))
		inRange := bytes.Compare(prefix, key) <= 0 && (string(end) == "\x00" || bytes.Compare(key, end) < 0)
		if inRange != bytes.HasPrefix(key, prefix) {
			t.Fatalf("key %q in the range from %q to %q: %t", key, prefix, end, inRange)
		}
		if !bytes.Equal(before, prefix) {
			t.Fatal("the prefix was changed")
		}
	})
}
