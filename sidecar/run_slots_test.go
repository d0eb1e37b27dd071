package sidecar_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
	"github.com/berthhq/berth/sidecar/executor"
)

// led is a dock with a coordinator, and a pool "db" of so many slots.
func led(t *testing.T, limit int, change ...func(*sidecar.Config)) *dock {
	t.Helper()
	d := newDock(t, change...)
	d.pool("db", limit)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	lead := coordinator.New(coordinator.Config{Backend: d.store.Backend, Keys: d.store.Keys, Host: "lead"})
	go func() { ended <- lead.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return d
}

// gated submits a run that needs slots of "db".
func (d *dock) gated(id string, n int) {
	d.submit(api.RunRequest{ID: id, Pools: map[string]int{"db": n}})
}

// begin starts a run as soon as it is admitted.
func (d *dock) begin(id string, req api.RunStart) (s *api.StartedRun) {
	d.t.Helper()
	eventually(d.t, id+" is admitted", func() bool {
		var err error
		if s, err = d.client.StartRun(d.t.Context(), id, req); err != nil && problem.CodeOf(err) != problem.RunNotAdmitted {
			d.t.Fatal(err)
		}
		return err == nil
	})
	return s
}

func (d *dock) end(s *api.StartedRun) {
	d.t.Helper()
	if r, err := d.client.FinishRun(d.t.Context(), s.ID, api.RunFinish{Fence: s.Fence, Status: "succeeded"}); err != nil || r.Status != "succeeded" {
		d.t.Errorf("%+v, %v", r, err)
	}
}

// slots are those who hold some, by run.
func (d *dock) slots() map[string]pool.HolderStatus {
	d.t.Helper()
	all, err := list.Read(d.t.Context(), d.store.Backend, d.store.Keys)
	if err != nil {
		d.t.Fatal(err)
	}
	held, _ := all.Claims()
	by := map[string]pool.HolderStatus{}
	for _, h := range held {
		by[h.Run] = h
	}
	return by
}

// has checks that a run holds so many slots, on a host's instance, under its fence.
func (d *dock) has(s *api.StartedRun, n int, at string) {
	d.t.Helper()
	h := d.slots()[s.ID]
	if h.Slots != n || h.Host+"/"+h.Instance != at || int64(h.Fence) != s.Fence || h.Claim != s.Claim {
		d.t.Errorf("the slots are %+v, want %d of %s with fence %d and claim %s", h, n, at, s.Fence, s.Claim)
	}
}

// freed waits until a run holds nothing.
func (d *dock) freed(id string) {
	d.t.Helper()
	eventually(d.t, "the slots of "+id+" are free", func() bool { _, held := d.slots()[id]; return !held })
}

func TestARunHoldsItsSlotsFromItsAdmissionToItsEnd(t *testing.T) {
	d := led(t, 3)
	d.readDocument()
	var r api.Run
	if got := d.post("/v1/runs", `{"id":"wide","pools":{"db":2}}`); got.status != http.StatusCreated {
		t.Fatalf("%s", got.body)
	}
	eventually(t, "it is admitted", func() bool {
		r = api.Run{}
		decode(t, d.get("/v1/runs/wide"), &r)
		return r.Status == "not_started"
	})
	if h := d.slots()["wide"]; h.Slots != 2 || h.Host+"/"+h.Instance != "lead/coordinator" || h.Claim != r.Claim || r.Pools["db"] != 2 {
		t.Errorf("%+v are kept for %+v", h, r)
	}
	d.gated("next", 2)
	eventually(t, "the next one has its reason", func() bool {
		var why api.RunWhy
		decode(t, d.get("/v1/runs/next/why"), &why)
		return why.Reason == "pool 'db' has too few free slots (2/3 slots, 2 wanted)" && why.Run.BlockKind == "pool" &&
			len(why.InTheWay) == 1 && why.InTheWay[0].ID == "wide"
	})
	s := d.begin("wide", api.RunStart{TTL: api.DurationOf(30 * time.Second)})
	d.has(s, 2, "one/sidecar")
	if s.ValidFor < api.Duration(20*time.Second) || s.Claim != r.Claim {
		t.Errorf("%+v", s)
	}
	beat, err := d.client.Heartbeat(t.Context(), "wide", s.Fence)
	if err != nil || beat.ValidFor < api.Duration(20*time.Second) || beat.Fence != s.Fence {
		t.Errorf("%+v, %v", beat, err)
	}
	d.has(s, 2, "one/sidecar")
	d.end(s)
	d.freed("wide")
	if r, err := d.client.Run(t.Context(), "wide"); err != nil || r.Claim != "" || r.Pools["db"] != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = d.client.Heartbeat(t.Context(), "wide", s.Fence)
	wantCode(t, err, problem.RunEnded)
	next := d.begin("next", api.RunStart{})
	d.has(next, 2, "one/sidecar")
	d.end(next)
	d.free("db")
}

func TestAStartWithSlotsThatIsAskedAgainFindsTheSameAttempt(t *testing.T) {
	d := led(t, 1)
	d.gated("job", 1)
	s := d.begin("job", api.RunStart{Executor: "e", TTL: api.DurationOf(0)})
	again, err := d.client.StartRun(t.Context(), "job", api.RunStart{Executor: "e"})
	if err != nil || again.Fence != s.Fence || again.ValidFor == 0 || again.Attempt != 1 {
		t.Errorf("%+v, %v", again, err)
	}
	_, err = d.client.StartRun(t.Context(), "job", api.RunStart{Executor: "another"})
	wantCode(t, err, problem.RunTaken)
	d.has(s, 1, "one/sidecar")

	// The one that has started it is gone, and left its claim to the next.
	d.running = d.restarted()
	again, err = d.client.StartRun(t.Context(), "job", api.RunStart{Executor: "e"})
	if err != nil || again.Fence != s.Fence {
		t.Errorf("%+v, %v", again, err)
	}
	d.has(s, 1, "one/sidecar")
	d.end(s)
	d.free("db")
}

func TestOnlyOneOfTwoHostsTakesTheSlotsOfARun(t *testing.T) {
	t.Parallel()
	d := led(t, 1)
	two := d.another("two")
	d.gated("job", 1)
	eventually(t, "it is admitted", func() bool {
		r, err := d.client.Run(t.Context(), "job")
		return err == nil && r.Status == "not_started"
	})
	type result struct {
		s   *api.StartedRun
		err error
	}
	results := make(chan result, 2)
	for _, c := range []*client.Client{d.client, two.client} {
		go func() {
			s, err := c.StartRun(t.Context(), "job", api.RunStart{})
			results <- result{s, err}
		}()
	}
	first, second := <-results, <-results
	if first.err != nil {
		first, second = second, first
	}
	if first.err != nil {
		t.Fatal(first.err, second.err)
	}
	wantCode(t, second.err, problem.RunTaken)
	d.has(first.s, 1, first.s.Executor.Host+"/sidecar")
	d.end(first.s) // by any sidecar
	d.free("db")
}

func TestARestartedServerKeepsTheSlotsOfItsRuns(t *testing.T) {
	t.Parallel()
	d := led(t, 4)
	for _, id := range []string{"stays", "finished", "canceled"} {
		d.gated(id, 1)
	}
	stays, finished := d.begin("stays", api.RunStart{TTL: api.DurationOf(time.Hour)}), d.begin("finished", api.RunStart{})
	d.begin("canceled", api.RunStart{})
	d.claim(api.ClaimRequest{ID: "another", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(0)})
	two := d.another("two")
	d.server.Stop(sidecar.Leave)
	if err := d.wait(); err != nil {
		t.Fatal(err)
	}
	// What ends meanwhile is given back by the next server.
	if _, err := two.client.FinishRun(t.Context(), "finished", api.RunFinish{Fence: finished.Fence, Status: "failed"}); err != nil {
		t.Fatal(err)
	}
	if _, err := two.client.CancelRun(t.Context(), "canceled", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	d.has(stays, 1, "one/sidecar")
	d.cfg.Logger = nil
	d.running = start(t, d.cfg)
	beat, err := d.client.Heartbeat(t.Context(), "stays", stays.Fence)
	if err != nil || beat.ValidFor == 0 || time.Duration(beat.TTL) != time.Hour || beat.Attempt != 1 {
		t.Errorf("%+v, %v", beat, err)
	}
	d.freed("finished")
	d.freed("canceled")
	d.has(stays, 1, "one/sidecar")
	d.end(stays)
	d.freed("stays")
	eventually(t, "the other claim holds its slot alone, as the sidecar sees it", func() bool { return d.claimed("db") == 1 })
}

func TestACancelFreesTheSlotsOfARun(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for the grace of a run that was canceled elsewhere")
	}
	t.Parallel()
	d := led(t, 2)
	two := d.another("two")
	d.gated("here", 1)
	d.gated("there", 1)
	here, there := d.begin("here", api.RunStart{TTL: api.DurationOf(0)}), d.begin("there", api.RunStart{TTL: api.DurationOf(0)})
	if _, err := d.client.CancelRun(t.Context(), "here", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	d.freed("here")
	// Through another sidecar, and the executor does not even ask.
	if _, err := two.client.CancelRun(t.Context(), "there", api.RunCancel{Reason: "not today"}); err != nil {
		t.Fatal(err)
	}
	d.freed("there")
	for _, s := range []*api.StartedRun{here, there} {
		_, err := d.client.Heartbeat(t.Context(), s.ID, s.Fence)
		wantCode(t, err, problem.RunEnded)
	}
	d.free("db")
}

// A run whose slots are revoked has to stop, and is lost when its grace is over.
func TestARevokedClaimOfARunIsLostAfterItsGrace(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for the grace of a revocation")
	}
	t.Parallel()
	d := led(t, 1)
	d.gated("job", 1)
	s := d.begin("job", api.RunStart{})
	d.gated("next", 1)
	if _, err := d.client.Revoke(t.Context(), s.Claim, false); err != nil {
		t.Fatal(err)
	}
	var err error
	eventually(t, "its executor is notified", func() bool {
		_, err = d.client.Heartbeat(t.Context(), "job", s.Fence)
		return err != nil
	})
	wantCode(t, err, problem.RunLost)
	if !strings.Contains(err.Error(), "revoked") {
		t.Errorf("%v does not say why", err)
	}
	d.has(s, 1, "one/sidecar") // it may be at work still
	if r, err := d.client.Run(t.Context(), "job"); err != nil || r.Status != "running" {
		t.Errorf("before its grace is over: %+v, %v", r, err)
	}
	eventually(t, "it is lost", func() bool {
		r, err := d.client.Run(t.Context(), "job")
		return err == nil && r.Status == "failed"
	})
	d.freed("job")
	_, err = d.client.Heartbeat(t.Context(), "job", s.Fence)
	wantCode(t, err, problem.RunLost)
	d.end(d.begin("next", api.RunStart{}))
	d.free("db")
}

// An executor that stops in time says how its run has ended, and gives its slots back.
func TestARunWhoseClaimIsRevokedCanStillFinish(t *testing.T) {
	d := led(t, 1)
	d.gated("job", 1)
	s := d.begin("job", api.RunStart{})
	if _, err := d.client.Revoke(t.Context(), s.Claim, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its executor is notified", func() bool {
		_, err := d.client.Heartbeat(t.Context(), "job", s.Fence)
		return problem.CodeOf(err) == problem.RunLost
	})
	d.end(s)
	d.freed("job")
}

