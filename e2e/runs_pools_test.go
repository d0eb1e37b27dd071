//go:build linux

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// nextTo is another host of the same yard.
func (y *yard) nextTo(host string) *yard {
	y.t.Helper()
	other := *y
	other.server = startSidecar(y.t, y.etcd, host, shortDir(y.t))
	return &other
}

// Runs with and without pools share a queue. The leader is killed while it holds slots
// for some of them, and executors on two hosts come for them.
func TestRunsHoldTheirSlotsWhateverHappensToTheLeader(t *testing.T) {
	t.Parallel()
	y := newYard(t, embedtest.New(t).Endpoint())
	quay := y.nextTo("quay")
	y.must(http.MethodPut, "/v1/limits", `{"max_concurrent_runs":8}`, nil)
	y.must(http.MethodPut, "/v1/pools/db", `{"limit":4}`, nil)
	y.must(http.MethodPut, "/v1/pools/gpu", `{"limit":1,"reserve_after":"1s"}`, nil)
	hosts := map[string]*command{"one": y.candidate("one"), "two": y.candidate("two")}
	leader := y.leader("")
	keeps := func() {
		t.Helper()
		y.w.until(leader+" keeps slots", func(h *History) bool {
			return slices.ContainsFunc(h.holds, func(x *Hold) bool { return x.Host == leader && x.Instance == "coordinator" })
		})
	}
	for i := range 40 {
		pools := ""
		switch i % 4 {
		case 0:
			pools = fmt.Sprintf(`"db":%d`, 1+i%3)
		case 2:
			pools = `"db":1,"gpu":1`
		}
		y.must(http.MethodPost, "/v1/runs", fmt.Sprintf(`{"id":"r%02d","pools":{%s}}`, i, pools), nil)
		if i == 0 {
			keeps()
		}
	}
	// No executor starts a run yet, so the first leader is killed while it keeps slots.
	y.w.wait("as many are admitted as may be", func() bool { return y.runs.Count("not_started") == 8 })
	hosts[leader].kill()
	done, quayDone := y.work(t.Context(), 20*time.Millisecond), quay.work(t.Context(), 20*time.Millisecond)
	leader = y.leader(leader)
	keeps()
	hosts["three"] = y.candidate("three")
	hosts[leader].kill() // again, in the midst of it
	y.ended(40)
	done()
	quayDone()
	y.w.until("nothing is held any more", func(h *History) bool { return len(h.holding) == 0 })
	y.w.look(func(h *History) {
		hosts := map[string]int{}
		for _, x := range h.holds {
			hosts[x.Host+"/"+x.Instance]++
		}
		t.Logf("slots were held by %v", hosts)
		if kept, taken := hosts["one/coordinator"]+hosts["two/coordinator"]+hosts["three/coordinator"], hosts["dock/sidecar"]+hosts["quay/sidecar"]; kept != 20 || taken != 20 {
			t.Errorf("slots were kept %d times and taken over %d times, want 20 each", kept, taken)
		}
	})
}
