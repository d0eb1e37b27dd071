package run

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// usageKeys returns the keys of usage, below their prefix.
func (r *rig) usageKeys() (all []string) {
	r.b.Do(func(e *storetest.Etcd) {
		for kv := range e.All(r.Keys.UsageAll()) {
			all = append(all, strings.TrimPrefix(string(kv.Key), r.Keys.UsageAll()))
		}
	})
	return all
}

func TestARunCountsUntilItsEndAndItsDataUntilItIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		is := func(when string, want ...string) {
			t.Helper()
			if got := r.usageKeys(); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		const open, data = "user:ann/unfinished/a", "user:ann/stored/3/a"
		r.submit("a", Spec{SubmittedBy: "user:ann"})
		is("queued", data, open)
		if _, err := r.Cancel(t.Context(), "a", "", false); err != nil {
			t.Fatal(err)
		}
		is("canceled", data)
		ended, err := r.Get(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Retry(t.Context(), "a", "", ended.Revision, nil); err != nil {
			t.Fatal(err)
		}
		is("retried", data, open)
		again, err := r.Get(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range UsageOps(r.Keys, "a", &again.Record, nil) {
			if _, err := store.Commit(t.Context(), r.b, nil, op); err != nil {
				t.Fatal(err)
			}
		}
		is("deleted")
	})
}

func TestSizesCountAsTheNextClass(t *testing.T) {
	for size, want := range map[int64]int64{0: 1, 1: 1, 1024: 1, 1025: 2, 2049: 3, 3073: 4, 5 << 10: 6, 7 << 10: 8, 120 << 20: 128 << 10, 1 << 40: 192 << 10} {
		if got := classOf(size); got != want {
			t.Errorf("%d bytes count as %d KiB, want %d", size, got, want)
		}
	}
	for class := range sizeClasses - 1 {
		if classKiB(class) >= classKiB(class+1) {
			t.Errorf("class %d is not smaller than the next: %d, %d", class, classKiB(class), classKiB(class+1))
		}
	}
}

// Many processes submit at the same time, and none reads what the others are about to write.
func TestSubmissionsAtTheSameTimeDoNotExceedTheQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 5 * time.Millisecond} })
		var mu sync.Mutex
		refused := map[string]int{}
		var wg sync.WaitGroup
		for process := range 4 {
			s := r.Store
			s.Journal = NewJournal(r.b, r.Keys, fmt.Sprint("host/", process), 0)
			s.Quota = &Quota{Unfinished: 10, Refused: func(setting string) {
				mu.Lock()
				defer mu.Unlock()
				refused[setting]++
			}}
			for i := range 6 {
				wg.Go(func() {
					_, _, err := s.Submit(t.Context(), fmt.Sprintf("r%d-%d", process, i), Spec{SubmittedBy: "user:ann"})
					if err != nil && problem.CodeOf(err) != problem.TooMany {
						t.Errorf("%v", err)
					}
				})
			}
		}
		wg.Wait()
		all, err := r.All(t.Context())
		if err != nil || len(all.Runs) > 10 || refused[SettingUnfinished] == 0 {
			t.Errorf("%d runs of 10, %v refused, %v", len(all.Runs), refused, err)
		}
	})
}

// A run of 96 MiB is below half of the bound, and so are ten of them, each by itself.
func TestLargeRunsAtTheSameTimeDoNotExceedTheQuotaOfData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 5 * time.Millisecond} })
		s := r.Store
		s.Quota = &Quota{Stored: DefaultMaxStored}
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				spec := Spec{SubmittedBy: "user:ann", Steps: 1, Digest: "d"}
				if _, _, err := s.Begin(t.Context(), fmt.Sprint("r", i), spec, 96<<20, nil); err != nil && problem.CodeOf(err) != problem.TooMany {
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		if u, err := s.Usage(t.Context(), "user:ann"); err != nil || u.Stored != 192<<20 {
			t.Errorf("%s of %s are stored, %v", bytesText(u.Stored), bytesText(DefaultMaxStored), err)
		}
	})
}