func TestByForceTheSlotsOfARunAreGoneAtOnce(t *testing.T) {
	d := led(t, 1)
	d.submit(api.RunRequest{ID: "job", Pools: map[string]int{"db": 1}, Retries: 1})
	s := d.begin("job", api.RunStart{TTL: api.DurationOf(0)})
	if _, err := d.client.Revoke(t.Context(), s.Claim, true); err != nil {
		t.Fatal(err)
	}
	var next *api.StartedRun
	eventually(t, "it can be started again", func() bool {
		var err error
		next, err = d.client.StartRun(t.Context(), "job", api.RunStart{})
		if code := problem.CodeOf(err); err != nil && code != problem.RunTaken && code != problem.RunNotAdmitted {
			t.Fatal(err)
		}
		return err == nil
	})
	if next.Attempt != 2 || next.Lost != 1 || next.Fence <= s.Fence || next.Claim == s.Claim {
		t.Errorf("%+v after %+v", next, s)
	}
	_, err := d.client.Heartbeat(t.Context(), "job", s.Fence)
	wantCode(t, err, problem.RunLost)
	_, err = d.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: s.Fence, Status: "succeeded"})
	wantCode(t, err, problem.RunLost)
	d.has(next, 1, "one/sidecar")
	d.end(next)
	d.free("db")
}

