package sidecar_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/client"
)

// child is a process that lives until a test ends it.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{}
}

// spawn starts a process that runs a line of shell.
func spawn(t testing.TB, line string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command("sh", "-c", line), ended: make(chan struct{})}
	c.start()
	return c
}

func (c *child) start() {
	c.t.Helper()
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait() // the state says how it ended
	}()
	c.t.Cleanup(c.kill)
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) kill() {
	_ = c.cmd.Process.Kill() // gone is as good
	<-c.ended
}

// endedBy waits for the end and returns the signal that brought it.
func (c *child) endedBy() syscall.Signal {
	c.t.Helper()
	select {
	case <-c.ended:
		return c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
	case <-time.After(patience):
		c.t.Fatal("the process does not end")
		return 0
	}
}

func (c *child) lives() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

const sleeper = "exec sleep 1000"

func TestTheEndOfAProcessFreesItsClaim(t *testing.T) {
	r := single(t)
	r.pool("db", 2)
	p := spawn(t, sleeper)
	c := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}, PID: p.pid()})
	if c.PID != p.pid() || c.TTL == nil || *c.TTL != 0 {
		t.Errorf("bound: %+v", c)
	}
	later := r.claim(api.ClaimRequest{ID: "later", Pools: api.Slots{"db": 1}})
	if c, err := r.client.Renew(t.Context(), later.ID, api.RenewRequest{PID: p.pid()}); err != nil || c.PID != p.pid() || *c.TTL != 0 {
		t.Errorf("bound later: %+v, %v", c, err)
	}
	p.kill()
	r.free("db")
	_, err := r.client.Get(t.Context(), c.ID)
	wantCode(t, err, problem.ClaimNotFound)
	_, err = r.client.Claim(t.Context(), api.ClaimRequest{Pools: api.Slots{"db": 1}, PID: p.pid()})
	wantCode(t, err, problem.Invalid)
	held := r.claim(api.ClaimRequest{ID: "held", Pools: api.Slots{"db": 1}})
	for _, pid := range []int{1, os.Getpid()} { // the system's first, and the sidecar itself
		_, err = r.client.Claim(t.Context(), api.ClaimRequest{Pools: api.Slots{"db": 1}, PID: pid})
		wantField(t, err, "pid")
		_, err = r.client.Renew(t.Context(), held.ID, api.RenewRequest{PID: pid})
		wantField(t, err, "pid")
	}
}

func TestTheEndOfAProcessEndsTheWaitOfItsClaim(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	p := spawn(t, sleeper)
	done := r.waiting(t.Context(), api.ClaimRequest{ID: "late", Pools: api.Slots{"db": 1}, PID: p.pid()})
	p.kill()
	if err := <-done; problem.CodeOf(err) != problem.Invalid || !strings.Contains(err.Error(), "has ended") {
		t.Error(err)
	}
}

func TestAClaimThatIsNotRenewedEndsWithItsTTL(t *testing.T) {
	t.Parallel()
	r := single(t)
	r.pool("db", 2)
	c := r.claim(api.ClaimRequest{ID: "short", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(claims.MinTTL)})
	if left, _ := c.Remaining(); left > claims.MinTTL {
		t.Errorf("valid for %s", left)
	}
	r.claim(api.ClaimRequest{ID: "kept", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(0)})
	renewed := r.claim(api.ClaimRequest{ID: "renewed", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(claims.MinTTL), Wait: api.DurationOf(time.Minute)})
	if renewed.Fence <= c.Fence {
		t.Error("it was granted while the first was held")
	}
	if _, err := r.client.Renew(t.Context(), "renewed", api.RenewRequest{TTL: api.DurationOf(time.Hour)}); err != nil {
		t.Error(err)
	}
	_, err := r.client.Renew(t.Context(), "short", api.RenewRequest{})
	wantCode(t, err, problem.ClaimLost)
	// One that was claimed later with the ttl that it had ends, and it does not.
	r.pool("db", 3)
	r.claim(api.ClaimRequest{ID: "later", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(claims.MinTTL)})
	eventually(t, "the later one has ended", func() bool {
		_, err := r.client.Get(t.Context(), "later")
		return err != nil
	})
	for _, id := range []string{"kept", "renewed"} {
		if _, err := r.client.Get(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestARevokedClaimsProcessIsStopped(t *testing.T) {
	t.Parallel()
	r := single(t)
	r.pool("db", 2, leases(6*time.Second)) // a grace of 1 s
	for line, want := range map[string]syscall.Signal{
		"": syscall.SIGTERM, "trap '' TERM; ": syscall.SIGKILL,
	} {
		ready := filepath.Join(t.TempDir(), "ready")
		p := spawn(t, line+": >'"+ready+"'; while :; do sleep 0.05; done")
		c := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}, PID: p.pid()})
		eventually(t, "the trap is set", func() bool {
			_, err := os.Stat(ready)
			return err == nil
		})
		if _, err := r.client.Revoke(t.Context(), c.ID, false); err != nil {
			t.Fatal(err)
		}
		if got := p.endedBy(); got != want {
			t.Errorf("%q ended by %s, want %s", line, got, want)
		}
		eventually(t, "the claim is over", func() bool {
			_, err := r.client.Get(t.Context(), c.ID)
			return problem.CodeOf(err) == problem.ClaimRevoked
		})
	}
	r.free("db")
}

