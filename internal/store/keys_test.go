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

func TestKeysHangUnderTheirPrefixes(t *testing.T) {
	k := store.NewKeys("/b")
	for _, pair := range [][2]string{
		{k.Spec("db"), "/b/pools/db/spec"},
		{k.DemandsAll("db"), "/b/pools/db/demands/"},
		{k.Pending("db"), k.PendingAll() + "db"},
		{k.ID("c"), k.IDs() + "c"},
		{k.OffersTo("h"), k.OffersAll() + "h/"},
		{k.Dispatcher(), "/b/dispatcher/"},
		{k.Layout(), "/b/layout"},
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
		if a != b && (strings.HasPrefix(keys.Slots(a), keys.Slots(b)) || strings.HasPrefix(keys.DemandsAll(a), keys.DemandsAll(b))) {
			t.Fatalf("the keys of %q are among those of %q", a, b)
		}
	})
}

func TestNumbersInKeysHaveOneSpelling(t *testing.T) {
	for text, want := range map[string]int{"007": 7, "000": 0, "999": 999, "1000": 1000} {
		if n, err := store.ParsePadded(text, 3, 1001); n != want || err != nil || string(store.AppendPadded(nil, n, 3)) != text {
			t.Errorf("%q is %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "7", "0007", "1001", "-07", "+07", "0x7", "99999999999999999999"} {
		if n, err := store.ParsePadded(text, 3, 1001); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
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
