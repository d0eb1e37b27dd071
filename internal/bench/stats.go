package bench

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Latency sums up how long something took, in milliseconds.
type Latency struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// String tells the two usual figures; of no samples, a dash.
func (l *Latency) String() string {
	if l == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f ms (p99 %.3f ms)", l.P50, l.P99)
}

// summarize sorts the samples and sums them up; of none it is nil.
func summarize(samples []time.Duration) *Latency {
	if len(samples) == 0 {
		return nil
	}
	slices.Sort(samples)
	return &Latency{
		Count: len(samples),
		P50:   millis(quantile(samples, 0.50)),
		P99:   millis(quantile(samples, 0.99)),
		Max:   millis(samples[len(samples)-1]),
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile returns the smallest of sorted samples that a share q of them does
// not exceed; of none it is 0.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	at := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(at, 1), len(sorted))-1]
}

// median of values, the mean of the middle two if their number is even; of none
// it is 0.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	mid := len(s) / 2
	if len(s)%2 == 1 {
		return s[mid]
	}
	return (s[mid-1] + s[mid]) / 2
}

// Spread is a figure over the rounds of a case.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// spread sums up a figure of each round; of none it is nil.
func spread(values []float64) *Spread {
	if len(values) == 0 {
		return nil
	}
	return &Spread{Median: median(values), Low: slices.Min(values), High: slices.Max(values)}
}

// p50 returns the median of samples in milliseconds, which are sorted by it.
func p50(samples []time.Duration) float64 {
	slices.Sort(samples)
	return millis(quantile(samples, 0.50))
}
