package sidecar_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/executor"
)

func TestARestartedServerKeepsItsRuns(t *testing.T) {
	t.Parallel()
	d := newDock(t)
	d.pool("db", 1)
	d.claim(api.ClaimRequest{ID: "another", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(0)})
	fences := map[string]int64{
		"plain":   d.started("plain", api.RunStart{Executor: "me"}).Fence,
		"untimed": d.started("untimed", api.RunStart{TTL: api.DurationOf(0)}).Fence,
		"short":   d.started("short", api.RunStart{TTL: api.DurationOf(executor.MinTTL)}).Fence,
		"gone":    d.started("gone", api.RunStart{}).Fence,
	}
	d.server.Stop(sidecar.Leave)
	if err := d.wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.store.Cancel(t.Context(), "gone", "", false); err != nil {
		t.Fatal(err)
	}
	d.cfg.Logger = nil
	d.running = start(t, d.cfg)
	for id, ttl := range map[string]time.Duration{"plain": executor.DefaultTTL, "untimed": 0, "short": executor.MinTTL} {
		eventually(t, id+" is trusted", func() bool {
			s, err := d.client.Heartbeat(t.Context(), id, fences[id])
			if err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			if s.Fence != fences[id] || s.Attempt != 1 || time.Duration(s.TTL) != ttl {
				t.Fatalf("%+v", s)
			}
			return s.ValidFor > 0
		})
	}
	_, err := d.client.Heartbeat(t.Context(), "gone", fences["gone"])
	wantCode(t, err, problem.RunEnded)
	if s, err := d.client.StartRun(t.Context(), "plain", api.RunStart{Executor: "me"}); err != nil || s.Fence != fences["plain"] {
		t.Errorf("started again: %+v, %v", s, err)
	}
	eventually(t, "the one that nobody speaks for is lost", func() bool { return !d.alive("one", "short") })
	_, err = d.client.Heartbeat(t.Context(), "short", fences["short"])
	wantCode(t, err, problem.RunLost)
	for _, id := range []string{"plain", "untimed"} {
		if _, err := d.client.FinishRun(t.Context(), id, api.RunFinish{Fence: fences[id], Status: "succeeded"}); err != nil {
			t.Error(err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(d.cfg.Options.StateDir, "sidecar", "runs", "*")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// TestARunOfAServerWithoutItsStateIsNotTakenOver starts a server again that does
// not know the leases of the one before.
func TestARunOfAServerWithoutItsStateIsNotTakenOver(t *testing.T) {
	t.Parallel()
	d := newDock(t, func(c *sidecar.Config) { c.Options.StateDir = "" })
	s := d.started("job", api.RunStart{Executor: "me"})
	d.running = d.restarted()
	_, err := d.client.Heartbeat(t.Context(), "job", s.Fence)
	wantCode(t, err, problem.RunLost)
	_, err = d.client.StartRun(t.Context(), "job", api.RunStart{Executor: "me"})
	wantCode(t, err, problem.RunLost)
	if !d.alive("one", "job") {
		t.Error("its lease was ended")
	}
	if r, err := d.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: s.Fence, Status: "succeeded"}); err != nil || r.Status != "succeeded" {
		t.Errorf("while its lease lives: %+v, %v", r, err)
	}
}

func TestADrainWaitsForRunsAndStartsNone(t *testing.T) {
	d := newDock(t, func(c *sidecar.Config) { c.DrainTimeout = time.Hour })
	s := d.started("job", api.RunStart{})
	d.submit(api.RunRequest{ID: "late"})
	d.admit("late")
	d.drains("late")
	if s, err := d.client.Heartbeat(t.Context(), "job", s.Fence); err != nil || s.ValidFor == 0 {
		t.Errorf("a heartbeat in the drain: %+v, %v", s, err)
	}
	if _, err := d.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: s.Fence, Status: "succeeded"}); err != nil {
		t.Error(err)
	}
	if err := d.wait(); err != nil {
		t.Error(err)
	}
}

func TestAStopTellsExecutorsAndGivesThemTimeToFinish(t *testing.T) {
	d := newDock(t)
	s := d.started("job", api.RunStart{})
	begin := time.Now()
	d.server.Stop(sidecar.Revoke)
	eventually(t, "its executor is notified", func() bool {
		_, err := d.client.Heartbeat(t.Context(), "job", s.Fence)
		return problem.CodeOf(err) == problem.RunLost
	})
	if !d.alive("one", "job") {
		t.Error("it is lost before its executor can have stopped")
	}
	if r, err := d.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: s.Fence, Status: "succeeded"}); err != nil || r.Status != "succeeded" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := d.wait(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 9*time.Second {
		t.Errorf("it took %s, though the executor has finished", took)
	}
}

