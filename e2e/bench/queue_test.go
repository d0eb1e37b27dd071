//go:build linux

package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// tiny is enough to see that everything works, and nothing more.
func tiny(srv *embed.Server) bench.Config {
	return bench.Config{
		Etcd:     instance.Options{Endpoints: []string{srv.Endpoint()}},
		Duration: 40 * time.Millisecond, Rounds: 2, Clients: []int{1, 16},
	}
}

// newRunner returns a runner on an etcd of its own, which is empty at the end.
func newRunner(t *testing.T) (*runner, *embed.Server) {
	t.Helper()
	srv := embedtest.New(t)
	r, err := bench.NewRunner(t.Context(), tiny(srv))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		nothingIsLeft(t, srv)
	})
	return &runner{r}, srv
}

// nothingIsLeft checks that an etcd has no keys and no leases.
func nothingIsLeft(t *testing.T, srv *embed.Server) {
	t.Helper()
	conn, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := context.WithoutCancel(t.Context())
	keys, err := conn.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range keys.Kvs {
		t.Errorf("%s is left", kv.Key)
	}
	leases, err := conn.Leases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(leases.Leases) > 0 {
		t.Errorf("%d leases are left", len(leases.Leases))
	}
}

func TestEachCaseOfTheQueueIsMeasured(t *testing.T) {
	r, _ := newRunner(t)
	rows, err := queueRows(&r.Config, 150)
	if err != nil {
		t.Fatal(err)
	}
	report, err := measure(t.Context(), r, rows)
	if err != nil {
		t.Fatal(err)
	}
	figures := map[string]func(*row) bool{
		submit: func(r *row) bool {
			return r.Submissions != nil && r.Submissions.PerSecond > 0 && r.Submissions.Submit.P50 > 0 &&
				r.Ratio != nil && r.Reference.PerSecond > 0 && r.Reference.Put != nil && r.Reference.Delete == nil
		},
		admit: func(r *row) bool {
			return r.Admissions != nil && r.Admissions.Seen.P50 > 0 && r.Admissions.SeenToPut.Median > 0 && r.Reference.Put != nil
		},
		planIdle: func(r *row) bool { return r.Plan != nil && r.Plan.P50 > 0 },
		planLast: func(r *row) bool { return r.Plan != nil && r.Plan.P50 > 0 },
		planMany: func(r *row) bool { return r.Plan != nil && r.Plan.P50 > 0 },
		leading: func(r *row) bool {
			return r.Leader != nil && r.Leader.Queued == 150 && r.Leader.TagLimits == 50 && r.Leader.Before > 0 && r.Leader.Seconds > 0
		},
	}
	for _, row := range report.Rows {
		switch {
		case row.Error != "":
			t.Errorf("%s: %s", row.Name, row.Error)
		case !figures[row.Kind](row):
			t.Errorf("%s has no figures: %+v", row.Name, row)
		case row.Claim != nil || row.PerSecond != 0:
			t.Errorf("%s has figures of claims: %+v", row.Name, row)
		}
	}
	if len(report.Rows) != 7 { // 1 and 16 clients
		t.Errorf("%d cases", len(report.Rows))
	}
	if len(report.Targets) != 1 || report.Targets[0].Case != "admit/1c" {
		t.Errorf("verdicts on what was not measured at its size: %+v", report.Targets)
	}
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{`"hosts"`, `"pools"`, `"claims_per_second"`, `"delete":null`} {
		if strings.Contains(string(text), field) {
			t.Errorf("the report has %s, which says nothing about the queue", field)
		}
	}
}

func TestARoundFindsNothingOfTheOneBefore(t *testing.T) {
	r, srv := newRunner(t)
	s, err := r.openSubmissions()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	f, err := r.openRecordFloor()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 2 {
		for _, d := range []bench.Driver{s, f} {
			for client := range 3 {
				if h, err := d.Claim(t.Context(), client); err != nil || h != nil {
					t.Fatalf("held %v, %v", h, err)
				}
			}
		}
		all, err := s.store.All(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(all.With(run.Queued)); n != 3 {
			t.Errorf("%d runs are queued, 3 were submitted", n)
		}
		for _, d := range []bench.Tidier{s, f} {
			if err := d.Tidy(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		nothingIsLeft(t, srv)
	}
}

func TestACoordinatorThatCantLeadFailsItsCase(t *testing.T) {
	r, _ := newRunner(t)
	l, err := r.lead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.lead(ctx); err == nil || !strings.Contains(err.Error(), "does not lead") {
		t.Errorf("a second one: %v", err)
	}
}

func TestNothingWaitsForWhatHasEnded(t *testing.T) {
	r, _ := newRunner(t)
	a, err := r.openAdmissions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := writeBacklog(t.Context(), a.store, 1); err != nil {
		t.Fatal(err)
	}
	a.leader.stop()
	if err := recorded(t.Context(), a.store, a.leader, 1); err == nil || !strings.Contains(err.Error(), "coordinator has ended") {
		// Without limits, no run has a reason.
		t.Errorf("reasons of a coordinator that has ended: %v", err)
	}
	a.executor.stop()
	if _, err := a.executor.wait(t.Context(), "any"); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("an executor that has ended: %v", err)
	}
}

func TestABacklogIsBlockedByItsTenants(t *testing.T) {
	l := backlogLimits()
	if err := l.Validate(); err != nil || len(l.Tags) != 50 {
		t.Fatalf("%d limits: %v", len(l.Tags), err)
	}
	s := backlogSnapshot(700)
	for r := range s.Queue.All() {
		if err := r.Validate(); err != nil || len(r.Tags) != 5 {
			t.Fatalf("%v: %v", r.Tags, err)
		}
	}
	p := s.Plan()
	if len(p.Admit) != 0 || len(p.Lost) != 0 || len(p.Blocks) != 700 {
		t.Fatalf("%d admitted, %d lost, %d blocked", len(p.Admit), len(p.Lost), len(p.Blocks))
	}
	for _, b := range p.Blocks {
		if b.Block.Kind != run.BlockTagLimit || !strings.Contains(b.Block.Text, "tenant="+b.Run.Tags["tenant"]+" (2/2)") {
			t.Fatalf("%s: %s", b.Run.ID, b.Block.Text)
		}
	}
	if recordAll(s); len(s.Plan().Blocks) > 0 || s.MaxBlocks != planBlocks {
		t.Error("the reasons are not recorded")
	}
}
