package bench

import (
	"slices"
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
			if diff := cmp.Diff(test.want, summarize(test.samples)); diff != "" {
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
			if diff := cmp.Diff(test.want, spread(test.values)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
