package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// Each change of a group gets the answers to its own operations.
func TestAGroupAnswersEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: time.Millisecond} })
		if _, err := b.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put("there", []byte("x"), 0)}}); err != nil {
			t.Fatal(err)
		}
		var g store.Group
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				key := fmt.Sprint("k", i)
				absent := "there"
				if i%2 == 0 {
					absent = key
				}
				made, err := g.Commit(t.Context(), b, []*pb.Compare{store.CreateEquals(absent, 0)},
					store.Put(key, nil, 0), store.Get("there"))
				switch {
				case i%2 == 1:
					if !errors.Is(err, store.ErrChanged) {
						t.Errorf("%s: %v", key, err)
					}
				case err != nil:
					t.Errorf("%s: %v", key, err)
				case made.Revision == 0 || string(made.Responses[1].GetResponseRange().Kvs[0].Value) != "x":
					t.Errorf("%s: %+v", key, made)
				}
			})
		}
		wg.Wait()
	})
}

// What is given up before it was sent leaves nothing behind.
func TestAGroupForgetsWhatIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		away := make(chan struct{})
		b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Hold: away} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var g store.Group
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if _, err := g.Commit(ctx, b, nil, store.Put(fmt.Sprint("k", i), nil, 0)); err == nil {
					t.Errorf("k%d was written", i)
				}
			})
		}
		wg.Wait()
		b.Inject(nil)
		close(away)
		time.Sleep(time.Minute)
		if pending, flying := g.Open(); pending+flying > 0 {
			t.Errorf("%d are pending still, %d under way", pending, flying)
		}
	})
}

// shapes notes how many parts each transaction has, with a ! if they are children.
type shapes struct {
	mu  sync.Mutex
	all []string
}

// under has each transaction of a backend take some time.
func (s *shapes) under(b *storetest.Backend, each time.Duration) {
	b.Inject(func(c storetest.Call) storetest.Fault {
		if c.Op != storetest.OpTxn {
			return storetest.Fault{}
		}
		text := fmt.Sprint(len(c.Txn.Success))
		if c.Txn.Success[0].GetRequestTxn() != nil {
			text += "!"
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, text)
		return storetest.Fault{Delay: each}
	})
}

func (s *shapes) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.all, " ")
}

// What fails has the others sent again as children, and the next as well: until none fails.
func TestAGroupIsFlatUntilAChangeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		var sent shapes
		sent.under(b, 10*time.Millisecond)
		var g store.Group
		round := func(fails bool) {
			t.Helper()
			var answers []func() (store.Committed, error)
			for i := range 4 {
				var cmps []*pb.Compare
				if fails && i == 2 {
					cmps = []*pb.Compare{store.Present("nowhere")}
				}
				answers = append(answers, g.Enqueue(t.Context(), b, cmps, store.Put(fmt.Sprint("k", i), nil, 0)))
			}
			for i, answer := range answers {
				if _, err := answer(); errors.Is(err, store.ErrChanged) != (fails && i == 2) {
					t.Errorf("k%d: %v", i, err)
				}
			}
			time.Sleep(time.Second)
		}
		for _, fails := range []bool{false, true, true, false, false} {
			round(fails)
		}
		// The first of a round finds nothing under way, and goes alone.
		if got, want := sent.text(), "1 3 1 3 3! 1 3! 1 3! 1 3"; got != want {
			t.Errorf("sent: %s, want %s", got, want)
		}
	})
}

// Those who come again as soon as they are answered come to share one transaction: no part
// of them waits for that of the others.
func TestThoseWhoComeAgainShareATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		var sent shapes
		sent.under(b, 10*time.Millisecond)
		const clients, rounds = 12, 50
		var g store.Group
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				for range rounds {
					if _, err := g.Commit(t.Context(), b, nil, store.Put(fmt.Sprint("k", i), nil, 0)); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(i) * 50 * time.Microsecond)
				}
			})
		}
		begun := time.Now()
		wg.Wait()
		if took, most := time.Since(begun), (rounds+5)*11*time.Millisecond; took > most {
			t.Errorf("%d rounds of 10 ms took %s, in transactions of %s", rounds, took, sent.text())
		}
		time.Sleep(time.Second)
		if pending, flying := g.Open(); pending+flying > 0 {
			t.Errorf("%d are pending still, %d under way", pending, flying)
		}
	})
}

// A single caller does not wait for others.
func TestOneCallerAloneDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		new(shapes).under(b, 10*time.Millisecond)
		var g store.Group
		begun := time.Now()
		for range 10 {
			if _, err := g.Commit(t.Context(), b, nil, store.Put("k", nil, 0)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took != 100*time.Millisecond {
			t.Errorf("it took %s", took)
		}
	})
}

// What is enqueued later goes with it or after it: so says [store.Group.Enqueue].
func TestWhatIsEnqueuedLaterDoesNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 10 * time.Millisecond} })
		var g store.Group
		put := func(key string, cmps ...*pb.Compare) func() (store.Committed, error) {
			return g.Enqueue(t.Context(), b, cmps, store.Put(key, nil, 0))
		}
		put("first")
		early := put("early")
		put("stale", store.Present("nowhere"))
		time.Sleep(12 * time.Millisecond) // they are under way
		var later []func() (store.Committed, error)
		for i := range 100 {
			later = append(later, put(fmt.Sprint("late", i)))
		}
		one, err := early()
		if err != nil {
			t.Fatal(err)
		}
		for i, answer := range later {
			if c, err := answer(); err != nil || c.Revision < one.Revision {
				t.Fatalf("late %d was made at revision %d (%v), what was enqueued before it at %d", i, c.Revision, err, one.Revision)
			}
		}
		time.Sleep(time.Second)
	})
}

// An etcd that takes more than a second for a write, and less than the two that one has: as long as
// one of the callers that share a transaction fails each time, no caller is answered.
func TestASlowEtcdAndAChangeThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 1100 * time.Millisecond} })
		var g store.Group
		unknown := 0
		for round := range 10 {
			var all []func() (store.Committed, error)
			put := func(key string, cmps ...*pb.Compare) {
				all = append(all, g.Enqueue(t.Context(), b, cmps, store.Put(fmt.Sprint(key, round), nil, 0)))
			}
			put("alone")
			put("a")
			put("stale", store.Present("nowhere"))
			put("b")
			for _, answer := range all {
				if _, err := answer(); err != nil && !errors.Is(err, store.ErrChanged) {
					unknown++
				}
			}
			time.Sleep(5 * time.Second)
		}
		if unknown > 0 {
			t.Errorf("in 10 rounds of 4 changes %d had an unknown outcome", unknown)
		}
	})
}
