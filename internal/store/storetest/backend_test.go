package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// bubble runs f with a client of a fresh etcd, on a fake clock.
func bubble(t *testing.T, f func(t *testing.T, b *Backend)) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBackend(New(Options{}))
		defer b.Close()
		f(t, b)
	})
}

// expect reads one message of a watch that must be there.
func expect(t *testing.T, w store.Watch) store.WatchMessage {
	t.Helper()
	synctest.Wait()
	select {
	case m, ok := <-w.Messages():
		if !ok {
			t.Fatal("the watch ended")
		}
		return m
	default:
		t.Fatal("nothing was delivered")
		return store.WatchMessage{}
	}
}

// silence fails if a watch delivers something.
func silence(t *testing.T, w store.Watch) {
	t.Helper()
	synctest.Wait()
	select {
	case m := <-w.Messages():
		t.Fatalf("delivered: %+v", m)
	default:
	}
}

// What a client works with is what the real one does: see TestNoAnswerOfAnotherClusterCounts.
func TestARequestToAnotherClusterIsRefusedAndNotCarriedOut(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *Backend) error{
		"txn": func(ctx context.Context, b *Backend) error {
			_, err := b.Txn(ctx, always(putOn("b", 0)))
			return err
		},
		"range": func(ctx context.Context, b *Backend) error {
			_, err := b.Range(ctx, &pb.RangeRequest{Key: []byte("a")})
			return err
		},
		"grant": func(ctx context.Context, b *Backend) error {
			_, _, err := b.Grant(ctx, time.Minute)
			return err
		},
		"renew":  func(ctx context.Context, b *Backend) error { _, err := b.Renew(ctx, 1); return err },
		"revoke": func(ctx context.Context, b *Backend) error { return b.Revoke(ctx, 1) },
		"time to live": func(ctx context.Context, b *Backend) error {
			_, err := b.TimeToLive(ctx, 1)
			return err
		},
		"watch": func(ctx context.Context, b *Backend) error {
			return expectMessage(b.Watch(ctx, store.Prefix("a"), 2)).Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *Backend) {
				ctx := t.Context()
				id, _, err := b.Grant(ctx, time.Hour)
				must(t, err)
				_, err = b.Txn(ctx, always(putOn("a", int64(id))))
				must(t, err)
				of := store.InCluster(ctx, b)
				before, replaced := b.Cluster()
				b.Do(func(e *Etcd) { e.SetCluster(9) })
				if err := ask(ctx, b); !errors.Is(err, store.ErrOtherCluster) {
					t.Errorf("the other cluster answers: %v", err)
				}
				b.Do(func(e *Etcd) {
					if n := len(slices.Collect(e.All(""))); n != 1 || e.Revision() != 2 {
						t.Errorf("%d keys at revision %d: it was carried out", n, e.Revision())
					}
				})
				<-replaced
				if now, _ := b.Cluster(); before != 1 || now != 9 || b.History() != 1 {
					t.Errorf("cluster %d became %d, history %d", before, now, b.History())
				}
				if err := ask(ctx, b); err != nil {
					t.Errorf("after the change: %v", err)
				}
				if name == "watch" {
					return
				}
				if err := ask(of, b); !errors.Is(err, store.ErrOtherCluster) {
					t.Errorf("a request for the cluster before: %v", err)
				}
			})
		})
	}
}

// expectMessage returns the next message of a watch.
func expectMessage(w store.Watch) store.WatchMessage {
	defer w.Abandon()
	return <-w.Messages()
}

func TestLeasesEndByTheClock(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		ctx := t.Context()
		w := b.Watch(ctx, store.Prefix("a"), 2)
		id, ttl, err := b.Grant(ctx, 5*time.Second)
		must(t, err)
		_, err = b.Txn(ctx, always(putOn("a", int64(id))))
		must(t, err)
		expect(t, w)
		time.Sleep(ttl - 1)
		silence(t, w)
		left, err := b.Renew(ctx, id)
		must(t, err)
		time.Sleep(left - 1)
		silence(t, w)
		time.Sleep(time.Nanosecond)
		if m := expect(t, w); describeEvents([]Revision{{Events: m.Events}}, 0) != "0: del a@3" {
			t.Errorf("delivered: %+v", m)
		}
		if _, err := b.TimeToLive(ctx, id); !errors.Is(err, store.ErrLeaseNotFound) {
			t.Errorf("read: %v", err)
		}
		must(t, b.Revoke(ctx, id)) // gone already is no error
	})
}

