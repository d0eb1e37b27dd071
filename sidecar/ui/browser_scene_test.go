package ui_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// scene is a browserSite on a working day: pools of all kinds, holders on several
// hosts and a line; runs that wait, run and have ended; two workers, of which one has
// work, and two candidates.
type scene struct {
	*browserSite
	stage      *stage // of the worker on etl-1
	etl1, etl2 *instance.Client
	pace       time.Duration // between two ends of step instances
}

func newScene(t *testing.T, change ...func(*sidecar.Config)) *scene {
	t.Helper()
	return newSlowScene(t, 0, change...)
}

// newSlowScene is a scene in which steps take some time, for pictures.
func newSlowScene(t *testing.T, pace time.Duration, change ...func(*sidecar.Config)) *scene {
	t.Helper()
	s := &scene{pace: pace, browserSite: newBrowserSite(t, append(change, func(c *sidecar.Config) {
		c.Options.Host, c.Options.Version = "gateway", "v0.9.0"
	})...)}
	s.pools()
	s.holders()
	s.runs()
	return s
}

func (s *scene) pools() {
	s.t.Helper()
	s.pool("warehouse", 12, lasting(5*time.Minute))
	s.pool("gpu", 4, lasting(10*time.Minute))
	s.pool("licence", 10, lasting(time.Minute))
	s.pool("api-quota", 50, lasting(30*time.Second))
	s.pool("sftp", 2)
	s.pool("archive", 0)
	s.pool("scratch", -1)
}

// holders take slots, and some wait for theirs.
func (s *scene) holders() {
	s.t.Helper()
	s.etl1 = s.instance(instance.Options{Host: "etl-1", Instance: "sidecar", Role: "sidecar", Version: "v0.9.0"})
	s.etl2 = s.instance(instance.Options{Host: "etl-2", Instance: "sidecar", Role: "sidecar", Version: "v0.9.0"})
	for i := range 5 {
		s.holds(s.etl1, fmt.Sprintf("load-%d", i+1), instance.Slots{"warehouse": 1},
			instance.WithRun("nightly-2026-11-21", "load"), instance.WithPID(4100+i), instance.WithLabels(map[string]string{"team": "data"}))
	}
	s.holds(s.etl2, "vacuum", instance.Slots{"warehouse": 3}, instance.WithPID(812))
	s.holds(s.etl2, "train-a", instance.Slots{"gpu": 2}, instance.WithRun("train-resnet", "train"), instance.WithLabels(map[string]string{"team": "ml"}))
	s.holds(s.etl1, "train-b", instance.Slots{"gpu": 2}, instance.WithRun("train-bert", "train"), instance.WithLabels(map[string]string{"team": "ml"}))
	s.holds(s.etl1, "crawl", instance.Slots{"api-quota": 20})
	s.holds(s.etl2, "solve", instance.Slots{"licence": 2})
	s.holds(s.etl2, "unpack", instance.Slots{"scratch": 6})
	s.wait(api.ClaimRequest{ID: "train-c", Pools: api.Slots{"gpu": 2}, Priority: 5, RunID: "train-vit", StepKey: "train"})
	s.wait(api.ClaimRequest{ID: "render", Pools: api.Slots{"gpu": 1}})
	if _, err := s.client.PausePool(s.t.Context(), "sftp"); err != nil {
		s.t.Fatal(err)
	}
	s.wait(api.ClaimRequest{ID: "upload", Pools: api.Slots{"sftp": 1}})
}

