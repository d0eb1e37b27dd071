package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/store/storetest"
)

// notReadAgain fails if the feed has read everything again.
func (fd *feeding) notReadAgain() {
	fd.t.Helper()
	if n, full := fd.resynced.Load(), fd.etcd.full.Load(); n != 0 || full != 1 {
		fd.t.Errorf("everything was read %d times, and %d times reported as read again", full, n)
	}
}

// many puts keys, one revision each.
func (fd *feeding) many(prefix string, n int) {
	for i := range n {
		fd.put(fmt.Sprint(prefix, i%10))
	}
}

func TestABrokenWatchGoesOnWhereItEnded(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		fd.want("snapshot: a")
		for i := range 5 {
			begin := time.Now()
			fd.put(fmt.Sprint("/p/b", i))
			fd.want(fmt.Sprint("put b", i))
			fd.etcd.BreakWatches(store.ErrUnavailable)
			fd.put(fmt.Sprint("/p/c", i), "/q/a", fmt.Sprint("/p/d", i))
			fd.want(fmt.Sprintf("put c%d, put d%[1]d", i))
			fd.delete(fmt.Sprint("/p/d", i))
			fd.want(fmt.Sprint("del d", i))
			// A watch that has delivered something is healthy: the pauses do not grow.
			if took := time.Since(begin); took > 200*time.Millisecond {
				t.Errorf("the watch went on after %s", took)
			}
		}
		fd.etcd.BreakWatches(store.ErrUnavailable)
		fd.freshness(time.Minute) // nothing was written since
		fd.notReadAgain()
	})
}

func TestABrokenWatchIsReadAgainOnlyIfItsEventsAreGone(t *testing.T) {
	compact := func(e *storetest.Etcd) {
		if err := e.Compact(e.Revision()); err != nil {
			panic(err)
		}
	}
	for name, tc := range map[string]struct {
		meanwhile func(fd *feeding)
		text      string
		reason    error
	}{
		"10,000 revisions behind": {func(fd *feeding) { fd.many("/q/", 9_999); fd.put("/p/b") }, "put b", nil},
		"10,001 revisions behind": {func(fd *feeding) { fd.many("/q/", 10_000); fd.put("/p/b") }, "snapshot: a b", store.ErrBehind},
		"compacted": {func(fd *feeding) {
			fd.put("/p/b")
			fd.delete("/p/a")
			fd.etcd.Do(compact)
		}, "snapshot: b", store.ErrCompacted},
		"restored to an earlier revision": {func(fd *feeding) {
			fd.etcd.Restore(storetest.New(storetest.Options{}))
		}, "snapshot: ", store.ErrRestored},
		"restored to an earlier revision, and later than before by now": {func(fd *feeding) {
			fd.etcd.Restore(storetest.New(storetest.Options{}))
			_, _ = fd.etcd.Range(t.Context(), &pb.RangeRequest{Key: []byte("/p/")}) // another client learns of it
			fd.put("/p/x", "/p/y", "/p/z")
		}, "snapshot: x y z", store.ErrRestored},
		"another cluster, at the same revision": {func(fd *feeding) {
			fd.etcd.Do(func(e *storetest.Etcd) { e.SetCluster(2) })
			fd.put("/p/b")
		}, "snapshot: a b", store.ErrRestored},
		"another cluster, at a later revision": {func(fd *feeding) {
			fd.etcd.Do(func(e *storetest.Etcd) {
				e.Restore(e.Save(), 5_000)
				e.SetCluster(2)
			})
			fd.put("/p/b")
		}, "snapshot: a b", store.ErrRestored},
		"restored to a later revision": {func(fd *feeding) {
			e := storetest.New(storetest.Options{Revision: 1_000_000_000})
			compact(e)
			fd.etcd.Restore(e)
		}, "snapshot: ", store.ErrBehind},
	} {
		t.Run(name, func(t *testing.T) {
			feed(t, func(t *testing.T, fd *feeding) {
				fd.want("snapshot: a")
				synctest.Wait() // until the watch is open that breaks
				fd.etcd.Freeze()
				fd.etcd.BreakWatches(store.ErrUnavailable)
				tc.meanwhile(fd)
				fd.etcd.Thaw()
				m := fd.want(tc.text)
				if tc.reason == nil {
					fd.notReadAgain()
					return
				}
				if !errors.Is(m.Snapshot.Reason, tc.reason) {
					t.Errorf("the reason is %v, want %v", m.Snapshot.Reason, tc.reason)
				}
				if m.Snapshot.Reason == nil {
					t.Error("it is of the same history for sure")
				}
				if m.Snapshot.History != fd.etcd.History() {
					t.Errorf("the snapshot is of history %d, etcd of %d", m.Snapshot.History, fd.etcd.History())
				}
				if n := fd.resynced.Load(); n != 1 {
					t.Errorf("read again %d times", n)
				}
				fd.put("/p/e")
				fd.want("put e")
			})
		})
	}
}

