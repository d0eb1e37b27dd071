package lease

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestSuccessfulRenewalsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var reported []string
		h := newHarness(t, func(c *Config) {
			c.OnRenewed = func(id store.LeaseID, again bool) {
				mu.Lock()
				defer mu.Unlock()
				reported = append(reported, fmt.Sprint(id, " ", again))
			}
		})
		left := h.etcd.lease(time.Hour)
		h.Adopt(h.remaining(left, time.Hour), 1)
		h.run()
		id := h.acquire(time.Minute, 1)
		wants := func(want ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			reported = slices.DeleteFunc(reported, func(s string) bool { // a spare one, made meanwhile
				return !strings.HasPrefix(s, fmt.Sprint(left, " ")) && !strings.HasPrefix(s, fmt.Sprint(id, " "))
			})
			if !slices.Equal(reported, want) {
				t.Errorf("%v were reported, want %v", reported, want)
			}
			reported = nil
		}
		wants(fmt.Sprint(left, " true")) // of the process before
		plain, again := fmt.Sprint(id, " false"), fmt.Sprint(id, " true")
		h.wait(time.Minute - time.Second)
		wants(plain, plain)
		h.etcd.fault.Store(failing(store.ErrUnavailable, "renew"))
		h.wait(30 * time.Second)
		wants()
		h.etcd.fault.Store(nil)
		h.wait(25 * time.Second)
		wants(again, plain)
	})
}
