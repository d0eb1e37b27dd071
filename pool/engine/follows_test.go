package engine

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/wire"
)

// dispatch has engine 0 dispatch.
func (w *bubble) dispatch() {
	w.Helper()
	spec(w.T, w.b, w.keys, "other", 1)
	claim(w.T, w.engines[2], requestOf("other", "other"))
	w.ask(w.engines[0], requestOf("dispatches", "other")).waits()
	if w.dispatches() != 0 {
		w.Fatalf("engine %d dispatches", w.dispatches())
	}
}

// queue has engine 1 wait for a slot that engine 2 holds. What it returns has the slot released, and returns after what time engine
// 1 has it, which then releases it.
func (w *bubble) queue() (move func() time.Duration) {
	w.Helper()
	held := claim(w.T, w.engines[2], request("held"))
	next := w.ask(w.engines[1], request("next"))
	next.waits()
	return func() time.Duration {
		w.Helper()
		begun := time.Now()
		w.release(w.engines[2], held)
		c := next.got()
		took := time.Since(begun)
		w.release(w.engines[1], c)
		return took
	}
}

// dispatches returns which engine dispatches, -1 if none does.
func (w *bubble) dispatches() int {
	w.Helper()
	kv, err := store.ReadAll(w.Context(), w.b, w.keys.Role())
	w.must(err)
	if len(kv.KVs) == 0 {
		return -1
	}
	role, err := wire.DecodeRole(w.keys.Role(), kv.KVs[0].Value)
	w.must(err)
	var i int
	_, err = fmt.Sscanf(role.Host, "host-%d", &i)
	w.must(err)
	return i
}

// When the dispatcher is killed, stopped or cut off from etcd at any moment, the queue moves again within 3.5 s with a standby
// coordinator, and within 4.5 s with one instance that waits. One that goes on afterwards takes nothing back.
func TestADispatcherThatFallsSilentIsReplaced(t *testing.T) {
	for name, fail := range map[string]func(w *bubble) (goOn func()){
		"killed": func(w *bubble) func() {
			w.kill[0]()
			return func() {}
		},
		"stopped": func(w *bubble) func() {
			stopped := make(chan struct{})
			w.by[0].Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Hold: stopped} })
			w.by[0].Freeze()
			return func() {
				close(stopped)
				w.by[0].Inject(nil)
				w.by[0].Thaw()
			}
		},
		"cut off": func(w *bubble) func() {
			w.by[0].Down()
			return w.by[0].Up
		},
	} {
		for _, standby := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, standby %v", name, standby), func(t *testing.T) {
				var slowest time.Duration
				for offset := time.Duration(0); offset < 2*time.Second; offset += 170 * time.Millisecond {
					withEngines(t, 0, 1, func(w *bubble) {
						w.startOn("host-0", wire.Coordinator, nil)
						w.start("host-1")
						w.start("host-2")
						within := 4500 * time.Millisecond
						if standby {
							within = 3500 * time.Millisecond
							w.startOn("host-3", wire.Coordinator, nil)
						}
						w.dispatch()
						move := w.queue()
						w.pass(3*time.Second + offset)
						goOn := fail(w)
						took := move()
						if slowest = max(slowest, took); took > within || w.dispatches() == 0 {
							t.Errorf("it moves after %v, engine %d dispatches", took, w.dispatches())
						}
						goOn()
						w.pass(5 * time.Second)
						if w.dispatches() == 0 {
							t.Error("it dispatches again")
						}
					})
				}
				t.Log("slowest:", slowest)
			})
		}
	}
}

// A dispatcher that ends names one that follows, which sees that by its watch and takes the role without a pause or a poll. If nobody
// is named, or the one that is does not, another instance that waits does after its pause.
func TestADispatcherThatEndsIsFollowed(t *testing.T) {
	withEngines(t, 4, 1, func(w *bubble) {
		w.dispatch()
		move := w.queue()
		w.ask(w.engines[3], request("later")).waits()
		w.pass(10*time.Second + 300*time.Millisecond) // between two polls
		w.must(w.engines[0].Stop(w.Context()))
		if took := move(); took > 50*time.Millisecond || w.dispatches() != 3 {
			t.Errorf("it moves after %v, engine %d dispatches", took, w.dispatches())
		}
	})
	withEngines(t, 4, 1, func(w *bubble) {
		w.dispatch()
		move := w.queue()
		w.ask(w.engines[3], request("later")).waits()
		w.pass(10*time.Second + 300*time.Millisecond)
		w.by[3].Down()
		w.must(w.engines[0].Stop(w.Context()))
		if took := move(); took > 600*time.Millisecond || w.dispatches() != 1 { // an offer to the one that is cut off is taken back
			t.Errorf("it moves after %v, engine %d dispatches", took, w.dispatches())
		}
	})
}

// Each instance has the pools of its claims that wait pending again when it sees that another one dispatches.
func TestPoolsArePendingAgainUnderAnotherDispatcher(t *testing.T) {
	withEngines(t, 4, 1, func(w *bubble) {
		w.dispatch()
		move := w.queue()
		w.startOn("host-4", wire.Server, nil)
		w.by[0].Down()
		_, err := store.Commit(w.Context(), w.b, nil, store.Delete(w.keys.Pending("db")))
		w.must(err)
		w.pass(300 * time.Millisecond) // between two polls
		spec(w.T, w.b, w.keys, "third", 1)
		claim(w.T, w.engines[2], requestOf("third", "third"))
		w.ask(w.engines[4], requestOf("waits", "third")).waits()
		if w.dispatches() != 4 || w.under(w.keys.Pending("db")) == 0 {
			t.Errorf("engine %d dispatches, and the pool is not pending", w.dispatches())
		}
		if took := move(); took > 10*time.Millisecond {
			t.Errorf("it moves after %v", took)
		}
	})
}

