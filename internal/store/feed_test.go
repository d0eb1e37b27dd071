package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// counted is a backend that counts what is asked of it and of its watches.
type counted struct {
	*storetest.Backend
	watches, asked, abandoned atomic.Int64
	full                      atomic.Int64 // reads of a whole prefix
	stall                     atomic.Int64 // how long requests for progress are delayed
}

func (b *counted) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	if len(req.RangeEnd) > 0 {
		b.full.Add(1)
	}
	return b.Backend.Range(ctx, req)
}

type countedWatch struct {
	store.Watch
	of *counted
}

func (b *counted) Watch(ctx context.Context, keys store.KeyRange, from int64) store.Watch {
	b.watches.Add(1)
	return countedWatch{b.Backend.Watch(ctx, keys, from), b}
}

func (w countedWatch) RequestProgress() {
	w.of.asked.Add(1)
	time.Sleep(time.Duration(w.of.stall.Load()))
	w.Watch.RequestProgress()
}
func (w countedWatch) Abandon() { w.of.abandoned.Add(1); w.Watch.Abandon() }

// feeding is a feed that runs on a fake clock, of everything under "/p/".
type feeding struct {
	t        *testing.T
	etcd     *counted
	feed     *store.Feed
	resynced atomic.Int64
	cancel   context.CancelCauseFunc
	ended    chan error
}

func feed(t *testing.T, f func(t *testing.T, fd *feeding)) {
	synctest.Test(t, func(t *testing.T) {
		fd := &feeding{
			t: t, etcd: &counted{Backend: storetest.NewBackend(storetest.New(storetest.Options{}))},
			ended: make(chan error, 1),
		}
		defer fd.etcd.Close()
		fd.feed = store.NewFeed(fd.etcd, "/p/", hclog.NewNullLogger(), func() { fd.resynced.Add(1) })
		ctx, cancel := context.WithCancelCause(t.Context())
		fd.cancel = cancel
		defer cancel(nil)
		fd.put("/p/a", "/q/a")
		go func() { fd.ended <- fd.feed.Run(ctx) }()
		f(t, fd)
	})
}

func (fd *feeding) put(keys ...string) {
	for _, k := range keys {
		fd.etcd.Do(func(e *storetest.Etcd) {
			if _, err := e.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(k, []byte("v"), 0)}}); err != nil {
				fd.t.Fatal(err)
			}
		})
	}
}

func (fd *feeding) delete(key string) {
	fd.etcd.Do(func(e *storetest.Etcd) {
		if _, err := e.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(key)}}); err != nil {
			fd.t.Fatal(err)
		}
	})
}

// next returns the next message, however long it takes.
func (fd *feeding) next() store.FeedMessage {
	fd.t.Helper()
	select {
	case m, ok := <-fd.feed.Messages():
		if !ok {
			fd.t.Fatal("the feed has ended")
		}
		return m
	case <-time.After(time.Hour):
		fd.t.Fatal("nothing was delivered within an hour")
		return store.FeedMessage{}
	}
}

// want reads the next message that is more than progress, and compares its text. Progress alone is enough for an hour.
func (fd *feeding) want(text string) store.FeedMessage {
	fd.t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Hour; {
		m := fd.next()
		if m.Snapshot == nil && len(m.Events) == 0 {
			continue
		}
		if got := describe(m); got != text {
			fd.t.Fatalf("delivered %q, want %q", got, text)
		}
		return m
	}
	fd.t.Fatalf("progress alone was delivered within an hour, want %q", text)
	return store.FeedMessage{}
}

// describe writes a message as "snapshot: a b", "put a, del b" or "progress".
func describe(m store.FeedMessage) string {
	var parts []string
	switch {
	case m.Snapshot != nil:
		for _, kv := range m.Snapshot.KVs {
			parts = append(parts, strings.TrimPrefix(string(kv.Key), "/p/"))
		}
		return "snapshot: " + strings.Join(parts, " ")
	case len(m.Events) == 0:
		return "progress"
	}
	for _, e := range m.Events {
		what := map[mvccpb.Event_EventType]string{mvccpb.Event_PUT: "put", mvccpb.Event_DELETE: "del"}[e.Type]
		parts = append(parts, what+" "+strings.TrimPrefix(string(e.Kv.Key), "/p/"))
	}
	return strings.Join(parts, ", ")
}

// read reads everything that is delivered within a time.
func (fd *feeding) read(d time.Duration) (all []store.FeedMessage) {
	fd.t.Helper()
	end := time.After(d)
	for {
		select {
		case m := <-fd.feed.Messages():
			all = append(all, m)
		case <-end:
			return all
		}
	}
}