// runs are one that is done, two in progress, and more than the limits let go.
func (s *scene) runs() {
	s.t.Helper()
	s.limit(3, api.TagLimit{Key: "env", Value: "prod", Limit: 2}, api.TagLimit{Key: "tenant", PerUniqueValue: true, Limit: 2})
	s.stands("gateway")
	s.eventually("a coordinator leads", func() bool {
		all, err := s.store.Candidates(s.t.Context())
		return err == nil && len(all) == 1
	})
	s.stands("etl-1")
	s.stage = s.works("etl-1", 8)
	s.instance(instance.Options{Host: "etl-2", Instance: "worker", Role: "worker", Capacity: 4, Queues: []string{"default", "gpu"}, Version: "v0.9.0"})

	s.submit(api.RunRequest{ID: "hello", Name: "Smoke test", Tags: map[string]string{"env": "test"}, Steps: api.RunSteps{{Name: "check", Command: []string{"true"}}}})
	s.done("hello/check/0", succeeded("checked 3 endpoints\nall well\n"))
	s.becomes("hello", run.Succeeded)

	s.submit(api.RunRequest{
		ID: "nightly-2026-11-22", Name: "Nightly load", Owner: "data platform", Priority: 5,
		Tags: map[string]string{"env": "prod", "tenant": "acme"}, Labels: map[string]string{"ticket": "DATA-118"},
		Steps: api.RunSteps{
			{Name: "extract", Command: []string{"./extract.sh", "{{.item}}"}, Items: items(6), Pools: api.Slots{"api-quota": 1}, Retries: 2},
			{Name: "clean", Command: []string{"./clean.sh"}, Needs: []string{"extract"}},
			{Name: "load", Command: []string{"./load.sh", "{{.item}}"}, Items: items(12), Needs: []string{"clean"}, Pools: api.Slots{"warehouse": 1}, Concurrency: 4},
			{Name: "report", Command: []string{"./report.sh"}, Needs: []string{"load"}},
		},
	})
	for i := range 6 {
		s.done(fmt.Sprintf("nightly-2026-11-22/extract/%d", i), succeeded("fetched %d rows\n", 1200+37*i))
	}
	s.done("nightly-2026-11-22/clean/0", succeeded("dropped 12 duplicates\n"))
	for i := range 3 {
		s.done(fmt.Sprintf("nightly-2026-11-22/load/%d", i), succeeded("loaded part %d\n", i))
	}
	for i := 3; i < 7; i++ {
		id := fmt.Sprintf("nightly-2026-11-22/load/%d", i)
		s.eventually(id+" runs", func() bool { return s.stage.runs(id) != nil })
	}

	s.submit(api.RunRequest{ID: "import-19", Name: "Import of customers", Tags: map[string]string{"env": "test", "tenant": "beta"}, Steps: api.RunSteps{{Name: "import", Command: []string{"./import.sh"}}}})
	s.done("import-19/import/0", step.Outcome{Status: step.Failed, ExitCode: 3, Error: "exit code 3", Output: []byte("row 812: no such country: 'Atlantis'\n")})
	s.becomes("import-19", run.Failed)

	s.submit(api.RunRequest{ID: "billing-7", Name: "Billing", Tags: map[string]string{"env": "prod", "tenant": "beta"}, Steps: api.RunSteps{{Name: "bill", Command: []string{"./bill.sh"}}}})
	s.eventually("billing runs", func() bool { return s.stage.runs("billing-7/bill/0") != nil })
	s.submit(api.RunRequest{ID: "train-vit", Name: "Training of ViT", Owner: "ml", Steps: api.RunSteps{{Name: "train", Command: []string{"./train.sh"}, Pools: api.Slots{"gpu": 2}}}})
	s.becomes("train-vit", run.Running)

	for i, r := range []api.RunRequest{
		{ID: "audit-3", Name: "Audit of access", Priority: 10, Tags: map[string]string{"env": "prod", "tenant": "acme"}},
		{ID: "nightly-2026-11-23", Name: "Nightly load", Priority: 5, Tags: map[string]string{"env": "prod", "tenant": "acme"}},
		{ID: "export-41", Name: "Export for partners", Tags: map[string]string{"env": "test", "tenant": "acme"}, Owner: "partners"},
		{ID: "export-42", Name: "Export for partners", Tags: map[string]string{"env": "test", "tenant": "beta"}, Owner: "partners"},
		{ID: "mail-8", Name: "Newsletter", Tags: map[string]string{"tenant": "beta"}},
		{ID: "tidy-1", Name: "Clean-up of old files", Priority: -10},
	} {
		r.Steps = api.RunSteps{{Name: "prepare", Command: []string{"true"}}, {Name: "work", Command: []string{"true"}, Items: items(int64(4 + 3*i)), Needs: []string{"prepare"}}}
		s.submit(r)
	}
	s.eventually("all who wait know why", func() bool {
		all, _, err := s.client.Runs(s.t.Context(), client.RunFilter{Statuses: []string{"queued"}})
		if err != nil || len(all) != 6 {
			return false
		}
		for _, r := range all {
			if r.BlockReason == "" {
				return false
			}
		}
		return true
	})
}

// stands has a coordinator stand on a host.
func (s *scene) stands(host string) {
	s.t.Helper()
	c := coordinator.New(coordinator.Config{
		Backend: s.store.Backend, Keys: s.store.Keys, Host: host, Version: "v0.9.0", CompactInterval: -1,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	s.t.Cleanup(func() { cancel(); <-done })
}

// done ends an instance on the worker.
func (s *scene) done(id string, o step.Outcome) {
	s.t.Helper()
	if s.pace > 0 {
		<-time.After(s.pace)
	}
	s.ends(s.stage, id, o)
}

// becomes waits until a run has a status.
func (s *scene) becomes(id string, want run.Status) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("run %s is %s", id, want), func() bool {
		r, err := s.store.Get(s.t.Context(), id)
		return err == nil && r.Status == want
	})
}

// paths are all pages of a scene.
var paths = []string{
	"/pools", "/pools?open=gpu&open=warehouse&open=sftp", "/pools?q=nothing", "/queue", "/queue?q=nothing", "/runs", "/runs?status=failed",
	"/runs/nightly-2026-11-22", "/runs/nightly-2026-11-22?step=load", "/runs/nightly-2026-11-22?tab=timeline&step=load",
	"/runs/nightly-2026-11-22?tab=concurrency", "/runs/nightly-2026-11-22?tab=logs", "/runs/nightly-2026-11-22?tab=logs&step=extract&index=2",
	"/runs/nightly-2026-11-22?tab=events", "/runs/audit-3", "/runs/import-19", "/runs/hello", "/hosts", "/hosts?q=nothing", "/actions",
	"/actions/cancel?run=billing-7", "/actions/retry?run=import-19", "/actions/retry?run=import-19&step=import&index=0", "/actions/cancel?run=billing-7&step=bill&index=0", "/actions/delete?pool=gpu", "/actions/pause?pool=gpu", "/actions/resume?pool=sftp", "/actions/limit?pool=gpu",
	"/actions/limit?pool=gpu&limit=1", "/actions/revoke?claim=train-a", "/actions/revoke?claim=train-a&force=yes",
}
