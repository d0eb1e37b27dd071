package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// leaseReader answers for leases, and for nothing else.
type leaseReader struct {
	store.Backend
	answer func(context.Context, store.LeaseID) (time.Duration, error)

	mu         sync.Mutex // guards what follows
	asked      map[store.LeaseID]int
	at, atOnce int
}

func (r *leaseReader) TimeToLive(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	r.mu.Lock()
	r.asked[id]++
	r.at++
	r.atOnce = max(r.atOnce, r.at)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.at--
	}()
	return r.answer(ctx, id)
}

// slowly answers after a moment.
func slowly(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return 0, store.ErrUnavailable
	}
	if id == 3 {
		return 0, store.ErrLeaseNotFound
	}
	return time.Minute, nil
}

func TestTheEndsOfManyLeasesAreReadOnceAndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &leaseReader{asked: map[store.LeaseID]int{}, answer: slowly}
		const leases = 10000
		var ids []store.LeaseID
		for i := range 2 * leases {
			ids = append(ids, store.LeaseID(i%leases))
		}
		begun := time.Now()
		ends, err := Ends(t.Context(), r, ids)
		if err != nil || len(ends) != leases || ends[7] != time.Minute {
			t.Errorf("%d are known, %v", len(ends), err)
		}
		if left, known := ends[3]; !known || left != 0 {
			t.Errorf("of one that is gone: %s, %v", left, known)
		}
		if r.asked[7] != 1 || r.atOnce != leaseReads || time.Since(begun) > leaseReadTime {
			t.Errorf("%d times, %d at once, %s", r.asked[7], r.atOnce, time.Since(begun))
		}
	})
}

func TestAnEtcdThatTellsNothingIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &leaseReader{asked: map[store.LeaseID]int{}, answer: func(ctx context.Context, id store.LeaseID) (time.Duration, error) {
			if id%2 == 0 {
				return slowly(ctx, id)
			}
			<-ctx.Done()
			return 0, store.ErrUnavailable
		}}
		begun := time.Now()
		ends, err := Ends(t.Context(), r, []store.LeaseID{1, 2, 4, 5})
		if err != nil || len(ends) != 2 || ends[2] != time.Minute || time.Since(begun) != leaseReadTime {
			t.Errorf("%v, %v after %s", ends, err, time.Since(begun))
		}
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		if _, err := Ends(ctx, r, []store.LeaseID{1}); err != gone {
			t.Errorf("of a caller who is gone: %v", err)
		}
	})
}

func TestARefusalOfEtcdIsReportedWithWhatIsKnown(t *testing.T) {
	r := &leaseReader{asked: map[store.LeaseID]int{}, answer: func(_ context.Context, id store.LeaseID) (time.Duration, error) {
		if id == 9 {
			return 0, store.ErrDenied
		}
		return time.Minute, nil
	}}
	if _, err := Ends(t.Context(), r, []store.LeaseID{1, 9}); problem.CodeOf(err) != problem.EtcdDenied {
		t.Errorf("%v", err)
	}
}
