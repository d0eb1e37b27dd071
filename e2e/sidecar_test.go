//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar/api"
)

// sidecarLease is the shortest lease that exec takes.
const sidecarLease = 10 * time.Second

// quay is an etcd with a pool, whose history is followed.
type quay struct {
	t       testing.TB
	etcd    string
	backend *store.Client
	w       *witness
	journal journal
	end     *ends
}

func newQuay(t testing.TB, limit int) *quay {
	t.Helper()
	return quayOn(t, embedtest.New(t).Endpoint(), limit, sidecarLease)
}

func quayOn(t testing.TB, etcd string, limit int, ttl time.Duration) *quay {
	t.Helper()
	q := &quay{
		t: t, etcd: etcd, backend: connect(t, etcd),
		journal: journal{filepath.Join(t.TempDir(), "journal")},
		end:     &ends{key: numberKey(keys, "db", 0), at: make(chan time.Time, 100)},
	}
	q.w = watch(t, q.backend, func(w *witness) { w.onEvent = q.end.note })
	berthCommand(t, q.etcd, nil, "pools", "set", "db", fmt.Sprint(limit), "--lease-duration", ttl.String()).succeeds()
	return q
}

// run has exec run a job, through a sidecar or, with an empty address, without.
func (q *quay) run(sidecar, name string, p jobPart) *command {
	q.t.Helper()
	p.Journal, p.Name = q.journal.path, name
	env := p.env()
	if sidecar != "" {
		env = append(env, "BERTH_SIDECAR="+sidecar)
	}
	return berthCommand(q.t, q.etcd, env, "exec", "--pool", "db", "--id", name, "--wait", "5m", "--", os.Args[0])
}

// hold is the claim's hold, once it has one.
func (q *quay) hold(id string) *Hold {
	q.t.Helper()
	var x *Hold
	q.w.until(id+" is held", func(h *History) bool { x = h.Hold(id); return x != nil })
	return x
}

func TestAllWaysInTogetherStayWithinTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 3
	q := newQuay(t, limit)
	one := startSidecar(t, q.etcd, "one", shortDir(t))
	two := startSidecar(t, q.etcd, "two", shortDir(t))
	var all []*command
	for i := range 4 {
		p := jobPart{For: 50 * time.Millisecond}
		all = append(all,
			q.run(one.Socket, fmt.Sprintf("one-%d", i), p),
			q.run(two.HTTP, fmt.Sprintf("two-%d", i), p),
			q.run("", fmt.Sprintf("direct-%d", i), p))
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { q.curl(one.HTTP, fmt.Sprintf("curl-one-%d", i)) })
		wg.Go(func() { q.curl(two.HTTP, fmt.Sprintf("curl-two-%d", i)) })
	}
	wg.Wait()
	for _, c := range all {
		c.succeeds()
	}
	stays := q.journal.stays(t)
	if n := together(stays); n > limit || n < 1 {
		t.Errorf("%d jobs ran at one time", n)
	}
	if want := len(all) + 8; len(stays) != want {
		t.Errorf("%d of %d jobs ran", len(stays), want)
	}
	for _, s := range stays {
		if !s.ended {
			t.Errorf("%s did not come to its end", s.job)
		}
	}
	q.w.until("nothing is left", func(h *History) bool { return h.Held() == 0 && len(h.Waiting()) == 0 })
}

// curl claims over HTTP, works, and releases.
func (q *quay) curl(base, id string) {
	status, body := q.http(http.MethodPost, base+"/v1/claims", fmt.Sprintf(`{"id":%q,"pools":{"db":1},"wait":"5m","client_token":%q}`, id, clientToken))
	if status != http.StatusCreated {
		q.t.Errorf("claim %s: %d: %s", id, status, body)
		return
	}
	for _, what := range []string{"start", "beat", "end"} {
		if err := q.journal.write(id, what); err != nil {
			q.t.Error(err)
		}
		pause(q.t.Context(), 20*time.Millisecond)
	}
	if status, body := q.http(http.MethodDelete, base+"/v1/claims/"+id, ""); status != http.StatusNoContent && status != http.StatusOK {
		q.t.Errorf("release %s: %d: %s", id, status, body)
	}
}

func (q *quay) http(method, url, body string) (status int, answer []byte) {
	return q.do(web, method, url, body)
}

// clientToken is in all requests for claims over TCP.
const clientToken = "e2e"