// The claim of a run is no client's: only the end of the run gives its slots back.
func TestTheClaimOfARunIsNoClients(t *testing.T) {
	d := led(t, 2)
	d.readDocument()
	two := d.another("two")
	d.gated("job", 1)
	d.gated("waits", 1)
	s := d.begin("job", api.RunStart{})
	var kept *api.Run
	eventually(t, "the other is admitted", func() bool {
		var err error
		kept, err = d.client.Run(t.Context(), "waits")
		return err == nil && kept.Claim != ""
	})
	for run, claim := range map[string]string{"job": s.Claim, "waits": kept.Claim} {
		for _, at := range []*running{d.running, two} {
			eventually(t, "the claim of "+run+" is seen", func() bool {
				return at.raw(request{method: "GET", path: "/v1/claims/" + claim}).status == http.StatusOK
			})
			for name, got := range map[string]answer{
				"renewed":          at.raw(request{method: "POST", path: "/v1/claims/" + claim + "/renew"}),
				"given a ttl":      at.raw(request{method: "POST", path: "/v1/claims/" + claim + "/renew", body: `{"ttl":"1s"}`}),
				"released":         at.raw(request{method: "DELETE", path: "/v1/claims/" + claim}),
				"released, fenced": at.raw(request{method: "DELETE", path: "/v1/claims/" + claim + "?fence=" + fenceOf(t, at, claim)}),
			} {
				if p := got.problem(t); p.Code != string(problem.NotHolder) || !strings.Contains(p.Detail, `run "`+run+`"`) {
					t.Errorf("%s: %s", name, got.body)
				}
			}
			if run == "waits" || at != d.running {
				continue // a ULID is an id of its instance alone
			}
			got := at.raw(request{method: "POST", path: "/v1/claims", body: `{"id":"` + claim + `","pools":{"db":1},"run_id":"` + run + `"}`})
			if p := got.problem(t); p.Code != string(problem.IDInUse) {
				t.Errorf("claimed: %s", got.body)
			}
		}
	}
	d.has(s, 1, "one/sidecar")
	if beat, err := d.client.Heartbeat(t.Context(), "job", s.Fence); err != nil || beat.ValidFor == 0 {
		t.Errorf("%+v, %v", beat, err)
	}
	d.end(s)
	d.end(d.begin("waits", api.RunStart{}))
	d.free("db")
}

