package bench

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// tinyQueue is enough to see that everything works, and nothing more.
func tinyQueue(t *testing.T, srv *embed.Server) Config {
	cfg := tiny(t, srv)
	cfg.Suite, cfg.Rounds, cfg.Queued = Queue, 2, 150
	return cfg
}

func TestEachCaseOfTheQueueIsMeasured(t *testing.T) {
	srv := embedtest.New(t)
	report, err := Run(t.Context(), tinyQueue(t, srv))
	if err != nil {
		t.Fatal(err)
	}
	figures := map[string]func(*Row) bool{
		submit: func(r *Row) bool {
			return r.Submissions != nil && r.Submissions.PerSecond > 0 && r.Submissions.Submit.P50 > 0 &&
				r.Ratio != nil && r.Reference.PerSecond > 0 && r.Reference.Put != nil && r.Reference.Delete == nil
		},
		admit: func(r *Row) bool {
			return r.Admissions != nil && r.Admissions.Seen.P50 > 0 && r.Admissions.SeenToPut.Median > 0 && r.Reference.Put != nil
		},
		planIdle: func(r *Row) bool { return r.Plan != nil && r.Plan.P50 > 0 },
		planLast: func(r *Row) bool { return r.Plan != nil && r.Plan.P50 > 0 },
		planMany: func(r *Row) bool { return r.Plan != nil && r.Plan.P50 > 0 },
		leading: func(r *Row) bool {
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
	nothingIsLeft(t, srv)
	noLeaseIsLeft(t, srv)
}

func noLeaseIsLeft(t *testing.T, srv *embed.Server) {
	t.Helper()
	conn, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := conn.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Leases) > 0 {
		t.Errorf("%d leases are left", len(resp.Leases))
	}
}

// newQueueRunner is a run that has not begun.
func newQueueRunner(t *testing.T) (*runner, *embed.Server) {
	t.Helper()
	srv := embedtest.New(t)
	cfg := tinyQueue(t, srv)
	if err := cfg.fill(); err != nil {
		t.Fatal(err)
	}
	r, err := newRunner(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r, srv
}

func TestARoundFindsNothingOfTheOneBefore(t *testing.T) {
	r, srv := newQueueRunner(t)
	s, err := r.openSubmissions()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	f, err := r.openRecordFloor()
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for range 2 {
		for _, d := range []door{s, f} {
			for client := range 3 {
				if h, err := d.claim(t.Context(), client); err != nil || h != nil {
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
		for _, d := range []tidier{s, f} {
			if err := d.tidy(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		nothingIsLeft(t, srv)
		noLeaseIsLeft(t, srv)
	}
}

func TestACoordinatorThatCantLeadFailsItsCase(t *testing.T) {
	r, _ := newQueueRunner(t)
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

func TestNobodyWaitsForWhatHasEnded(t *testing.T) {
	r, _ := newQueueRunner(t)
	a, err := r.openAdmissions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	if err := writeCrowd(t.Context(), a.store, 1); err != nil {
		t.Fatal(err)
	}
	a.leader.stop()
	if err := noted(t.Context(), a.store, a.leader, 1); err == nil || !strings.Contains(err.Error(), "coordinator has ended") {
		// Where there is room for all, no run has a reason noted.
		t.Errorf("reasons of a coordinator that is gone: %v", err)
	}
	a.executor.stop()
	if _, err := a.executor.wait(t.Context(), "any"); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("an executor that is gone: %v", err)
	}
}

func TestACrowdIsHeldUpByItsTenants(t *testing.T) {
	l := crowdLimits()
	if err := l.Validate(); err != nil || len(l.Tags) != 50 {
		t.Fatalf("%d limits: %v", len(l.Tags), err)
	}
	s := crowdSnapshot(700)
	for r := range s.Queue.All() {
		if err := r.Validate(); err != nil || len(r.Tags) != 5 {
			t.Fatalf("%v: %v", r.Tags, err)
		}
	}
	p := s.Plan()
	if len(p.Admit) != 0 || len(p.Lost) != 0 || len(p.Blocks) != 700 {
		t.Fatalf("%d admitted, %d lost, %d held up", len(p.Admit), len(p.Lost), len(p.Blocks))
	}
	for _, b := range p.Blocks {
		if b.Block.Kind != run.BlockTagLimit || !strings.Contains(b.Block.Text, "tenant="+b.Run.Tags["tenant"]+" (2/2)") {
			t.Fatalf("%s: %s", b.Run.ID, b.Block.Text)
		}
	}
	if settle(s); len(s.Plan().Blocks) > 0 || s.MaxBlocks != planBlocks {
		t.Error("it does not settle")
	}
}