func (q *quay) do(client *http.Client, method, url, body string) (status int, answer []byte) {
	req, err := http.NewRequestWithContext(q.t.Context(), method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		q.t.Error(err)
		return 0, nil
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set(api.ClientTokenHeader, clientToken)
	resp, err := client.Do(req)
	if err != nil {
		q.t.Error(err)
		return 0, nil
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		q.t.Error(err)
	}
	return resp.StatusCode, answer
}

// web makes a connection for each request: none is left behind.
var web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func TestASidecarKilledAndStartedAgainKeepsItsClaimsAndItsJobsRunOn(t *testing.T) {
	t.Parallel()
	ttl := 3 * sidecarLease // a busy machine has 14 s to start the sidecar again
	q := quayOn(t, embedtest.New(t).Endpoint(), 2, ttl)
	dir := shortDir(t)
	s := startSidecar(t, q.etcd, "one", dir)
	stop := filepath.Join(t.TempDir(), "stop")
	job := q.run(s.Socket, "job", jobPart{Stop: stop})
	q.journal.wait(t, "job", "start")
	status, body := q.http(http.MethodPost, s.HTTP+"/v1/claims", `{"id":"untimed","pools":{"db":1},"ttl":"0s","client_token":"`+clientToken+`"}`)
	if status != http.StatusCreated {
		t.Fatalf("%d: %s", status, body)
	}
	was := []*Hold{q.hold("job"), q.hold("untimed")}
	next := q.run("", "next", jobPart{For: time.Millisecond})
	q.w.until("another waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	s.kill()
	s = startSidecar(t, q.etcd, "one", dir)
	for _, x := range was {
		var got struct {
			Fence    store.Fence `json:"fence"`
			ValidFor string      `json:"valid_for"`
			ID       string      `json:"id"`
		}
		eventuallyValid(q, s.HTTP+"/v1/claims/"+x.Claim, &got.ValidFor, &got)
		if got.Fence != store.FenceAt(x.From) {
			t.Errorf("%s has fence %d, and had %d", x.Claim, got.Fence, x.From)
		}
	}
	// It outlives the lease that it had when the sidecar was killed: so it is
	// renewed, and its process was not disturbed.
	pastLease := lastBeat(t, q.journal, "job") + ttl + 2*time.Second
	for lastBeat(t, q.journal, "job") < pastLease {
		pause(t.Context(), 50*time.Millisecond)
		if x := q.hold("job"); x.To != 0 {
			t.Fatal("the claim has ended")
		}
	}
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	job.succeeds()
	if x := q.journal.stays(t)["job"]; !x.ended || x.signaled || len(x.pids) != 1 {
		t.Errorf("the job was disturbed: %+v", x)
	}
	if status, body := q.http(http.MethodDelete, s.HTTP+"/v1/claims/untimed", ""); status != http.StatusNoContent {
		t.Errorf("%d: %s", status, body)
	}
	next.succeeds()
	q.w.until("nothing is left", func(h *History) bool { return h.Held() == 0 && len(h.Waiting()) == 0 })
	q.w.look(func(h *History) {
		if n := len(h.Holds()); n != 3 {
			t.Errorf("%d claims were made", n)
		}
	})
}

// eventuallyValid reads a claim until the sidecar has renewed its lease.
func eventuallyValid(q *quay, url string, validFor *string, into any) {
	q.t.Helper()
	for begin := time.Now(); time.Since(begin) < deadline; pause(q.t.Context(), 20*time.Millisecond) {
		if status, body := q.http(http.MethodGet, url, ""); status == http.StatusOK {
			if err := json.Unmarshal(body, into); err != nil {
				q.t.Fatalf("%s: %v", body, err)
			}
			if d, err := time.ParseDuration(*validFor); err == nil && d > 0 {
				return
			}
		}
	}
	q.t.Fatalf("%s is not valid after %s", url, deadline)
}

func lastBeat(t testing.TB, j journal, job string) time.Duration {
	t.Helper()
	s := j.stays(t)[job]
	if s == nil {
		t.Fatalf("job %s is not there", job)
	}
	return s.to
}

// testGone does something to a sidecar that lasts longer than the lease: it holds
// nothing any more, the job that exec runs is stopped, and only then the next one
// begins.
func testGone(t *testing.T, do func(*server), after func(*quay, *server)) {
	q := newQuay(t, 1)
	s := startSidecar(t, q.etcd, "one", shortDir(t))
	job := q.run(s.Socket, "job", jobPart{Stop: "never"})
	q.journal.wait(t, "job", "start")
	was := q.hold("job")
	next := q.run("", "next", jobPart{For: time.Millisecond})
	q.w.until("another waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	do(s)
	asked, left := leaseLeft(t, q.backend, was.Lease)
	if code := job.code(); code != 76 {
		t.Errorf("exec ended with %d: %s", code, job.err.String())
	}
	next.succeeds()
	if took := (<-q.end.at).Sub(asked); took < left {
		t.Errorf("the slot was free after %s, and the lease had %s left", took, left)
	}
	stays := q.journal.stays(t)
	if a, b := stays["job"], stays["next"]; a.to >= b.from || a.ended || len(a.pids) != 1 {
		t.Errorf("the job was there from %s to %s, the next one from %s", a.from, a.to, b.from)
	}
	if _, err := q.backend.TimeToLive(t.Context(), store.LeaseID(was.Lease)); !errors.Is(err, store.ErrLeaseNotFound) {
		t.Errorf("the slot was free and its lease is not gone: %v", err)
	}
	after(q, s)
}

func TestASidecarKilledForGoodFreesItsSlotsAfterTheLease(t *testing.T) {
	t.Parallel()
	testGone(t, func(s *server) { s.kill() }, func(*quay, *server) {})
}

func TestASidecarThatStoodStillLongerThanTheLeaseHasLostItsClaims(t *testing.T) {
	t.Parallel()
	testGone(t, (*server).freeze, func(q *quay, s *server) {
		s.thaw()
		// It says so, and goes on.
		for begin := time.Now(); ; pause(t.Context(), 50*time.Millisecond) {
			status, body := q.http(http.MethodGet, s.HTTP+"/v1/claims/job", "")
			var p struct{ Code string }
			if err := json.Unmarshal(body, &p); err != nil {
				t.Fatalf("%d: %s", status, body)
			}
			if p.Code == "claim_lost" || p.Code == "claim_not_found" {
				t.Logf("%d: %s", status, body)
				break
			}
			if time.Since(begin) > deadline {
				t.Fatalf("the claim is not lost after %s: %d: %s", deadline, status, body)
			}
		}
		eventually(t, "the sidecar is ready again", func(context.Context) bool { return isReady(s.HTTP) })
		q.run(s.Socket, "again", jobPart{For: time.Millisecond}).succeeds()
	})
}

// While etcd is away jobs run on, however they came in, and those that wait go on
// waiting.
func TestAnEtcdThatIsAwayDisturbsNoJob(t *testing.T) {
	t.Parallel()
	ttl, away := 15*time.Second, 4*time.Second
	if os.Getenv("BERTH_LONG") != "" { // half a lease, where a job gets 10 s to stop
		ttl, away = 80*time.Second, 40*time.Second
	}
	etcd := startEtcd(t)
	q := quayOn(t, etcd.endpoints()[0], 3, ttl)
	s := startSidecar(t, q.etcd, "one", shortDir(t))
	stop := filepath.Join(t.TempDir(), "stop")
	jobs := map[string]*command{
		"direct": q.run("", "direct", jobPart{Stop: stop}),
		"socket": q.run(s.Socket, "socket", jobPart{Stop: stop}),
		"http":   q.run(s.HTTP, "http", jobPart{Stop: stop}),
	}
	for name := range jobs {
		q.journal.wait(t, name, "start")
	}
	jobs["waits"] = q.run(s.Socket, "waits", jobPart{Stop: stop})
	jobs["waits-too"] = q.run("", "waits-too", jobPart{Stop: stop})
	q.w.until("two wait", func(h *History) bool { return len(h.Waiting()) == 2 })

	begun := time.Now()
	etcd.freeze()
	pause(t.Context(), away/2)
	etcd.thaw()
	etcd.kill() // once frozen, once dead
	pause(t.Context(), away/2)
	etcd.restart()
	if took := time.Since(begun); took > lease.Survives(ttl, lease.StopGrace(ttl)) {
		t.Skipf("the machine was so slow that the outage took %s", took)
	}

	q.w.until("etcd is back", func(h *History) bool { return len(h.Waiting()) == 2 && h.Used("db") == 3 })
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range jobs {
		c.succeeds()
	}
	for name, x := range q.journal.stays(t) {
		if !x.ended || x.signaled || len(x.pids) != 1 {
			t.Errorf("job %s was disturbed: %+v", name, x)
		}
	}
}

// The process that holds slots for a job dies with kill -9: the job dies too, and its
// slots are free: at once where a sidecar watches the process, after the lease
// where there is none.
func TestAHolderThatIsKilledTakesItsJobAlong(t *testing.T) {
	t.Parallel()
	q := newQuay(t, 1)
	s := startSidecar(t, q.etcd, "one", shortDir(t))
	for _, c := range []struct{ name, sidecar string }{{"direct", ""}, {"bound", s.Socket}} {
		job := q.run(c.sidecar, c.name, jobPart{Stop: "never"})
		q.journal.wait(t, c.name, "start")
		was := q.hold(c.name)
		job.kill()
		asked, left := leaseLeft(t, q.backend, was.Lease)
		q.run(s.Socket, "after-"+c.name, jobPart{For: time.Millisecond}).succeeds()
		took := (<-q.end.at).Sub(asked)
		if c.sidecar == "" && took < left {
			t.Errorf("the slot was free after %s, and the lease had %s left", took, left)
		}
		<-q.end.at // that of the one after
		stays := q.journal.stays(t)
		if a, b := stays[c.name], stays["after-"+c.name]; a.to >= b.from || a.ended {
			t.Errorf("the job was there from %s to %s, the next one from %s", a.from, a.to, b.from)
		}
	}
}

// A claim that names a process over the socket ends with that process.
func TestAClaimOfAProcessEndsWithIt(t *testing.T) {
	t.Parallel()
	q := newQuay(t, 1)
	s := startSidecar(t, q.etcd, "one", shortDir(t))
	p := begins(t, "job", "job", jobPart{Journal: q.journal.path, Name: "job", Stop: "never"})
	t.Cleanup(p.kill)
	q.journal.wait(t, "job", "start")
	status, body := q.overSocket(s.Socket, http.MethodPost, "/v1/claims",
		fmt.Sprintf(`{"id":"bound","pools":{"db":1},"pid":%d}`, p.cmd.Process.Pid))
	if status != http.StatusCreated {
		t.Fatalf("%d: %s", status, body)
	}
	q.hold("bound")
	p.kill()
	q.w.until("the slot is free", func(h *History) bool { return h.Held() == 0 })
}

// overSocket asks a sidecar over its unix socket.
func (q *quay) overSocket(socket, method, path, body string) (status int, answer []byte) {
	client := &http.Client{Transport: overUnix(socket)}
	return q.do(client, method, "http://localhost"+path, body)
}

// overUnix makes a connection to a unix socket for each request.
func overUnix(socket string) *http.Transport {
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(socket, "unix://"))
	}}
}

