//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// yard is an etcd whose runs are followed, with executors on a sidecar.
type yard struct {
	t       testing.TB
	etcd    string
	backend *store.Client
	w       *witness
	runs    *RunHistory // read under the witness's lock
	server  *server
}

func newYard(t testing.TB, etcd string) *yard {
	t.Helper()
	y := &yard{t: t, etcd: etcd, backend: connect(t, etcd), runs: NewRunHistory(keys)}
	y.w = watch(t, y.backend, func(w *witness) {
		w.onEvent = func(_ *History, ev *mvccpb.Event) { y.runs.Event(ev) }
	})
	y.server = startSidecar(t, etcd, "dock", shortDir(t))
	return y
}

// candidate starts one.
func (y *yard) candidate(host string, etcd ...string) *command {
	y.t.Helper()
	at := y.etcd
	if len(etcd) > 0 {
		at = etcd[0]
	}
	return berthCommand(y.t, at, nil, "coordinator", "--host", host)
}

// leader is the host that leads, once there is one other than not.
func (y *yard) leader(not string) (host string) {
	y.t.Helper()
	eventually(y.t, "a coordinator leads", func(ctx context.Context) bool {
		all, err := run.Store{Backend: y.backend, Keys: keys}.Candidates(ctx)
		if err != nil || len(all) == 0 {
			return false
		}
		host = all[0].Host
		return host != not && all[0].Tick != nil
	})
	return host
}

// call asks the sidecar, and returns the status and what was answered. A sidecar
// that is away is status 0.
func (y *yard) call(ctx context.Context, method, path, body string, answer any) int {
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		y.t.Error(err)
		return 0
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	over := http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(y.server.Socket, "unix://"))
	}}
	resp, err := over.RoundTrip(req) // over the socket the sidecar's user may do everything
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && answer != nil && resp.StatusCode < 300 {
		err = json.Unmarshal(text, answer)
	}
	if err != nil && ctx.Err() == nil {
		y.t.Errorf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode
}

// must is call for what has to succeed.
func (y *yard) must(method, path, body string, answer any) {
	y.t.Helper()
	if status := y.call(y.t.Context(), method, path, body, answer); status < 200 || status > 299 {
		y.t.Fatalf("%s %s: %d", method, path, status)
	}
}

// runItem is a run as the sidecar answers it.
type runItem struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Fence  int64  `json:"fence"`
}