// TestAProcessThatItsHolderTellsIsOnlyKilled ends processes that would have ended
// by SIGTERM, had they got one.
func TestAProcessThatItsHolderTellsIsOnlyKilled(t *testing.T) {
	t.Parallel()
	r := single(t)
	r.pool("db", 2, leases(6*time.Second)) // a grace of 1 s
	asked, renewed := spawn(t, sleeper), spawn(t, sleeper)
	r.claim(api.ClaimRequest{ID: "asked", Pools: api.Slots{"db": 1}, PID: asked.pid(), OnlyKill: true})
	r.claim(api.ClaimRequest{ID: "renewed", Pools: api.Slots{"db": 1}})
	if _, err := r.client.Renew(t.Context(), "renewed", api.RenewRequest{PID: renewed.pid(), OnlyKill: true}); err != nil {
		t.Fatal(err)
	}
	r = r.restarted() // which it has to survive
	for id, p := range map[string]*child{"asked": asked, "renewed": renewed} {
		if _, err := r.client.Revoke(t.Context(), id, false); err != nil {
			t.Fatal(err)
		}
		if got := p.endedBy(); got != syscall.SIGKILL {
			t.Errorf("%s ended by %s", id, got)
		}
	}
	r.free("db")
	if got := string(r.raw(request{method: "GET", path: "/metrics"}).body); strings.Contains(got, `signal="terminated"`) {
		t.Error("one was sent SIGTERM")
	}

	// A later binding of the process replaces the one before.
	p := spawn(t, sleeper)
	r.claim(api.ClaimRequest{ID: "back", Pools: api.Slots{"db": 1}, PID: p.pid(), OnlyKill: true})
	if _, err := r.client.Renew(t.Context(), "back", api.RenewRequest{PID: p.pid()}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Revoke(t.Context(), "back", false); err != nil {
		t.Fatal(err)
	}
	if got := p.endedBy(); got != syscall.SIGTERM {
		t.Errorf("it ended by %s", got)
	}
}

func TestAStopEndsTheProcessesOfClaimsThatAreLeft(t *testing.T) {
	r := single(t)
	r.pool("db", 2, leases(5*time.Second))
	p := spawn(t, sleeper)
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}, PID: p.pid()})
	r.server.Stop(sidecar.Drain)
	if got := p.endedBy(); got != syscall.SIGTERM {
		t.Error(got)
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

func TestADrainWaitsForHoldersAndTakesNoNewClaims(t *testing.T) {
	r := single(t, func(c *sidecar.Config) { c.DrainTimeout = time.Hour })
	r.pool("db", 1)
	r.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}})
	done := r.waiting(t.Context(), api.ClaimRequest{ID: "late", Pools: api.Slots{"db": 1}})
	watched := make(chan error, 1)
	go func() {
		watched <- r.client.Events(t.Context(), "", "", func(api.Event) error { return nil })
	}()
	r.server.Stop(sidecar.Drain)
	wantCode(t, <-done, problem.Stopping)
	if err := <-watched; err != nil && problem.CodeOf(err) != problem.Stopping {
		t.Errorf("the stream of events: %v", err)
	}
	wantCode(t, r.client.Ready(t.Context()), problem.Stopping)
	_, err := r.client.Claim(t.Context(), api.ClaimRequest{Pools: api.Slots{"db": 1}})
	wantCode(t, err, problem.Stopping)
	if _, err := r.client.Renew(t.Context(), "mine", api.RenewRequest{}); err != nil {
		t.Errorf("a renewal in the drain: %v", err)
	}
	if err := r.client.Release(t.Context(), "mine"); err != nil {
		t.Errorf("a release in the drain: %v", err)
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

func TestTheContextOfRunEndsItWithADrain(t *testing.T) {
	cfg := config(t, embedtest.New(t).Endpoint())
	cfg.Listen = ""
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	s := sidecar.New(cfg)
	go func() { done <- s.Run(ctx) }()
	c, err := client.Dial("unix://"+cfg.Socket, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "it is ready", func() bool { return c.Ready(t.Context()) == nil })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("it ran twice")
	}
}