func TestLeasesEndByHandWhereTimeIsManual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewManualBackend(New(Options{}))
		defer b.Close()
		id, _, err := b.Grant(t.Context(), 5*time.Second)
		must(t, err)
		time.Sleep(time.Hour)
		if left, err := b.TimeToLive(t.Context(), id); err != nil || left != 5*time.Second {
			t.Errorf("left: %s, %v", left, err)
		}
		b.Do(func(e *Etcd) { e.Advance(5 * time.Second) })
		if _, err := b.TimeToLive(t.Context(), id); !errors.Is(err, store.ErrLeaseNotFound) {
			t.Errorf("read: %v", err)
		}
	})
}

// Time that a test adds by hand must not keep the timer from firing.
func TestAdvancingOnTopOfTheClockBringsTheEndNearer(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		_, _, err := b.Grant(t.Context(), 10*time.Second)
		must(t, err)
		b.Do(func(e *Etcd) { e.Advance(4 * time.Second) })
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if left := len(b.hub.etcd.leases); left != 0 {
			t.Errorf("%d leases are left", left)
		}
	})
}

func TestAWatchCatchesUpAndFollows(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			_, err := b.Txn(ctx, always(put("a")))
			must(t, err)
		}
		w := b.Watch(ctx, store.Prefix("a"), 2)
		if m := expect(t, w); m.Revision != 3 || len(m.Events) != 2 {
			t.Errorf("caught up with %+v", m)
		}
		_, err := b.Txn(ctx, always(put("b")))
		must(t, err)
		silence(t, w)
		w.RequestProgress()
		if m := expect(t, w); m.Revision != 4 || m.Events != nil {
			t.Errorf("progress: %+v", m)
		}
		silence(t, w)
		_, err = b.Peer().Txn(ctx, always(put("a")))
		must(t, err)
		w.RequestProgress()
		if m := expect(t, w); m.Revision != 5 || len(m.Events) != 1 {
			t.Errorf("followed with %+v", m)
		}
		if m := expect(t, w); m.Revision != 5 || len(m.Events) != 0 {
			t.Errorf("progress behind it: %+v", m)
		}
		cancel()
		if _, ok := <-w.Messages(); ok {
			t.Error("the watch outlives its context")
		}
	})
}

func TestAWatchEndsWhenAbandonedCompactedOrBroken(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		ctx := t.Context()
		for range 3 {
			_, err := b.Txn(ctx, always(put("a")))
			must(t, err)
		}
		b.Do(func(e *Etcd) { must(t, e.Compact(4)) })

		abandoned := b.Watch(ctx, store.Prefix("a"), 5)
		abandoned.Abandon()
		if _, ok := <-abandoned.Messages(); ok {
			t.Error("an abandoned watch delivers")
		}
		compacted := b.Watch(ctx, store.Prefix("a"), 2)
		if m := expect(t, compacted); !errors.Is(m.Err, store.ErrCompacted) {
			t.Errorf("compacted: %+v", m)
		}
		broken := b.Watch(ctx, store.Prefix("a"), 5)
		b.Freeze()
		b.BreakWatches(store.ErrUnavailable)
		if m := expect(t, broken); !errors.Is(m.Err, store.ErrUnavailable) {
			t.Errorf("broken: %+v", m)
		}
		for _, w := range []store.Watch{compacted, broken} {
			if _, ok := <-w.Messages(); ok {
				t.Error("a failed watch goes on")
			}
		}
	})
}

func TestAFrozenWatchWaitsAndLosesNothingButProgress(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		ctx := t.Context()
		frozen, other := b.Watch(ctx, store.Prefix(""), 2), b.Peer().Watch(ctx, store.Prefix(""), 2)
		b.Freeze()
		for range 2 {
			_, err := b.Txn(ctx, always(put("a")))
			must(t, err)
			expect(t, other)
		}
		frozen.RequestProgress()
		silence(t, frozen)
		b.Thaw()
		if m := expect(t, frozen); m.Revision != 3 || len(m.Events) != 2 {
			t.Errorf("thawed with %+v", m)
		}
		silence(t, frozen)

		// What was taken before the freeze but not read waits, too.
		_, err := b.Txn(ctx, always(put("a")))
		must(t, err)
		synctest.Wait()
		b.Freeze()
		silence(t, frozen)
		b.Thaw()
		expect(t, frozen)
	})
}

