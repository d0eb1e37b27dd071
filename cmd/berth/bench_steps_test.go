package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/bench"
)

func TestAReportOfStepsIsReadable(t *testing.T) {
	load := func(perSecond float64, claims int, o *bench.KeyOperations) *bench.StepLoad {
		return &bench.StepLoad{
			PerSecond: perSecond, ByWorker: []float64{perSecond / 8, perSecond / 4},
			Take: &bench.Latency{P50: 2, P99: 8}, Complete: &bench.Latency{P50: 3, P99: 9},
			SlotClaims: claims, SlotReleases: claims,
			Cost: bench.StepCost{Transactions: 0.25, Reads: 0.5, Entries: 0.26, Operations: o},
		}
	}
	one := load(500, 100, nil)
	one.ByWorker, one.InVain = one.ByWorker[:1], 2
	report := &bench.Report{
		Etcd: "3.7.3", Endpoints: []string{"127.0.0.1:2379"}, Go: "go1.26", CPUs: 2, Rounds: 5,
		Rows: []*bench.Row{
			{
				Case:      bench.Case{Name: "baseline/4w/10r", Workers: 4, Steps: 10000},
				Reference: &bench.Reference{What: "the floor of claims", PerSecond: 8000, Put: &bench.Latency{P50: 4.5, P99: 17}},
				Ratio:     &bench.Spread{Median: 1.25, Low: 1.2, High: 1.3},
				StepLoads: &bench.StepLoads{
					Own:  load(10000, 0, &bench.KeyOperations{Puts: 6, Deletes: 2, Ranges: 1}),
					Heap: 20, Peak: 101.25, Before: 40, Database: 80, InUse: 30,
				},
			},
			{
				Case:      bench.Case{Name: "enabled/1w/1r", Workers: 1, Steps: 1},
				Reference: &bench.Reference{What: "the same without limits", PerSecond: 600},
				Ratio:     &bench.Spread{Median: 0.83, Low: 0.8, High: 0.9},
				StepLoads: &bench.StepLoads{Own: one, Unlimited: load(600, 0, nil)},
			},
			{Case: bench.Case{Name: "mixed/4w/10r"}, Error: "etcd went away"},
		},
		Targets: []bench.Target{{Name: "4 workers", Wanted: "≥ 1 × the floor", Got: 1.25, Reached: true, Numbers: "10000/s"}},
	}
	var out bytes.Buffer
	benchPage(&page{out: &out, now: time.Now()}, report, benchStepsTable)
	want := strings.Join([]string{
		"etcd 3.7.3 at 127.0.0.1:2379, go1.26, 2 CPUs, 5 rounds",
		"",
		"CASE                   STEPS/S  RATIO  ROUNDS     WORKERS    TAKE MS  COMPLETE MS  CLAIMS  TXNS   READS  ENTRIES  PUTS  DELETES",
		"the floor of claims    8000     -      -          -          -        -            -       -      -      -        -     -",
		"baseline/4w/10r        10000    1.25   1.20-1.30  1250-2500  2/8      3/9          0       0.250  0.500  0.260    6.00  2.00",
		"enabled/1w/1r without  600      -      -          75-150     2/8      3/9          0       0.250  0.500  0.260    -     -",
		"enabled/1w/1r          500      0.83   0.80-0.90  62         2/8      3/9          100     0.250  0.500  0.260    -     -",
		"RATIO is to the line above, the median of the rounds; times in ms are p50/p99. Transactions,",
		"reads, entries of etcd's log, puts and deletes are those of a step from its submission to its",
		"last release; CLAIMS are claims of slots in all rounds, each of which was given back.",
		"baseline/4w/10r: 10000 steps a load, 20.0 MB of Go's heap left, 101.2 MB resident at the peak beside 40.0 MB before; etcd's database 80.0 MB, 30.0 MB of it in use",
		"enabled/1w/1r: 1 step a load, 0.0 MB of Go's heap left, 0.0 MB resident at the peak beside 0.0 MB before; etcd's database 0.0 MB, 0.0 MB of it in use",
		"enabled/1w/1r: 2 attempts in vain, of steps that can't fail: they were tried again",
		"mixed/4w/10r failed: etcd went away",
		"",
		"TARGET     WANTED           GOT   VERDICT  NUMBERS",
		"4 workers  ≥ 1 × the floor  1.25  reached  10000/s",
		"",
	}, "\n")
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestHowManyStepsAreMeasured(t *testing.T) {
	tests := map[string]struct{ steps, high, rounds int }{
		"":                     {10_000, 20_000, 5},
		"--full":               {10_000, 100_000, 5},
		"--quick":              {2_000, 4_000, 3},
		"--quick --full":       {2_000, 100_000, 3},
		"--quick --steps 5000": {5_000, 4_000, 3},
	}
	for line, want := range tests {
		t.Run(line, func(t *testing.T) {
			set := flag.NewFlagSet("steps", flag.ContinueOnError)
			for _, f := range benchStepsCommand().Flags {
				if err := f.Apply(set); err != nil {
					t.Fatal(err)
				}
			}
			if err := set.Parse(strings.Fields(line)); err != nil {
				t.Fatal(err)
			}
			cfg, err := benchStepsSizes(cli.NewContext(nil, set, nil))
			if err != nil || cfg.Steps != want.steps || cfg.HighSteps != want.high || cfg.Rounds != want.rounds {
				t.Errorf("%d steps, %d of the highest, %d rounds: %v", cfg.Steps, cfg.HighSteps, cfg.Rounds, err)
			}
		})
	}
}