func TestARestartedServerKeepsItsClaims(t *testing.T) {
	t.Parallel()
	r := single(t)
	r.pool("db", 9)
	lives, ends := spawn(t, sleeper), spawn(t, sleeper)
	req := func(id string, ttl *api.Duration, pid int) api.ClaimRequest {
		return api.ClaimRequest{ID: id, Pools: api.Slots{"db": 1}, TTL: ttl, PID: pid}
	}
	fences := map[string]int64{}
	for _, q := range []api.ClaimRequest{
		req("process", nil, lives.pid()),
		req("ended", nil, ends.pid()),
		req("untimed", api.DurationOf(0), 0),
		req("timed", api.DurationOf(2*time.Second), 0),
		req("by-lease", nil, 0),
		req("rebound", nil, 0),
		req("rebound-ended", nil, 0),
		req("retimed", api.DurationOf(time.Hour), 0),
	} {
		fences[q.ID] = r.claim(q).Fence
	}
	for id, renewal := range map[string]api.RenewRequest{
		"rebound":       {PID: lives.pid()},
		"rebound-ended": {PID: ends.pid()},
		"retimed":       {TTL: api.DurationOf(time.Second)},
	} {
		if _, err := r.client.Renew(t.Context(), id, renewal); err != nil {
			t.Fatal(err)
		}
	}
	r.server.Stop(sidecar.Leave)
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	ends.kill()
	r.cfg.Logger = nil
	r = start(t, r.cfg)

	for _, id := range []string{"ended", "rebound-ended"} {
		eventually(t, id+" is released", func() bool {
			_, err := r.client.Get(t.Context(), id)
			return problem.CodeOf(err) == problem.ClaimNotFound
		})
	}
	for id, pid := range map[string]int{"process": lives.pid(), "rebound": lives.pid(), "untimed": 0, "by-lease": 0} {
		c, err := r.client.Get(t.Context(), id)
		if err != nil || c.Fence != fences[id] || c.PID != pid {
			t.Errorf("%s: %+v, %v", id, c, err)
		}
	}
	eventually(t, "the lease is renewed", func() bool {
		c, err := r.client.Renew(t.Context(), "by-lease", api.RenewRequest{})
		return err == nil && *c.ValidFor > 0 && c.TTL != nil && time.Duration(*c.TTL) == 5*time.Minute
	})
	for _, id := range []string{"timed", "retimed"} { // which are not renewed
		eventually(t, id+" ends", func() bool {
			_, err := r.client.Get(t.Context(), id)
			return problem.CodeOf(err) == problem.ClaimLost
		})
	}
	lives.kill()
	eventually(t, "what its process held is free", func() bool { return r.claimed("db") == 2 })
	for _, id := range []string{"untimed", "by-lease"} {
		if err := r.client.Release(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	r.free("db")
	if left := bindFilesOf(r); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

func TestACorruptStateFileFallsBackToWhatWasRecorded(t *testing.T) {
	r := single(t)
	r.pool("db", 3)
	p := spawn(t, sleeper)
	c := r.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(time.Hour)})
	if _, err := r.client.Renew(t.Context(), "mine", api.RenewRequest{PID: p.pid()}); err != nil {
		t.Fatal(err)
	}
	r.claim(api.ClaimRequest{ID: "kept", Pools: api.Slots{"db": 1}})
	file := filepath.Join(r.cfg.Options.StateDir, "sidecar", "binds", "mine.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	r = r.restarted()
	got, err := r.client.Get(t.Context(), "mine")
	if err != nil || got.Fence != c.Fence || got.PID != 0 || time.Duration(*got.TTL) != time.Hour {
		t.Errorf("%+v, %v", got, err)
	}
	if log := r.log.String(); !strings.Contains(log, "a state file can't be read") || !strings.Contains(log, file) {
		t.Errorf("the log:\n%s", log)
	}
}

func TestALossIsReportedAndTheProcessIsStoppedBeforeTheLeaseEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a lease of 5 s")
	}
	t.Parallel()
	etcd := embedtest.Cluster(t, 1)
	r := start(t, config(t, etcd.Endpoints()[0]))
	r.pool("db", 2, leases(5*time.Second))
	p := spawn(t, sleeper)
	c := r.claim(api.ClaimRequest{ID: "bound", Pools: api.Slots{"db": 1}, PID: p.pid()})
	r.claim(api.ClaimRequest{ID: "free", Pools: api.Slots{"db": 1}})
	notified := make(chan error, 2)
	for _, id := range []string{"bound", "free"} {
		go func() { notified <- r.client.Watch(t.Context(), id) }()
	}
	stopped := time.Now()
	etcd.Stop(0)
	if got := p.endedBy(); got != syscall.SIGTERM {
		t.Errorf("the process ended by %s", got)
	}
	if took := time.Since(stopped); took > 5*time.Second {
		t.Errorf("it was stopped after %s, of a lease of 5 s", took)
	}
	for range 2 {
		if err := <-notified; err != nil {
			wantCode(t, err, problem.ClaimLost)
		}
	}
	if left, _ := c.Remaining(); left > 0 {
		t.Errorf("the client believes for %s more", left)
	}
	_, err := r.client.Renew(t.Context(), "free", api.RenewRequest{})
	wantCode(t, err, problem.ClaimLost)
	_, err = r.client.Get(t.Context(), "free")
	wantCode(t, err, problem.ClaimLost)
	wantCode(t, r.client.Ready(t.Context()), problem.EtcdUnavailable)
	_, err = r.client.Claim(t.Context(), api.ClaimRequest{Pools: api.Slots{"db": 1}, Wait: noWait})
	wantCode(t, err, problem.EtcdUnavailable)
	etcd.Restart(0)
	eventually(t, "it is ready again", func() bool { return r.client.Ready(t.Context()) == nil })
	if err := r.client.Release(t.Context(), "free"); err != nil {
		t.Error(err)
	}
	r.free("db")
}