func TestAClientThatIsDownIsAloneWithIt(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		ctx, peer := t.Context(), b.Peer()
		w := b.Watch(ctx, store.Prefix(""), 2)
		id, _, err := b.Grant(ctx, 5*time.Second)
		must(t, err)
		_, err = b.Txn(ctx, always(putOn("a", int64(id))))
		must(t, err)
		expect(t, w)
		b.Down()
		if _, err := b.Renew(ctx, id); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("renew: %v", err)
		}
		_, err = peer.Txn(ctx, always(put("b")))
		must(t, err)
		time.Sleep(5 * time.Second)
		silence(t, w)
		b.Up()
		if m := expect(t, w); m.Revision != 4 || len(m.Events) != 2 {
			t.Errorf("delivered: %+v", m)
		}
		if _, err := b.Renew(ctx, id); !errors.Is(err, store.ErrLeaseNotFound) {
			t.Errorf("renew: %v", err)
		}
	})
}

func TestAClosedClientRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		w := b.Watch(t.Context(), store.Prefix(""), 2)
		other := b.Peer()
		other.Close()
		other.Close()
		b.Close()
		if _, ok := <-w.Messages(); ok {
			t.Error("a watch outlives its client")
		}
		if _, ok := <-b.Watch(t.Context(), store.Prefix(""), 2).Messages(); ok {
			t.Error("a watch is opened by a closed client")
		}
		if _, err := b.Txn(t.Context(), always()); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("transaction: %v", err)
		}
	})
}

func TestManyGoroutinesShareAnEtcd(t *testing.T) {
	b := NewBackend(New(Options{}))
	defer b.Close()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			client := b.Peer()
			defer client.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := client.Watch(ctx, store.Prefix("a"), 2)
			for range 50 {
				id, _, err := client.Grant(ctx, time.Hour)
				if err != nil {
					t.Error(err)
				}
				if _, err := client.Txn(ctx, always(putOn("a", int64(id)))); err != nil {
					t.Error(err)
				}
				w.RequestProgress()
				if m := <-w.Messages(); m.Err != nil {
					t.Error(m.Err)
				}
				if err := client.Revoke(ctx, id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A feed is what the stand-in has to serve: it reads everything again after a
// compaction, goes on after a silent watch, and sees everything.
func TestAFeedFollowsTheStandIn(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := b.Txn(ctx, always(put("p/a")))
		must(t, err)
		resyncs := 0
		f := store.NewFeed(b, "p/", hclog.NewNullLogger(), func() { resyncs++ })
		go func() { _ = f.Run(ctx) }()
		if m := <-f.Messages(); m.Snapshot == nil || len(m.Snapshot.KVs) != 1 {
			t.Fatalf("snapshot: %+v", m)
		}
		_, err = b.Txn(ctx, always(put("p/b")))
		must(t, err)
		for m := range f.Messages() {
			if len(m.Events) == 1 {
				break
			}
		}
		b.Freeze()
		_, err = b.Txn(ctx, always(put("p/c")))
		must(t, err)
		time.Sleep(2 * store.StaleAfter) // and so another watch is tried
		b.Thaw()
		for m := range f.Messages() {
			if len(m.Events) == 1 && string(m.Events[0].Kv.Key) == "p/c" {
				break
			}
		}
		if resyncs != 0 {
			t.Error("all was read again because of a silence")
		}
		b.Freeze()
		_, err = b.Txn(ctx, always(put("p/d")))
		must(t, err)
		b.Do(func(e *Etcd) { must(t, e.Compact(e.Revision())) })
		b.BreakWatches(store.ErrUnavailable)
		_, err = b.Txn(ctx, always(put("p/d")))
		must(t, err)
		b.Do(func(e *Etcd) { must(t, e.Compact(e.Revision())) })
		b.Thaw()
		for m := range f.Messages() {
			if m.Snapshot != nil && len(m.Snapshot.KVs) == 4 {
				break
			}
		}
		if resyncs != 1 {
			t.Errorf("after a compaction all was read again %d times", resyncs)
		}
		cancel()
		for range f.Messages() {
		}
	})
}
