package storetest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// impatient is a context that ends within a second.
func impatient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

func each(f Fault) func(Call) Fault { return func(Call) Fault { return f } }

func revision(b *Backend) (rev int64) {
	b.Do(func(e *Etcd) { rev = e.Revision() })
	return rev
}

func TestFaultsOfOneRequest(t *testing.T) {
	sour := errors.New("sour")
	cases := []struct {
		name  string
		fault Fault
		want  error
		after time.Duration // when the caller knows
		// Whether it is carried out by then, and in the end.
		done, late bool
	}{
		{"no fault", Fault{}, nil, 0, true, true},
		{"dropped", Fault{Drop: true}, store.ErrUnavailable, time.Second, false, false},
		{"dropped and reported", Fault{Drop: true, Err: sour}, sour, 0, false, false},
		{"answer lost", Fault{LoseAnswer: true}, store.ErrUnavailable, time.Second, true, true},
		{"answer lost and reported", Fault{LoseAnswer: true, Err: sour}, sour, 0, true, true},
		{"delayed", Fault{Delay: 300 * time.Millisecond}, nil, 300 * time.Millisecond, true, true},
		{"delayed beyond the caller's patience", Fault{Delay: 3 * time.Second}, store.ErrUnavailable, time.Second, false, true},
		{"delayed and answer lost", Fault{Delay: 300 * time.Millisecond, LoseAnswer: true}, store.ErrUnavailable, time.Second, true, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *Backend) {
				b.Inject(each(c.fault))
				begin, req := time.Now(), always(put("a"))
				_, err := b.Txn(impatient(t), req)
				if !errors.Is(err, c.want) || store.OutcomeUnknown(err) != (c.want != nil) {
					t.Errorf("error %v, want %v", err, c.want)
				}
				if took := time.Since(begin); took != c.after {
					t.Errorf("took %s, want %s", took, c.after)
				}
				if done := revision(b) == 2; done != c.done {
					t.Errorf("carried out: %t, want %t", done, c.done)
				}
				clear(req.Success[0].GetRequestPut().Key) // the caller may use it again
				time.Sleep(time.Minute)
				synctest.Wait()
				if late := revision(b) == 2; late != c.late {
					t.Errorf("carried out in the end: %t, want %t", late, c.late)
				}
				if late := len(b.hub.etcd.keys) == 1 && string(b.hub.etcd.keys[0].Key) == "a"; late != c.late {
					t.Errorf("stored: %s", describeKVs(b.hub.etcd.keys, 0))
				}
			})
		})
	}
}

func TestAHeldRequestIsCarriedOutWhenItIsLetGo(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		hold := make(chan struct{})
		b.Inject(each(Fault{Hold: hold}))
		if _, err := b.Txn(impatient(t), always(put("a"))); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("transaction: %v", err)
		}
		if revision(b) != 1 {
			t.Error("it was not held")
		}
		close(hold)
		synctest.Wait()
		if revision(b) != 2 {
			t.Error("it was not let go")
		}
	})
}

func TestACloseDropsWhatIsUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		peer := b.Peer()
		peer.Inject(func(c Call) Fault {
			return map[Op]Fault{
				OpTxn:    {Hold: make(chan struct{})},
				OpRange:  {Delay: time.Hour},
				OpRevoke: {Drop: true},
			}[c.Op]
		})
		errs := make(chan error, 3)
		go func() { _, err := peer.Txn(context.Background(), always(put("a"))); errs <- err }()
		go func() { _, err := peer.Range(context.Background(), span("a", "")); errs <- err }()
		go func() { errs <- peer.Revoke(context.Background(), 1) }()
		synctest.Wait()
		peer.Close()
		for range 3 {
			if err := <-errs; !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("error %v", err)
			}
		}
		if revision(b) != 1 {
			t.Error("it was carried out")
		}
	})
}

func TestTheHookSeesEachRequest(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		ctx := t.Context()
		var calls []Call
		b.Inject(func(c Call) Fault { calls = append(calls, c); return Fault{} })
		id, _, err := b.Grant(ctx, time.Minute)
		must(t, err)
		req, all := always(put("a")), span("a", "b")
		_, err = b.Txn(ctx, req)
		must(t, err)
		_, err = b.Range(ctx, all)
		must(t, err)
		_, err = b.Renew(ctx, id)
		must(t, err)
		_, err = b.TimeToLive(ctx, id)
		must(t, err)
		must(t, b.Revoke(ctx, id))
		want := []Call{
			{Op: OpGrant, TTL: time.Minute}, {Op: OpTxn, Txn: req}, {Op: OpRange, Range: all},
			{Op: OpRenew, Lease: id}, {Op: OpTimeToLive, Lease: id}, {Op: OpRevoke, Lease: id},
		}
		for i := range want {
			if i >= len(calls) || calls[i] != want[i] {
				t.Fatalf("saw %v\nwant %v", calls, want)
			}
		}
		b.Inject(nil)
		must(t, b.Revoke(ctx, id))
		if len(calls) != len(want) {
			t.Error("the hook was not taken away")
		}
	})
}

func TestAnEndedContextSendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *Backend) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.Txn(ctx, always(put("a"))); !errors.Is(err, store.ErrUnavailable) || revision(b) != 1 {
			t.Errorf("error %v, revision %d", err, revision(b))
		}
	})
}
