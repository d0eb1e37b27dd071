package store_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/store/storetest"
)

func TestARangeOfAPrefixContainsWhatHasThePrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 0xfe, 0xff}), 0, 5)
		prefix, key := string(some.Draw(t, "prefix")), append(some.Draw(t, "key"), 'k')
		if got := store.Prefix(prefix).Contains(key); got != strings.HasPrefix(string(key), prefix) {
			t.Fatalf("%q in the range of prefix %q: %t", key, prefix, got)
		}
	})
}

func TestRangesNameTheirKeys(t *testing.T) {
	for want, r := range map[string]store.KeyRange{
		"/b/p/":          store.Prefix("/b/p/"),
		"/b/p":           {Key: "/b/p"},
		"/b/p/ to /b/r0": {Key: "/b/p/", End: "/b/r0"},
	} {
		if r.String() != want {
			t.Errorf("%q, want %q", r, want)
		}
	}
}

// onBoth runs a test with a real etcd and with the stand-in.
func onBoth(t *testing.T, f func(*testing.T, store.Backend)) {
	t.Run("etcd", func(t *testing.T) { f(t, embedtest.Client(t, embedtest.New(t))) })
	t.Run("stand-in", func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		f(t, b)
	})
}

// middle is no prefix: it has all of "/b/n/" and "/b/p/" and what is between them.
var middle = store.KeyRange{Key: "/b/n/", End: "/b/p0"}

// outside are the keys around middle: the last ones before it, its end, and what follows that.
var outside = []string{"/b/m/x", "/b/n", "/b/n.", "/b/p0", "/b/p00", "/b/q/x"}

// puts puts keys in one transaction.
func puts(t *testing.T, b store.Backend, keys ...string) int64 {
	t.Helper()
	var ops []*pb.RequestOp
	for _, key := range keys {
		ops = append(ops, store.Put(key, []byte("v"), 0))
	}
	resp, err := b.Txn(long(t), &pb.TxnRequest{Success: ops})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

func keysOf(s *store.Snapshot) (keys []string) {
	for _, kv := range s.KVs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// The first page has 1,000 keys. The range is as it was at the revision of that page.
func TestARangeIsReadInPagesAtOneRevision(t *testing.T) {
	onBoth(t, func(t *testing.T, b store.Backend) {
		puts(t, b, outside...)
		want := []string{middle.Key}
		for i := range 2500 {
			want = append(want, fmt.Sprintf("/b/%c/%05d", "nop"[i*3/2500], i))
		}
		want = append(want, "/b/p/\xff")
		var revision int64
		for some := range slices.Chunk(want, 100) {
			revision = puts(t, b, some...)
		}
		counting := &betweenPages{Backend: b, then: func() { puts(t, b, "/b/o/late") }}
		s, err := store.ReadRange(long(t), counting, middle)
		if err != nil || s.Revision != revision || !slices.Equal(keysOf(&s), want) || counting.pages != 2 {
			t.Errorf("%d keys at revision %d in %d pages, want %d at %d in 2; %v", len(s.KVs), s.Revision, counting.pages, len(want), revision, err)
		}
		for _, r := range []store.KeyRange{{Key: "/b/n"}, {Key: "/b/q/", End: "\x00"}, {Key: "/b/p0", End: "/b/n/"}} {
			s, err := store.ReadRange(long(t), b, r)
			if want := slices.DeleteFunc(slices.Clone(outside), func(k string) bool { return !r.Contains([]byte(k)) }); err != nil || !slices.Equal(keysOf(&s), want) {
				t.Errorf("from %q to %q: %q, want %q; %v", r.Key, r.End, keysOf(&s), want, err)
			}
		}
	})
}

// betweenPages has something happen behind each page that is read.
type betweenPages struct {
	store.Backend
	pages int
	then  func()
}

func (b *betweenPages) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp, err := b.Backend.Range(ctx, r)
	b.pages++
	b.then()
	return resp, err
}

// runFeed runs a feed of a range until the test ends.
func runFeed(t *testing.T, b store.Backend, r store.KeyRange) *store.Feed {
	f := store.NewRangeFeed(b, r, hclog.NewNullLogger(), func() {})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

// snapshotOf returns the next snapshot of a feed.
func snapshotOf(t *testing.T, f *store.Feed) *store.Snapshot {
	t.Helper()
	for m := range f.Messages() {
		if m.Snapshot != nil {
			return m.Snapshot
		}
		if len(m.Events) > 0 {
			t.Fatalf("events come first: %s", describe(m))
		}
	}
	t.Fatal("the feed has ended")
	return nil
}

// A feed of a range shows what changes in it, and tells of other writes the revision alone.
func TestAFeedFollowsARange(t *testing.T) {
	onBoth(t, func(t *testing.T, b store.Backend) {
		first := append(slices.Clone(outside), "/b/n/1", "/b/o", "/b/p/9")
		puts(t, b, first...)
		f := runFeed(t, b, middle)
		if s := snapshotOf(t, f); !slices.Equal(keysOf(s), []string{"/b/n/1", "/b/o", "/b/p/9"}) {
			t.Fatalf("the snapshot has %q", keysOf(s))
		}
		puts(t, b, append(slices.Clone(outside), "/b/p/8", "/b/n/")...)
		if _, err := b.Txn(long(t), &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete("/b/o"), store.Delete("/b/p0")}}); err != nil {
			t.Fatal(err)
		}
		last := puts(t, b, outside...)
		var got []string
		for late := long(t).Done(); ; {
			f.RequestProgress()
			select {
			case m := <-f.Messages():
				for _, e := range m.Events {
					got = append(got, fmt.Sprintf("%s %s", e.Type, e.Kv.Key))
				}
				if m.Revision < last {
					continue
				}
			case <-late:
				t.Fatalf("only %q is shown", got)
			}
			break
		}
		if want := []string{"PUT /b/p/8", "PUT /b/n/", "DELETE /b/o"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// Where the watch can't go on, the feed reads the range again.
func TestAFeedReadsItsRangeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		puts(t, b, "/b/n/1")
		f := runFeed(t, b, middle)
		snapshotOf(t, f)
		synctest.Wait() // it watches
		b.Freeze()
		last := puts(t, b, append(slices.Clone(outside), "/b/o")...)
		b.Do(func(e *storetest.Etcd) { _ = e.Compact(e.Revision()) })
		b.BreakWatches(store.ErrCompacted)
		b.Thaw()
		if s := snapshotOf(t, f); s.Reason != store.ErrCompacted || s.Revision != last || !slices.Equal(keysOf(s), []string{"/b/n/1", "/b/o"}) {
			t.Errorf("%q at revision %d because of %v", keysOf(s), s.Revision, s.Reason)
		}
	})
}
