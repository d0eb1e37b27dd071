package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/bench"
)

func TestAReportOfABenchmarkIsReadable(t *testing.T) {
	report := &bench.Report{
		Etcd: "3.7.3", Endpoints: []string{"127.0.0.1:2379"}, Go: "go1.26", CPUs: 2, Rounds: 1, RoundSeconds: 0.5,
		Rows: []*bench.Row{
			{
				Case:      bench.Case{Name: "uncontended/go/64c/1h/1p"},
				Reference: &bench.Reference{What: "floor/64c/1h", PerSecond: 9300, Put: &bench.Latency{P50: 2.5, P99: 8}},
				PerSecond: 20460, Ratio: &bench.Spread{Median: 2.2, Low: 2.1, High: 2.3},
				Claim: &bench.Latency{P50: 1.25, P99: 4}, Release: &bench.Latency{P50: 1.5, P99: 4},
			},
			{Case: bench.Case{Name: "contended/go/64c/1h/1p"}, Error: "etcd went away"},
			{Case: bench.Case{Name: "memory/http/64c/1h/1p"}, Memory: &bench.Memory{Idle: 38}},
		},
		Targets: []bench.Target{
			{Name: "64 clients", Wanted: "≥ 2.2 × the floor", Got: 2.2, Reached: true, Numbers: "20460/s against 9300/s"},
			{Name: "idle sidecar", Wanted: "≤ 40 MB resident", Got: 41, Numbers: "41.0 MB"},
		},
	}
	var out bytes.Buffer
	benchPage(&page{out: &out, now: time.Now()}, report, benchClaimsTable)
	want := strings.Join([]string{
		"etcd 3.7.3 at 127.0.0.1:2379, go1.26, 2 CPUs, 1 round of 0.5s",
		"",
		"CASE                      FLOOR/S  CLAIMS/S  RATIO  ROUNDS     PUT MS  CLAIM MS  RELEASE MS  HAND-OVER MS",
		"uncontended/go/64c/1h/1p  9300     20460     2.20   2.10-2.30  2.5/8   1.25/4    1.5/4       -",
		"RATIO is the median of the rounds; times in ms are p50/p99.",
		"contended/go/64c/1h/1p failed: etcd went away",
		"",
		"TARGET        WANTED             GOT  VERDICT  NUMBERS",
		"64 clients    ≥ 2.2 × the floor  2.2  reached  20460/s against 9300/s",
		"idle sidecar  ≤ 40 MB resident   41   missed   41.0 MB",
		"",
	}, "\n")
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAReportOfTheQueueIsReadable(t *testing.T) {
	report := &bench.Report{
		Etcd: "3.7.3", Endpoints: []string{"127.0.0.1:2379"}, Go: "go1.26", CPUs: 2, Rounds: 5, RoundSeconds: 1,
		Rows: []*bench.Row{
			{
				Case:        bench.Case{Name: "submit/64c"},
				Reference:   &bench.Reference{What: "a put per run/64c", PerSecond: 10000, Put: &bench.Latency{P50: 4.5, P99: 17}},
				Ratio:       &bench.Spread{Median: 0.81, Low: 0.8, High: 0.83},
				Submissions: &bench.Submissions{PerSecond: 8100, Submit: &bench.Latency{P50: 6.9, P99: 19}},
			},
			{
				Case:       bench.Case{Name: "admit/1c"},
				Reference:  &bench.Reference{What: "floor/1c/1h", Put: &bench.Latency{P50: 0.5, P99: 1.5}},
				Admissions: &bench.Admissions{Seen: &bench.Latency{P50: 3.25, P99: 4}, SeenToPut: &bench.Spread{Median: 6.5}},
			},
			{Case: bench.Case{Name: "plan/idle/100000q"}, Plan: &bench.Latency{P50: 12, P99: 15}},
			{Case: bench.Case{Name: "plan/last/100000q"}, Error: "etcd went away"},
			{
				Case: bench.Case{Name: "leader/100000q"},
				Leader: &bench.Leader{
					Queued: 100000, InProgress: 1000, TagLimits: 50, Seconds: 12.34,
					Heap: 123.45, Resident: 150, Before: 34, Peak: 301.25,
				},
			},
		},
		Targets: []bench.Target{{Name: "submissions", Wanted: "≥ 0.8 × the floor", Got: 0.81, Reached: true, Numbers: "8100/s"}},
	}
	var out bytes.Buffer
	benchPage(&page{out: &out, now: time.Now()}, report, benchQueueTable)
	want := strings.Join([]string{
		"etcd 3.7.3 at 127.0.0.1:2379, go1.26, 2 CPUs, 5 rounds of 1s",
		"",
		"CASE               FLOOR/S  RUNS/S  RATIO  ROUNDS     PUT MS   SUBMIT MS  SEEN MS  PLAN MS",
		"submit/64c         10000    8100    0.81   0.80-0.83  4.5/17   6.9/19     -        -",
		"admit/1c           -        -       -      -          0.5/1.5  -          3.25/4   -",
		"plan/idle/100000q  -        -       -      -          -        -          -        12/15",
		"RATIO is the median of the rounds; times in ms are p50/p99.",
		"leader/100000q: 100000 runs queued, 1000 in progress, 50 limits of tags: 123.5 MB of Go's heap, " +
			"150.0 MB resident and 301.2 MB at the peak, beside 34.0 MB of the benchmark; all reasons noted after 12.3s",
		"plan/last/100000q failed: etcd went away",
		"",
		"TARGET       WANTED             GOT   VERDICT  NUMBERS",
		"submissions  ≥ 0.8 × the floor  0.81  reached  8100/s",
		"",
	}, "\n")
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestASidecarOfABenchmarkHasTheEtcdOfTheBenchmark(t *testing.T) {
	t.Setenv("BERTH_TOKEN", "not for the sidecar")
	s := &sidecarProcesses{settings: config.Settings{CACert: "/ca.pem", User: "jo"}}
	line := strings.Join(s.arguments(
		berth.Options{Endpoints: []string{"a:1", "b:2"}, Prefix: "/x/", Host: "h"},
		&sidecarProcess{dir: "/tmp/d", socket: "/tmp/d/s"},
	), " ")
	for _, want := range []string{"--endpoints a:1,b:2", "--prefix /x/", "--host h", "--socket /tmp/d/s", "--cacert /ca.pem", "--user jo"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is missing in %q", want, line)
		}
	}
	for _, e := range s.environment() {
		if strings.HasPrefix(e, "BERTH_") {
			t.Errorf("the environment has %s", e)
		}
	}
}