// A job that does not stop on a signal is gone before another has its slot, whatever
// watches it.
func TestARevokedClaimIsNotFreedBeforeItsStubbornJobIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes the longest grace")
	}
	t.Parallel()
	const limit = 6
	q := quayOn(t, embedtest.New(t).Endpoint(), limit, time.Minute) // a grace of 10 s
	s := startSidecar(t, q.etcd, "one", shortDir(t))
	never := filepath.Join(t.TempDir(), "never")
	jobs := map[string]*command{}
	for i := range limit / 3 {
		for way, at := range map[string]string{"direct": "", "socket": s.Socket, "http": s.HTTP} {
			name := fmt.Sprintf("%s-%d", way, i)
			jobs[name] = q.run(at, name, jobPart{Stop: never, Stubborn: true})
		}
	}
	for name := range jobs {
		q.journal.wait(t, name, "start")
	}
	var next []*command
	for i := range limit {
		next = append(next, q.run(s.Socket, fmt.Sprintf("next-%d", i), jobPart{For: time.Second}))
	}
	q.w.until("all others wait", func(h *History) bool { return len(h.Waiting()) == limit })
	for name := range jobs {
		berthCommand(t, q.etcd, nil, "claims", "revoke", name, "--wait", "0").succeeds()
	}
	for name, c := range jobs {
		if code := c.code(); code != 76 {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
	for _, c := range next {
		c.succeeds()
	}
	stays := q.journal.stays(t)
	for name := range jobs {
		if s := stays[name]; !s.signaled || s.ended || s.to-s.from < 9*time.Second {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if n := together(stays); n > limit {
		t.Errorf("%d jobs were there at one time, of %d", n, limit)
	}
}