func TestAStopLosesRunsThatDoNotFinish(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for the grace of a lease of 1m")
	}
	t.Parallel()
	d := newDock(t)
	d.started("job", api.RunStart{TTL: api.DurationOf(0)})
	d.server.Stop(sidecar.Drain)
	if err := d.wait(); err != nil {
		t.Error(err)
	}
	if d.alive("one", "job") {
		t.Error("its executor is still seen")
	}
}

func TestRunsGoOnWhileEtcdIsAwayForAMoment(t *testing.T) {
	t.Parallel()
	etcd := embedtest.Cluster(t, 1)
	d := &dock{running: start(t, config(t, etcd.Endpoints()[0]))}
	d.store = run.Store{Backend: etcd.Client(t), Keys: store.NewKeys(store.DefaultPrefix)}
	s := d.started("job", api.RunStart{})
	etcd.Stop(0)
	if beat, err := d.client.Heartbeat(t.Context(), "job", s.Fence); err != nil || beat.ValidFor == 0 || beat.Status != "running" {
		t.Errorf("a heartbeat while etcd is away: %+v, %v", beat, err)
	}
	_, err := d.client.Heartbeat(t.Context(), "another", 7)
	wantCode(t, err, problem.EtcdUnavailable)
	_, err = d.client.Run(t.Context(), "job")
	wantCode(t, err, problem.EtcdUnavailable)
	etcd.Restart(0)
	eventually(t, "it answers again", func() bool {
		got, err := d.client.Run(t.Context(), "job")
		return err == nil && got.Status == "running"
	})
	if _, err := d.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: s.Fence, Status: "succeeded"}); err != nil {
		t.Error(err)
	}
}

func TestAStateFileThatCantBeReadLeavesTheRunItsDefault(t *testing.T) {
	d := newDock(t)
	s := d.started("job", api.RunStart{TTL: api.DurationOf(time.Hour)})
	file := filepath.Join(d.cfg.Options.StateDir, "sidecar", "runs", "job.json")
	if err := os.WriteFile(file, []byte(`{"v":1`), 0o600); err != nil {
		t.Fatal(err)
	}
	d.running = d.restarted()
	got, err := d.client.Heartbeat(t.Context(), "job", s.Fence)
	if err != nil || time.Duration(got.TTL) != executor.DefaultTTL {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestTheCoordinatorTakesARunFromASilentExecutor goes the whole way, with a real
// coordinator: admitted, started, lost, admitted again, and finished.
func TestTheCoordinatorTakesARunFromASilentExecutor(t *testing.T) {
	t.Parallel()
	d := newDock(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	lead := coordinator.New(coordinator.Config{Backend: d.store.Backend, Keys: d.store.Keys, Host: "one"})
	go func() { ended <- lead.Run(ctx) }()
	defer func() {
		stop()
		<-ended
	}()
	d.submit(api.RunRequest{ID: "job", Retries: 1})
	begin := func(name string) *api.StartedRun {
		t.Helper()
		var s *api.StartedRun
		eventually(t, name+" can start", func() (ok bool) {
			var err error
			s, err = d.client.StartRun(t.Context(), "job", api.RunStart{Executor: name, TTL: api.DurationOf(executor.MinTTL)})
			return err == nil
		})
		return s
	}
	silent := begin("silent")
	next := begin("next")
	if next.Fence <= silent.Fence || next.Attempt != 2 || next.Lost != 1 {
		t.Errorf("%+v after %+v", next, silent)
	}
	_, err := d.client.Heartbeat(t.Context(), "job", silent.Fence)
	wantCode(t, err, problem.RunLost)
	_, err = d.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: silent.Fence, Status: "succeeded"})
	wantCode(t, err, problem.RunLost)
	if r, err := d.client.FinishRun(t.Context(), "job", api.RunFinish{Fence: next.Fence, Status: "succeeded"}); err != nil || r.Status != "succeeded" {
		t.Errorf("%+v, %v", r, err)
	}
	events, err := d.client.RunEvents(t.Context(), "job")
	var types []string
	for _, e := range events {
		types = append(types, e.Type)
	}
	want := []string{"RunQueued", "RunDequeued", "RunStarted", "RunLost", "RunDequeued", "RunStarted", "RunSucceeded"}
	if err != nil || !slices.Equal(types, want) {
		t.Errorf("events %v, %v", types, err)
	}
}