func TestAFeedTellsWhatIsThereAndThenWhatHappens(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		s := fd.want("snapshot: a")
		if s.Revision != s.Snapshot.Revision || s.Revision != 3 {
			t.Errorf("the snapshot is of revision %d and the message of %d, want 3", s.Snapshot.Revision, s.Revision)
		}
		fd.put("/p/b", "/q/b")
		m := fd.want("put b")
		if m.Revision != 4 {
			t.Errorf("the message is of revision %d, want 4", m.Revision)
		}
		fd.delete("/p/a")
		fd.want("del a")
		fd.put("/p/c", "/p/d")
		fd.want("put c, put d")
		if fd.resynced.Load() != 0 {
			t.Error("everything was read again")
		}
	})
}

func TestNothingIsLostBetweenTheSnapshotAndTheWatch(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		synctest.Wait() // the snapshot is read, and not taken yet
		fd.put("/p/b", "/p/c")
		fd.want("snapshot: a")
		fd.want("put b, put c")
	})
}

// freshness fails if two messages are further apart than a view may be old.
func (fd *feeding) freshness(d time.Duration) {
	fd.t.Helper()
	last, end := time.Now(), time.Now().Add(d)
	for time.Now().Before(end) {
		m := fd.next()
		if gap := time.Since(last); gap >= store.StaleAfter {
			fd.t.Fatalf("%s without a message", gap)
		}
		if m.Snapshot != nil {
			fd.t.Fatal("everything was read again")
		}
		last = time.Now()
	}
}

func TestAnIdleEtcdIsNotReadAgain(t *testing.T) {
	for name, write := range map[string]func(*feeding){
		"nothing was written since the snapshot": func(*feeding) {},
		"something was written since":            func(fd *feeding) { fd.put("/p/b") },
		"something was written elsewhere":        func(fd *feeding) { fd.put("/q/b") },
	} {
		t.Run(name, func(t *testing.T) {
			feed(t, func(t *testing.T, fd *feeding) {
				fd.want("snapshot: a")
				write(fd)
				fd.freshness(time.Minute)
				if fd.resynced.Load() != 0 || fd.etcd.watches.Load() != 1 {
					t.Errorf("read again %d times, with %d watches", fd.resynced.Load(), fd.etcd.watches.Load())
				}
			})
		})
	}
}

func TestWritesElsewhereAdvanceTheRevision(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		fd.want("snapshot: a")
		fd.put("/q/b", "/q/c")
		for m := fd.next(); m.Revision < 5; m = fd.next() {
			if describe(m) != "progress" {
				t.Fatalf("delivered %q", describe(m))
			}
		}
	})
}

func TestACompactedWatchIsReplaced(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		fd.want("snapshot: a")
		fd.etcd.Freeze()
		fd.put("/p/b", "/p/c")
		fd.delete("/p/a")
		fd.etcd.Do(func(e *storetest.Etcd) {
			if err := e.Compact(e.Revision()); err != nil {
				t.Fatal(err)
			}
		})
		fd.etcd.Thaw()
		fd.want("snapshot: b c")
		fd.put("/p/d")
		fd.want("put d")
		if fd.resynced.Load() != 1 {
			t.Errorf("read again %d times", fd.resynced.Load())
		}
	})
}

func TestASilentWatchIsAbandoned(t *testing.T) {
	for name, before := range map[string]func(*feeding){
		"after it has delivered something": func(fd *feeding) { fd.put("/p/x"); fd.want("put x"); fd.delete("/p/x"); fd.want("del x") },
		"before it has delivered anything": func(*feeding) {},
	} {
		t.Run(name, func(t *testing.T) {
			feed(t, func(t *testing.T, fd *feeding) {
				fd.want("snapshot: a")
				before(fd)
				fd.etcd.Freeze()
				fd.put("/p/b")
				begin := time.Now()
				for fd.etcd.abandoned.Load() == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				if took := time.Since(begin); took < store.StaleAfter-time.Second || took > store.StaleAfter+time.Second {
					t.Errorf("the silence was ended after %s", took)
				}
				fd.etcd.Thaw() // as if it were another endpoint
				fd.want("put b")
				fd.put("/p/c")
				fd.want("put c")
				if fd.etcd.abandoned.Load() != 1 || fd.etcd.watches.Load() != 2 {
					t.Errorf("abandoned %d times, with %d watches", fd.etcd.abandoned.Load(), fd.etcd.watches.Load())
				}
				fd.notReadAgain()
			})
		})
	}
}

