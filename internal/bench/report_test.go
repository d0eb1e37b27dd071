package bench

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAQuantileIsASampleThatTheShareDoesNotExceed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 50), func(n int) time.Duration { return time.Duration(n) }), 1, 200).Draw(t, "samples")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		slices.Sort(samples)
		got := quantile(samples, q)
		notAbove, below := 0, 0
		for _, s := range samples {
			if s <= got {
				notAbove++
			}
			if s < got {
				below++
			}
		}
		share := q * float64(len(samples))
		if float64(notAbove) < share {
			t.Errorf("only %d of %d are at most %d, wanted %.2f of them", notAbove, len(samples), got, q)
		}
		if below > 0 && float64(below) >= share {
			t.Errorf("%d of %d are below %d, and %.2f of them are enough", below, len(samples), got, q)
		}
	})
}

func TestSamplesAreSummarized(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)*time.Millisecond)
	}
	tests := map[string]struct {
		samples []time.Duration
		want    *Latency
	}{
		"none":    {nil, nil},
		"one":     {[]time.Duration{3 * time.Millisecond}, &Latency{Count: 1, P50: 3, P99: 3, Max: 3}},
		"two":     {[]time.Duration{2 * time.Millisecond, time.Millisecond}, &Latency{Count: 2, P50: 1, P99: 2, Max: 2}},
		"hundred": {hundred, &Latency{Count: 100, P50: 50, P99: 99, Max: 100}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Summarize(test.samples)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestRoundsAreSummarizedByTheirMedian(t *testing.T) {
	tests := map[string]struct {
		values []float64
		want   *Spread
	}{
		"none": {nil, nil},
		"odd":  {[]float64{3, 1, 9}, &Spread{Median: 3, Low: 1, High: 9}},
		"even": {[]float64{4, 1, 2, 9}, &Spread{Median: 3, Low: 1, High: 9}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, SpreadOf(test.values)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAReportOfClaimsIsReadable(t *testing.T) {
	report := &Report[*Row]{
		Etcd: "3.7.3", Endpoints: []string{"127.0.0.1:2379"}, Go: "go1.26", CPUs: 2, Rounds: 1, RoundSeconds: 0.5,
		Rows: []*Row{
			{
				Case:      Case{Name: "uncontended/go/64c/1h/1p"},
				Reference: &Reference{What: "floor/64c/1h", PerSecond: 9300, Put: &Latency{P50: 2.5, P99: 8}},
				PerSecond: 20460, Ratio: &Spread{Median: 2.2, Low: 2.1, High: 2.3},
				Claim: &Latency{P50: 1.25, P99: 4}, Release: &Latency{P50: 1.5, P99: 4},
			},
			{Case: Case{Name: "contended/go/64c/1h/1p"}, Error: "etcd went away"},
			{Case: Case{Name: "memory/http/64c/1h/1p"}, Memory: &Memory{Claims: 10000, Idle: 38, Holding: 100}},
		},
	}
	var out bytes.Buffer
	report.WriteTable(&out)
	want := strings.Join([]string{
		"etcd 3.7.3 at 127.0.0.1:2379, go1.26, 2 CPUs, 1 round of 0.5s",
		"",
		"CASE                      FLOOR/S  CLAIMS/S  RATIO  ROUNDS     PUT MS  CLAIM MS  RELEASE MS  TRANSFER MS",
		"uncontended/go/64c/1h/1p  9300     20460     2.20   2.10-2.30  2.5/8   1.25/4    1.5/4       -",
		"RATIO is the median of the rounds; times in ms are p50/p99.",
		"memory/http/64c/1h/1p: 38.0 MB idle, 100.0 MB with 10,000 claims",
		"contended/go/64c/1h/1p failed: etcd went away",
		"",
	}, "\n")
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