func TestAWatchThatOutlivesARestoreIsReplaced(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		fd.want("snapshot: a")
		fd.many("/p/", 3)
		for range 3 {
			fd.next()
		}
		fd.etcd.Restore(storetest.New(storetest.Options{}))
		if m := fd.want("snapshot: "); m.Snapshot.Reason == nil || m.Revision != 1 {
			t.Errorf("a new history: %t, at revision %d", m.Snapshot.Reason != nil, m.Revision)
		}
		fd.put("/p/e")
		fd.want("put e")
	})
}

func TestAWatchOfAClusterThatWasReplacedEnds(t *testing.T) {
	feed(t, func(t *testing.T, fd *feeding) {
		fd.want("snapshot: a")
		synctest.Wait()
		fd.etcd.Do(func(e *storetest.Etcd) { e.SetCluster(2) })
		fd.put("/p/b")
		if m := fd.want("snapshot: a b"); !errors.Is(m.Snapshot.Reason, store.ErrRestored) || m.Snapshot.History != 1 {
			t.Errorf("history %d, reason %v", m.Snapshot.History, m.Snapshot.Reason)
		}
		fd.put("/p/e")
		fd.want("put e")
	})
}

// A page of another cluster has nothing to do with the pages before it, whichever request has met that cluster
// first.
func TestNoSnapshotHasPagesOfTwoClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer etcd.Close()
		etcd.Do(func(e *storetest.Etcd) {
			for i := range 5000 {
				if _, err := e.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(fmt.Sprintf("/p/%05d", i), nil, 0)}}); err != nil {
					t.Fatal(err)
				}
			}
		})
		pages := 0
		etcd.Inject(func(c storetest.Call) storetest.Fault {
			if c.Op == storetest.OpRange {
				if pages++; pages == 2 {
					etcd.Do(func(e *storetest.Etcd) { e.SetCluster(2) })
					if _, err := etcd.TimeToLive(t.Context(), 1); !errors.Is(err, store.ErrOtherCluster) {
						t.Errorf("another request meets the other cluster: %v", err)
					}
				}
			}
			return storetest.Fault{}
		})
		if s, err := store.ReadAll(t.Context(), etcd, "/p/"); !errors.Is(err, store.ErrOtherCluster) {
			t.Errorf("%d keys, %v", len(s.KVs), err)
		}
	})
}

func TestWhatMustBeReadAgainIsNotReadByAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer etcd.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		defer tasks.Wait()
		defer cancel()
		var mu sync.Mutex
		var reads []time.Time
		etcd.Inject(func(c storetest.Call) storetest.Fault {
			if mu.Lock(); c.Range != nil && len(c.Range.RangeEnd) > 0 {
				reads = append(reads, time.Now())
			}
			mu.Unlock()
			return storetest.Fault{}
		})
		const feeds = 50
		for range feeds {
			f := store.NewFeed(etcd, "/p/", hclog.NewNullLogger(), func() {})
			tasks.Go(func() { _ = f.Run(ctx) })
			tasks.Go(func() {
				for range f.Messages() {
				}
			})
		}
		synctest.Wait()
		reads = nil
		etcd.BreakWatches(store.ErrCompacted)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(reads) != feeds {
			t.Fatalf("%d feeds have read %d times", feeds, len(reads))
		}
		slices.SortFunc(reads, time.Time.Compare)
		if took := reads[feeds-1].Sub(reads[0]); took < 500*time.Millisecond || took > 2*time.Second {
			t.Errorf("all of them have read within %s", took)
		}
	})
}

func TestASlowReaderDoesNotBlameEtcd(t *testing.T) {
	for name, slow := range map[string]func(fd *feeding){
		"the reader of an idle feed": func(fd *feeding) { time.Sleep(time.Minute) },
		"the reader of a busy feed": func(fd *feeding) {
			for i := range 60 {
				fd.put(fmt.Sprint("/p/b", i))
				time.Sleep(time.Second)
			}
			for i := range 60 {
				fd.next()
				fd.put(fmt.Sprint("/p/c", i))
				time.Sleep(2500 * time.Millisecond)
			}
			for describe(fd.next()) != "put c59" {
			}
		},
		"the process": func(fd *feeding) {
			fd.etcd.stall.Store(int64(2500 * time.Millisecond)) // each time the feed asks for progress
			for i := range 40 {
				go func() { time.Sleep(1100 * time.Millisecond); fd.put(fmt.Sprint("/p/b", i)) }()
				fd.want(fmt.Sprint("put b", i))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			feed(t, func(t *testing.T, fd *feeding) {
				fd.want("snapshot: a")
				slow(fd)
				fd.etcd.stall.Store(0)
				fd.put("/p/end")
				fd.want("put end")
				if n := fd.etcd.watches.Load(); n != 1 {
					t.Errorf("there were %d watches", n)
				}
				fd.notReadAgain()
			})
		})
	}
}