func fenceOf(t *testing.T, at *running, claim string) string {
	t.Helper()
	c, err := at.client.Get(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatInt(c.Fence, 10)
}

func TestADrainWaitsForRunsWithSlots(t *testing.T) {
	d := led(t, 2, func(c *sidecar.Config) { c.DrainTimeout = time.Hour })
	d.gated("job", 1)
	s := d.begin("job", api.RunStart{})
	d.gated("late", 1)
	eventually(t, "the other is admitted", func() bool {
		r, err := d.client.Run(t.Context(), "late")
		return err == nil && r.Status == "not_started"
	})
	d.drains("late")
	if beat, err := d.client.Heartbeat(t.Context(), "job", s.Fence); err != nil || beat.ValidFor == 0 {
		t.Errorf("a heartbeat in the drain: %+v, %v", beat, err)
	}
	d.has(s, 1, "one/sidecar")
	d.end(s)
	if err := d.wait(); err != nil {
		t.Error(err)
	}
	if h := d.slots(); len(h) != 1 || h["late"].Instance != "coordinator" {
		t.Errorf("%+v", h)
	}
}

// A stop notifies the executor, and leaves it its slots until it has stopped.
func TestAStopLeavesARunItsSlotsWhileItFinishes(t *testing.T) {
	d := led(t, 1)
	d.gated("job", 1)
	s := d.begin("job", api.RunStart{})
	d.server.Stop(sidecar.Revoke)
	eventually(t, "its executor is notified", func() bool {
		_, err := d.client.Heartbeat(t.Context(), "job", s.Fence)
		return problem.CodeOf(err) == problem.RunLost
	})
	d.has(s, 1, "one/sidecar")
	d.end(s)
	if err := d.wait(); err != nil {
		t.Error(err)
	}
	d.freed("job")
}

// An executor that falls silent loses its run, and with it the slots.
func TestASilentExecutorLosesItsSlots(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for the shortest ttl of a run")
	}
	t.Parallel()
	d := led(t, 1)
	d.gated("job", 1)
	s := d.begin("job", api.RunStart{TTL: api.DurationOf(executor.MinTTL)})
	d.freed("job")
	_, err := d.client.Heartbeat(t.Context(), "job", s.Fence)
	wantCode(t, err, problem.RunLost)
	eventually(t, "it has failed", func() bool {
		r, err := d.client.Run(t.Context(), "job")
		return err == nil && r.Status == "failed" && r.Claim == ""
	})
}

func TestARunThatAsksForWhatThereCantBeIsRefused(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	d.pool("db", 2)
	for body, want := range map[string]struct {
		code  problem.Code
		field string
	}{
		`{"pools":{"nowhere":1}}`:         {problem.PoolNotFound, "pools.nowhere"},
		`{"pools":{"db":3}}`:              {problem.ExceedsLimit, "pools.db"},
		`{"pools":{"db":0}}`:              {problem.Invalid, "pools.db"},
		`{"pools":{"db":-1}}`:             {problem.Invalid, "pools.db"},
		`{"pools":{"no pool":1}}`:         {problem.Invalid, "pool"},
		`{"pools":{"db":"2"}}`:            {problem.Invalid, "pools.db"},
		`{"pools":{"db":1.5}}`:            {problem.Invalid, "pools.db"},
		`{"pools":["db"]}`:                {problem.Invalid, "pools"},
		`{"pools":{"db":10000000000000}}`: {problem.Invalid, "pools.db"},
	} {
		t.Run(body, func(t *testing.T) {
			var fields []string
			if want.field != "" {
				fields = []string{want.field}
			}
			d.wantRefused(d.post("/v1/runs", body), want.code, fields...)
		})
	}
	if runs, _, err := d.client.Runs(t.Context(), client.RunFilter{}); err != nil || len(runs) > 0 {
		t.Errorf("%+v, %v", runs, err)
	}
}
