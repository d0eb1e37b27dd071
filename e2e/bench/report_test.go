//go:build linux

package main

import (
	"bytes"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/bench"
)

// reported returns a report of rows as a suite prints it.
func reported(t *testing.T, show func(io.Writer, *report), base bench.Report[*row], v verdict, rows ...*row) string {
	t.Helper()
	base.Etcd, base.Endpoints, base.Go, base.CPUs = "3.7.3", []string{"127.0.0.1:2379"}, "go1.26", 2
	base.Rounds, base.Rows = 5, rows
	var out bytes.Buffer
	if err := write(&out, "table", &report{Report: &base, Targets: []verdict{v}, show: show}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestAReportOfTheQueueIsReadable(t *testing.T) {
	named := func(name string) bench.Row { return bench.Row{Case: bench.Case{Name: name}} }
	submissions, admissions, failed := named("submit/64c"), named("admit/1c"), named("plan/last/100000q")
	submissions.Reference = &bench.Reference{What: "a put per run/64c", PerSecond: 10000, Put: &bench.Latency{P50: 4.5, P99: 17}}
	submissions.Ratio = &bench.Spread{Median: 0.81, Low: 0.8, High: 0.83}
	admissions.Reference = &bench.Reference{What: "floor/1c/1h", Put: &bench.Latency{P50: 0.5, P99: 1.5}}
	failed.Error = "etcd went away"
	got := reported(t, writeQueue, bench.Report[*row]{RoundSeconds: 1},
		verdict{Name: "submissions", Wanted: "≥ 0.8 × the floor", Got: 0.81, Reached: true, Numbers: "8100/s"},
		&row{Row: submissions, Submissions: &submissionFigures{PerSecond: 8100, Submit: &bench.Latency{P50: 6.9, P99: 19}}},
		&row{Row: admissions, Admissions: &admissionFigures{Seen: &bench.Latency{P50: 3.25, P99: 4}, SeenToPut: &bench.Spread{Median: 6.5}}},
		&row{Row: named("plan/idle/100000q"), Plan: &bench.Latency{P50: 12, P99: 15}},
		&row{Row: failed},
		&row{Row: named("leader/100000q"), Leader: &leaderFigures{
			Queued: 100000, InProgress: 1000, TagLimits: 50, Seconds: 12.34,
			Heap: 123.45, Resident: 150, Before: 34, Peak: 301.25,
		}},
	)
	want := strings.Join([]string{
		"etcd 3.7.3 at 127.0.0.1:2379, go1.26, 2 CPUs, 5 rounds of 1s",
		"",
		"CASE               FLOOR/S  RUNS/S  RATIO  ROUNDS     PUT MS   SUBMIT MS  SEEN MS  PLAN MS",
		"submit/64c         10000    8100    0.81   0.80-0.83  4.5/17   6.9/19     -        -",
		"admit/1c           -        -       -      -          0.5/1.5  -          3.25/4   -",
		"plan/idle/100000q  -        -       -      -          -        -          -        12/15",
		"RATIO is the median of the rounds; times in ms are p50/p99.",
		"leader/100000q: 100,000 runs queued, 1000 in progress, 50 limits of tags: 123.5 MB of Go's heap, " +
			"150.0 MB resident and 301.2 MB at the peak, next to 34.0 MB of the benchmark; all reasons noted after 12.3s",
		"plan/last/100000q failed: etcd went away",
		"",
		"TARGET       WANTED             GOT   VERDICT  NUMBERS",
		"submissions  ≥ 0.8 × the floor  0.81  reached  8100/s",
		"",
	}, "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAReportOfStepsIsReadable(t *testing.T) {
	load := func(perSecond float64, claims int, o *keyOperations) *stepLoad {
		return &stepLoad{
			PerSecond: perSecond, ByWorker: []float64{perSecond / 8, perSecond / 4},
			Take: &bench.Latency{P50: 2, P99: 8}, Complete: &bench.Latency{P50: 3, P99: 9},
			Published: &bench.Latency{P50: 12, P99: 150}, SlotClaims: claims, SlotReleases: claims,
			Cost: stepCost{
				Transactions: 0.25, Reads: 0.5, Entries: 0.26, Operations: o,
				OwnCPU: 1.25, Conflicts: 0.021, Wakes: 2, Picks: 3.5,
			},
		}
	}
	one := load(500, 100, nil)
	one.ByWorker, one.InVain = one.ByWorker[:1], 2
	base, single, failed := stepRow(baseline, 4, 10, 10000, 0), stepRow(limited, 1, 1, 1, 80), stepRow(mixed, 4, 10, 100, 10)
	base.Reference = &bench.Reference{What: "the floor of claims", PerSecond: 8000, Put: &bench.Latency{P50: 4.5, P99: 17}}
	base.Ratio = &bench.Spread{Median: 1.25, Low: 1.2, High: 1.3}
	etcd, known := 0.15, load(10000, 0, &keyOperations{Puts: 6, Deletes: 2, Ranges: 1, Events: 13})
	known.Cost.EtcdCPU = &etcd
	base.StepLoads = &stepLoads{
		Own:  known,
		Heap: 20, Peak: 101.25, Before: 40, Database: 80, InUse: 30,
	}
	single.Reference = &bench.Reference{What: "the same without limits", PerSecond: 600}
	single.Ratio = &bench.Spread{Median: 0.83, Low: 0.8, High: 0.9}
	single.StepLoads = &stepLoads{Own: one, Unlimited: load(600, 0, nil)}
	failed.Error = "etcd went away"
	got := reported(t, writeSteps, bench.Report[*row]{},
		verdict{Name: "4 workers", Wanted: "≥ 1 × the floor", Got: 1.25, Reached: true, Numbers: "10000/s"},
		base, single, failed)
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
		"CASE                   ETCD CPU MS  WORKERS CPU MS  EVENTS  WAKES  PICKS  CONFLICTS  TO BEGIN MS",
		"baseline/4w/10r        0.15         1.25            13.0    2.00   3.50   0.021      12/150",
		"enabled/1w/1r without  -            1.25            -       2.00   3.50   0.021      12/150",
		"enabled/1w/1r          -            1.25            -       2.00   3.50   0.021      12/150",
		"CPU is that of etcd, and of this process with all workers, per step, without what they take while",
		"idle. EVENTS were sent to watches, and WAKES and PICKS are of all workers, per step, as are CONFLICTS:",
		"attempts to take a step that another worker took first. TO BEGIN is the time from a publication.",
		"baseline/4w/10r: 10,000 steps a load, 20.0 MB of Go's heap left, 101.2 MB resident at the peak next to 40.0 MB before; etcd's database 80.0 MB, 30.0 MB of it in use",
		"enabled/1w/1r: 1 step a load, 0.0 MB of Go's heap left, 0.0 MB resident at the peak next to 0.0 MB before; etcd's database 0.0 MB, 0.0 MB of it in use",
		"enabled/1w/1r: 2 attempts in vain, of steps that can't fail: they were tried again",
		"mixed/4w/10r failed: etcd went away",
		"",
		"TARGET     WANTED           GOT   VERDICT  NUMBERS",
		"4 workers  ≥ 1 × the floor  1.25  reached  10000/s",
		"",
	}, "\n")
	if diff := cmp.Diff(want, got); diff != "" {
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
			for _, f := range stepsSuite().flags {
				if err := f.Apply(set); err != nil {
					t.Fatal(err)
				}
			}
			if err := set.Parse(strings.Fields(line)); err != nil {
				t.Fatal(err)
			}
			c := cli.NewContext(nil, set, nil)
			steps, high := stepNumbers(c)
			cfg, err := bench.FromFlags(c)
			if err != nil || steps != want.steps || high != want.high || cfg.Rounds != want.rounds {
				t.Errorf("%d steps, %d of the highest, %d rounds: %v", steps, high, cfg.Rounds, err)
			}
		})
	}
}