// work has executors start what is admitted, hold it, and finish it, until nothing
// is left to do or ctx ends.
func (y *yard) work(ctx context.Context, hold time.Duration) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		busy := map[string]bool{}
		var mu sync.Mutex
		for ctx.Err() == nil {
			var list struct {
				Items []runItem `json:"items"`
			}
			y.call(ctx, http.MethodGet, "/v1/runs?status=not_started", "", &list)
			for _, r := range list.Items {
				mu.Lock()
				mine := !busy[r.ID]
				busy[r.ID] = true
				mu.Unlock()
				if !mine {
					continue
				}
				wg.Go(func() {
					y.execute(ctx, r.ID, hold)
					mu.Lock()
					delete(busy, r.ID)
					mu.Unlock()
				})
			}
			pause(ctx, 10*time.Millisecond)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// execute is one executor.
func (y *yard) execute(ctx context.Context, id string, hold time.Duration) {
	var r runItem
	if y.call(ctx, http.MethodPost, "/v1/runs/"+id+"/start", `{"executor":"e2e"}`, &r) != http.StatusOK {
		return
	}
	pause(ctx, hold)
	body := fmt.Sprintf(`{"fence":%d,"status":"succeeded"}`, r.Fence)
	for ctx.Err() == nil {
		switch y.call(ctx, http.MethodPost, "/v1/runs/"+id+"/finish", body, nil) {
		case 0, http.StatusServiceUnavailable: // etcd or the sidecar is away
			pause(ctx, 50*time.Millisecond)
		default:
			return
		}
	}
}

// ended waits until so many runs have succeeded, and checks the history.
func (y *yard) ended(n int) {
	y.t.Helper()
	y.w.wait(fmt.Sprintf("%d runs have succeeded", n), func() bool { return y.runs.Count("succeeded") >= n })
	y.w.look(func(*History) {
		for _, v := range y.runs.Violations() {
			y.t.Error(v)
		}
		if left := y.runs.Reasons(); len(left) > 0 {
			y.t.Errorf("reasons are left: %v", left)
		}
		for id, n := range y.runs.Admissions {
			if n != 1 {
				y.t.Errorf("%s was admitted %d times", id, n)
			}
		}
	})
}

func TestFortyRunsStayWithinTheirLimits(t *testing.T) {
	t.Parallel()
	y := newYard(t, embedtest.New(t).Endpoint())
	y.must(http.MethodPut, "/v1/limits", `{"max_concurrent_runs":10,"tags":[
		{"key":"env","value":"prod","limit":2},{"key":"tenant","per_unique_value":true,"limit":1}]}`, nil)
	var free []string // those that no tag holds up, in the order in which they are to go
	for i := range 40 {
		tags, priority := "", 0
		switch {
		case i%4 == 0:
			tags = `"env":"prod"`
		case i%4 == 1:
			tags = fmt.Sprintf(`"env":"test","tenant":"t%d"`, i%3)
		default:
			priority = i % 3
		}
		id := fmt.Sprintf("r%02d", i)
		if tags == "" {
			free = append(free, id)
		}
		y.must(http.MethodPost, "/v1/runs", fmt.Sprintf(`{"id":%q,"tags":{%s},"priority":%d}`, id, tags, priority), nil)
	}
	slices.SortStableFunc(free, func(a, b string) int { return rank(b) - rank(a) })

	y.candidate("one")
	y.candidate("two")
	// No executor starts a run yet: ten are in progress, and each of the others knows why
	// it is not.
	y.w.wait("all others have a reason", func() bool {
		return y.runs.Count("not_started") == 10 && len(y.runs.Reasons()) == 30
	})
	y.w.look(func(*History) {
		for id, text := range y.runs.Reasons() {
			if text != "global run limit (10/10)" {
				t.Errorf("%s waits for %q", id, text)
			}
		}
	})
	y.must(http.MethodPut, "/v1/limits", `{"max_concurrent_runs":-1,"tags":[
		{"key":"env","value":"prod","limit":2},{"key":"tenant","per_unique_value":true,"limit":1}]}`, nil)
	y.w.wait("only tags hold anybody up", func() bool {
		for _, text := range y.runs.Reasons() {
			if text != "tag limit: env=prod (2/2)" && !strings.HasPrefix(text, "tag limit: tenant=t") {
				return false
			}
		}
		return y.runs.Count("queued") == 8+7
	})
	y.must(http.MethodPut, "/v1/limits", `{"max_concurrent_runs":10,"tags":[
		{"key":"env","value":"prod","limit":2},{"key":"tenant","per_unique_value":true,"limit":1}]}`, nil)
	done := y.work(t.Context(), 20*time.Millisecond)
	y.ended(40)
	done()
	y.w.look(func(*History) {
		var order []string
		for _, id := range y.runs.Order {
			if slices.Contains(free, id) {
				order = append(order, id)
			}
		}
		if !slices.Equal(order, free) {
			t.Errorf("those without a tag were admitted as %v, want %v", order, free)
		}
	})
}

// rank is the priority that TestFortyRuns gives a run.
func rank(id string) int {
	var i int
	_, _ = fmt.Sscanf(id, "r%02d", &i)
	return i % 3
}

// However the leader ends, in the middle of admitting, the next one goes on.
func TestTheLeaderEndsWhileRunsAreAdmitted(t *testing.T) {
	t.Parallel()
	y := newYard(t, embedtest.New(t).Endpoint())
	y.must(http.MethodPut, "/v1/limits", `{"max_concurrent_runs":4,"tags":[{"key":"tenant","per_unique_value":true,"limit":2}]}`, nil)
	gate := through(t, y.etcd)
	hosts := map[string]*command{
		"one": y.candidate("one"), "two": y.candidate("two"), "three": y.candidate("three"),
	}
	eventually(t, "all three stand", func(ctx context.Context) bool {
		all, err := run.Store{Backend: y.backend, Keys: keys}.Candidates(ctx)
		return err == nil && len(all) == len(hosts)
	})
	hosts["four"] = y.candidate("four", gate.endpoints()[0]) // the last in turn
	done := y.work(t.Context(), 5*time.Millisecond)
	defer done()
	submitted := 0
	submit := func(n int) {
		for range n {
			y.must(http.MethodPost, "/v1/runs", fmt.Sprintf(`{"id":"r%04d","tags":{"tenant":"t%d"}}`, submitted, submitted%3), nil)
			submitted++
		}
	}
	// took waits until the next one leads, and checks that it took no longer than the
	// old one's lease and what a slow machine takes.
	took := func(old string) string {
		t.Helper()
		begun := time.Now()
		next := y.leader(old)
		t.Logf("%s leads after %s: %s", old, time.Since(begun), next)
		return next
	}

	leader := y.leader("")
	submit(50)
	hosts[leader].kill()
	leader = took(leader)
	submit(50)
	frozen := leader
	hosts[frozen].freeze()
	leader = took(leader)
	submit(20)
	hosts[frozen].thaw()
	submit(30)
	hosts[leader].signal(syscall.SIGTERM)
	if leader = took(leader); leader != "four" {
		t.Fatalf("%s leads out of turn", leader)
	}
	gate.stall(true, true)
	submit(30)
	// Of those that are left, the one that was frozen leads.
	took("four")
	gate.heal()
	submit(20)
	y.ended(submitted)
}

// Everything is restarted at once, and the queue goes on where it was.
func TestEverythingIsRestartedAtOnce(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	dir := shortDir(t)
	y := &yard{t: t, etcd: etcd.endpoints()[0], backend: etcd.backend(t), runs: NewRunHistory(keys)}
	y.w = watch(t, y.backend, func(w *witness) {
		w.onEvent = func(_ *History, ev *mvccpb.Event) { y.runs.Event(ev) }
	})
	y.server = startSidecar(t, y.etcd, "dock", dir)
	leads := y.candidate("one")
	y.must(http.MethodPut, "/v1/limits", `{"max_concurrent_runs":2,"tags":[]}`, nil)
	for i := range 12 {
		y.must(http.MethodPost, "/v1/runs", fmt.Sprintf(`{"id":"r%02d"}`, i), nil)
	}
	y.w.wait("two are admitted", func() bool { return y.runs.Count("not_started") == 2 })
	var first runItem
	y.must(http.MethodPost, "/v1/runs/r00/start", `{}`, &first)

	etcd.kill()
	leads.kill()
	y.server.kill()
	etcd.restart()
	y.server = startSidecar(t, y.etcd, "dock", dir)
	y.candidate("one")
	y.must(http.MethodPost, "/v1/runs/r00/heartbeat", fmt.Sprintf(`{"fence":%d}`, first.Fence), nil)
	y.must(http.MethodPost, "/v1/runs/r00/finish", fmt.Sprintf(`{"fence":%d,"status":"succeeded"}`, first.Fence), nil)
	done := y.work(t.Context(), 5*time.Millisecond)
	defer done()
	y.ended(12)
}

// A run whose executor's host dies stays its own until the host's lease ends. Then it
// is queued again if it may be, and has failed with the reason if not.
func TestARunWhoseHostDiesIsLostWithTheLease(t *testing.T) {
	t.Parallel()
	y := newYard(t, embedtest.New(t).Endpoint())
	y.candidate("one")
	y.must(http.MethodPost, "/v1/runs", `{"id":"again","retries":1}`, nil)
	y.must(http.MethodPost, "/v1/runs", `{"id":"once"}`, nil)
	y.w.wait("both are admitted", func() bool { return y.runs.Count("not_started") == 2 })
	var first runItem
	y.must(http.MethodPost, "/v1/runs/again/start", `{}`, &first)
	y.must(http.MethodPost, "/v1/runs/once/start", `{}`, nil)
	active := keys.ActiveRun("dock", "again")
	resp, err := y.backend.Range(t.Context(), &pb.RangeRequest{Key: []byte(active)})
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("%s: %v, %v", active, resp, err)
	}

	y.server.kill()
	other := startSidecar(t, y.etcd, "other", shortDir(t))
	y.server = other
	y.must(http.MethodPost, "/v1/runs", `{"id":"later"}`, nil)
	y.w.wait("the coordinator goes on", func() bool { return y.runs.Count("not_started") == 1 })
	y.w.look(func(*History) {
		if n := y.runs.Count("running"); n != 2 {
			t.Errorf("%d of 2 are running, and their lease lives", n)
		}
	})
	// The lease's end, which is a minute away.
	if err := y.backend.Revoke(t.Context(), store.LeaseID(resp.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	y.w.wait("one has failed, one is tried again", func() bool {
		return y.runs.Count("failed") == 1 && y.runs.Count("not_started") == 2
	})
	var once struct{ Status, Error string }
	y.must(http.MethodGet, "/v1/runs/once", "", &once)
	if once.Status != "failed" || !strings.Contains(once.Error, "'dock'") {
		t.Errorf("%+v", once)
	}
	status := y.call(t.Context(), http.MethodPost, "/v1/runs/again/finish", fmt.Sprintf(`{"fence":%d,"status":"succeeded"}`, first.Fence), nil)
	if status != http.StatusConflict {
		t.Errorf("the lost attempt finishes: %d", status)
	}
	done := y.work(t.Context(), time.Millisecond)
	defer done()
	y.w.wait("the others succeed", func() bool { return y.runs.Count("succeeded") == 2 })
	y.w.look(func(*History) {
		for _, v := range y.runs.Violations() {
			t.Error(v)
		}
	})
}