func TestTriesGetRarerWhileEtcdIsAway(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		fd.want("snapshot: a")
		var tries atomic.Int64
		fd.etcd.Inject(func(storetest.Call) storetest.Fault {
			tries.Add(1)
			return storetest.Fault{Drop: true, Err: store.ErrUnavailable}
		})
		fd.etcd.Freeze()
		if messages := fd.read(time.Minute); len(messages) != 0 {
			t.Errorf("delivered %d messages by an etcd that is away", len(messages))
		}
		if n := tries.Load(); n < 30 || n > 200 {
			t.Errorf("tried %d times within a minute", n)
		}
		fd.put("/p/b")
		fd.etcd.Inject(nil)
		fd.etcd.Thaw()
		begin := time.Now()
		fd.want("put b")
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("it went on %s after etcd is back", took)
		}
		fd.notReadAgain()
	})
}

func TestASnapshotThatHangsIsTriedAgain(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		fd.want("snapshot: a")
		var hung atomic.Int64
		fd.etcd.Inject(func(c storetest.Call) storetest.Fault {
			return storetest.Fault{Drop: c.Op == storetest.OpRange && hung.Add(1) == 1}
		})
		synctest.Wait() // until the watch is open that breaks
		fd.etcd.BreakWatches(store.ErrCompacted)
		begin := time.Now()
		fd.want("snapshot: a")
		if took := time.Since(begin); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("read again after %s", took)
		}
	})
}

func TestAFeedEndsWithItsContext(t *testing.T) {
	for name, where := range map[string]func(*feeding){
		"while no message is taken": func(*feeding) {},
		"while it watches":          func(fd *feeding) { fd.want("snapshot: a") },
		"while etcd is away":        func(fd *feeding) { fd.want("snapshot: a"); fd.etcd.Down(); fd.read(10 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			feed(t, func(t *testing.T, fd *feeding) {
				where(fd)
				synctest.Wait()
				why := errors.New("enough")
				fd.cancel(why)
				synctest.Wait()
				select {
				case err := <-fd.ended:
					if !errors.Is(err, why) {
						t.Errorf("it ended with %v", err)
					}
				default:
					t.Fatal("it goes on")
				}
				if _, ok := <-fd.feed.Messages(); ok {
					t.Error("its channel delivers still")
				}
			})
		})
	}
}

func TestRequestsForProgressCoalesce(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		fd.want("snapshot: a")
		fd.put("/p/b")
		synctest.Wait() // the feed waits for a reader of "put b"
		for range 100 {
			fd.feed.RequestProgress()
		}
		fd.want("put b")
		synctest.Wait()
		if n := fd.etcd.asked.Load(); n != 1 {
			t.Errorf("100 requests were passed on as %d", n)
		}
		if m := fd.next(); describe(m) != "progress" || m.Revision != 4 {
			t.Errorf("delivered %q at %d", describe(m), m.Revision)
		}
	})
}

func TestALargeSnapshotIsOfOneRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		const keys = 11_000 // three pages: 1,000, four times as many, and the rest
		b.Do(func(e *storetest.Etcd) {
			for i := 0; i < keys; i += 100 {
				var ops []*pb.RequestOp
				for j := range 100 {
					ops = append(ops, store.Put(fmt.Sprintf("/p/%05d", i+j), []byte("v"), 0))
				}
				if _, err := e.Txn(&pb.TxnRequest{Success: ops}); err != nil {
					t.Fatal(err)
				}
			}
		})
		var pages int
		b.Inject(func(c storetest.Call) storetest.Fault {
			if pages++; pages > 1 { // another client writes between the pages
				b.Do(func(e *storetest.Etcd) {
					_, err := e.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{
						store.Delete(fmt.Sprintf("/p/%05d", keys-pages)), store.Put(fmt.Sprintf("/p/zz%d", pages), nil, 0),
					}})
					if err != nil {
						t.Error(err)
					}
				})
			}
			return storetest.Fault{}
		})
		s, err := store.ReadAll(t.Context(), b, "/p/")
		if err != nil || len(s.KVs) != keys || s.Revision != 111 || pages != 3 {
			t.Errorf("%d keys at revision %d in %d pages, %v", len(s.KVs), s.Revision, pages, err)
		}
		for i, kv := range s.KVs {
			if string(kv.Key) != fmt.Sprintf("/p/%05d", i) {
				t.Fatalf("key %d is %q", i, kv.Key)
			}
		}
		b.Inject(func(c storetest.Call) storetest.Fault {
			if c.Range != nil && c.Range.Revision > 0 { // compacted between the pages
				b.Do(func(e *storetest.Etcd) {
					if _, err := e.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put("/q", nil, 0)}}); err != nil {
						t.Error(err)
					}
					_ = e.Compact(e.Revision())
				})
			}
			return storetest.Fault{}
		})
		if s, err := store.ReadAll(t.Context(), b, "/p/"); !errors.Is(err, store.ErrCompacted) || s.KVs != nil {
			t.Errorf("%d keys, %v", len(s.KVs), err)
		}
	})
}