// rebound changes what a claim's file says of its process, while no server runs.
func rebound(t *testing.T, r *running, field string, by int) {
	t.Helper()
	file := filepath.Join(r.cfg.Options.StateDir, "sidecar", "binds", "mine.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), field+`\":`)
	was := rest[:strings.IndexAny(rest, ",}")]
	n, err := strconv.Atoi(was)
	if err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	other := strings.Replace(string(data), field+`\":`+was, field+`\":`+strconv.Itoa(n+by), 1)
	if err := os.WriteFile(file, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAProcessIsFoundAgainByMoreThanItsNumber(t *testing.T) {
	for name, tc := range map[string]struct {
		field string
		by    int
		gone  bool
	}{
		"its number has come to another process": {field: "start", by: -100, gone: true},
		"its start was reported a tick later":    {field: "start", by: -1},
		"its number is of another pid namespace": {field: "pid_namespace", by: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := single(t)
			r.pool("db", 1)
			p := spawn(t, sleeper)
			r.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}})
			if _, err := r.client.Renew(t.Context(), "mine", api.RenewRequest{PID: p.pid()}); err != nil {
				t.Fatal(err)
			}
			r.server.Stop(sidecar.Leave)
			if err := r.wait(); err != nil {
				t.Fatal(err)
			}
			rebound(t, r, tc.field, tc.by)
			r.cfg.Logger = nil
			r = start(t, r.cfg)
			if tc.gone {
				r.free("db")
			} else {
				c, err := r.client.Renew(t.Context(), "mine", api.RenewRequest{})
				if err != nil || (c.PID == 0) != (tc.field != "start") {
					t.Errorf("%+v, %v", c, err)
				}
			}
			if !p.lives() {
				t.Error("the process was stopped")
			}
		})
	}
}