// mutable is a client whose watches can be made silent.
type mutable struct {
	store.Backend
	counted        string       // the first part of the keys of those that are counted
	opened, silent atomic.Int64 // so many, and so many of the first of these are
}

func (m *mutable) Watch(ctx context.Context, keys store.KeyRange, from int64) store.Watch {
	w := &mutedWatch{m.Backend.Watch(ctx, keys, from), make(chan store.WatchMessage)}
	counts := strings.HasPrefix(keys.Key, m.counted)
	number := int64(0)
	if counts {
		number = m.opened.Add(1)
	}
	go func() {
		defer close(w.messages)
		for msg := range w.Watch.Messages() {
			if counts && msg.Err == nil && number <= m.silent.Load() {
				continue
			}
			select {
			case w.messages <- msg:
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

type mutedWatch struct {
	store.Watch
	messages chan store.WatchMessage
}

func (w *mutedWatch) Messages() <-chan store.WatchMessage { return w.messages }

// A watch that is silent costs a claim that waits no more than three polls: it is opened again. Others are not.
func TestASilentWatchIsOpenedAgain(t *testing.T) {
	withEngines(t, 1, 1, func(w *bubble) {
		var m *mutable
		w.startOn("host-1", wire.Service, func(b store.Backend) store.Backend {
			m = &mutable{Backend: b, counted: w.keys.Offers("host-1", "i")}
			return m
		})
		w.start("host-2")
		w.dispatch()
		w.queue()()
		opened := m.opened.Load()
		for range 20 {
			move := w.queue()
			w.pass(time.Second)
			if took := move(); took > 10*time.Millisecond {
				t.Errorf("it moves after %v", took)
			}
		}
		if n := m.opened.Load() - opened; n != 0 {
			t.Errorf("%d watches were opened again without need", n)
		}
		move := w.queue()
		m.silent.Store(opened)
		if took := move(); took > 3*time.Second {
			t.Errorf("it moves after %v", took)
		}
		w.pass(5 * time.Second)
		for range 20 {
			move := w.queue()
			w.pass(time.Second)
			if took := move(); took > 10*time.Millisecond {
				t.Errorf("it moves after %v", took)
			}
		}
		if n := m.opened.Load() - opened; n != 1 {
			t.Errorf("%d watches were opened again", n)
		}
	})
}

// What a watch of before a restore shows is not taken: its revisions may be later than all that follow.
func TestAWatchOfBeforeARestoreShowsNothing(t *testing.T) {
	withEngines(t, 1, 1, func(w *bubble) {
		e := w.engines[0]
		of := newTail(e, store.Prefix(w.keys.Role()), nil, nil)
		shown := map[uint64]bool{}
		for history := range e.cfg.Backend.History() + 2 {
			of.post(w.Context(), history, func() { shown[history] = true })
		}
		w.pass(time.Second)
		if !shown[0] || shown[1] {
			t.Errorf("%v", shown)
		}
	})
}

// failing is a client whose requests, but not its watches, fail from some time on: with an error, or without an answer.
type failing struct {
	store.Backend
	how atomic.Pointer[func(context.Context) error]
}

func (f *failing) Txn(ctx context.Context, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if how := f.how.Load(); how != nil {
		return nil, (*how)(ctx)
	}
	return f.Backend.Txn(ctx, t)
}

// The same on etcd: the queue moves again, and an instance that was only silent does not disturb it afterwards.
func TestADispatcherIsReplacedOnEtcd(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(context.Context) error{
		"cut off": func(context.Context) error { return store.ErrUnavailable },
		"stopped": func(ctx context.Context) error {
			<-ctx.Done()
			return store.ErrUnavailable
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d *failing
			engines, b, keys := hostsOn(t, embedtest.New(t), 3, 1, func(i int, b store.Backend) store.Backend {
				if i > 0 {
					return b
				}
				d = &failing{Backend: b}
				return d
			})
			spec(t, b, keys, "other", 1)
			claim(t, engines[2], requestOf("other", "other"))
			defer waits(t, engines[0], requestOf("dispatches", "other"))()
			within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for found := false; !found; {
				all, err := store.ReadAll(within, b, keys.Role())
				if err != nil {
					t.Fatal(err)
				}
				found = len(all.KVs) > 0
			}
			held := claim(t, engines[2], request("held"))
			granted := make(chan error, 1)
			for i := range 2 {
				go func() {
					c, err := engines[1].Claim(t.Context(), request(fmt.Sprint("next-", i)))
					if err == nil {
						err = engines[1].Release(t.Context(), c)
					}
					granted <- err
				}()
			}
			for n := 0; n < 2; {
				_, waiting := listed(t, engines[1])
				if n = len(waiting) - 1; within.Err() != nil {
					t.Fatalf("%d claims wait", n)
				}
			}
			d.how.Store(&how)
			begun := time.Now()
			if err := engines[2].Release(t.Context(), held); err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				if err := <-granted; err != nil {
					t.Error(err)
				}
				t.Logf("claim %d had its turn after %v", i, time.Since(begun))
				d.how.Store(nil)
			}
		})
	}
}