// fullReads is a backend that counts the reads of a whole prefix, and all reads.
type fullReads struct {
	store.Backend
	full, all *atomic.Int64
}

func (b fullReads) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	b.all.Add(1)
	if len(req.RangeEnd) > 0 {
		b.full.Add(1)
	}
	return b.Backend.Range(ctx, req)
}

// herd are the feeds of many instances, all of which follow the same keys.
type herd struct {
	t                   *testing.T
	ctx                 context.Context
	full, all, resynced atomic.Int64
	feeds               []*store.Feed
	last                []int // number of the last key that each has delivered
	written             int
	ctl                 *store.Client
}

func newHerd(t *testing.T, m *embedtest.Members, instances int) *herd {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	h := &herd{t: t, ctx: ctx, ctl: m.Client(t), last: make([]int, instances)}
	var tasks sync.WaitGroup
	t.Cleanup(func() { cancel(); tasks.Wait() })
	for i := range instances {
		all := m.Endpoints()
		at := i % len(all)
		c := newClient(t, store.Config{Endpoints: append(all[at:], all[:at]...)})
		f := store.NewFeed(fullReads{c, &h.full, &h.all}, "/b/", hclog.NewNullLogger(), func() { h.resynced.Add(1) })
		h.feeds = append(h.feeds, f)
		tasks.Go(func() { _ = f.Run(ctx) })
	}
	h.follow(1)
	return h
}

// write puts the next keys, and returns the revision of the last.
func (h *herd) write(n int) (rev int64) {
	for range n {
		h.written++
		req := putReq(fmt.Sprintf("/b/%04d", h.written), "", 0)
		until(h.t, func(ctx context.Context) error {
			resp, err := h.ctl.Txn(ctx, req)
			if err == nil {
				rev = resp.Header.Revision
			}
			return err
		})
	}
	return rev
}

// follow has all feeds come up to a revision. No key may be missing on the way. One may
// come twice: a write without an answer is repeated here.
func (h *herd) follow(rev int64) {
	var all sync.WaitGroup
	for i, f := range h.feeds {
		all.Go(func() {
			for at := int64(0); at < rev; {
				msg, ok := <-f.Messages()
				if !ok {
					h.t.Errorf("feed %d has ended", i)
					return
				}
				for _, e := range msg.Events {
					switch string(e.Kv.Key) {
					case fmt.Sprintf("/b/%04d", h.last[i]+1):
						h.last[i]++
					case fmt.Sprintf("/b/%04d", h.last[i]):
					default:
						h.t.Errorf("feed %d delivered %s after %d", i, e.Kv.Key, h.last[i])
					}
				}
				at = msg.Revision
			}
		})
	}
	all.Wait()
}

func TestAChangeOfTheLeaderHasNoneOf50InstancesReadAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for elections")
	}
	t.Parallel()
	const instances = 50
	m := embedtest.Cluster(t, 3)
	h := newHerd(t, m, instances)
	h.follow(h.write(5))
	if n := h.full.Load(); n != instances {
		t.Fatalf("%d instances have read everything %d times to begin with", instances, n)
	}
	leader := m.Leader()
	m.Kill(leader)
	h.follow(h.write(5))
	m.Restart(leader)
	h.follow(h.write(5))

	// Without a majority every watch ends, and the feeds ask where etcd is.
	before := h.all.Load()
	leader = m.Leader()
	other := (leader + 1) % 3
	m.Kill(leader, other)
	for tick := time.NewTicker(10 * time.Millisecond); h.all.Load() < before+instances && h.ctx.Err() == nil; {
		for _, f := range h.feeds { // nothing but progress can come, and would wait for a reader
			select {
			case <-f.Messages():
			default:
			}
		}
		<-tick.C
	}
	m.Restart(leader, other)
	h.follow(h.write(5))
	if n := h.full.Load() - instances; n != 0 || h.resynced.Load() != 0 {
		t.Errorf("%d instances have read everything again %d times, and %d times reported so", instances, n, h.resynced.Load())
	}
}
