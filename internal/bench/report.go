package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/berthhq/berth/internal/text"
)

// Result is a row of a report: [Row], or what embeds it.
type Result interface {
	row() *Row
	// Summary returns the figures in a few words.
	Summary() []string
}

// Report is what was measured. Durations are in milliseconds or seconds, as the names
// say.
type Report[R Result] struct {
	Began     time.Time `json:"began"`
	Seconds   float64   `json:"seconds"`
	Etcd      string    `json:"etcd_version"`
	Endpoints []string  `json:"endpoints"`
	Go        string    `json:"go_version"`
	CPUs      int       `json:"cpus"`
	Rounds    int       `json:"rounds"`
	// RoundSeconds is how long a round lasts, if that is fixed.
	RoundSeconds float64 `json:"round_seconds,omitempty"`
	Rows         []R     `json:"rows"`
}

// Row is what was measured of one case. What does not apply to it is missing.
type Row struct {
	Case
	// Reference is what ran in alternation with the case.
	Reference *Reference `json:"reference,omitempty"`
	// PerSecond is how many claims were granted, the median of the rounds.
	PerSecond float64 `json:"claims_per_second,omitempty"`
	// Ratio is PerSecond as a multiple of the reference.
	Ratio *Spread `json:"ratio,omitempty"`
	// Claim is the time from the request to the grant, Transfer that from the
	// call of a release to the grant that it made possible.
	Claim    *Latency `json:"claim,omitempty"`
	Release  *Latency `json:"release,omitempty"`
	Transfer *Latency `json:"transfer,omitempty"`
	// Held is how long the claims were really held, if they were at all.
	Held *Latency `json:"held,omitempty"`
	// Used is the share of the slots' time that was used.
	Used *Spread `json:"slot_time_used,omitempty"`
	// ClaimToPut is the p50 of claims as a multiple of that of the floor's puts,
	// TransferToPut the same of transfers.
	ClaimToPut    *Spread `json:"claim_p50_to_put_p50,omitempty"`
	TransferToPut *Spread `json:"transfer_p50_to_put_p50,omitempty"`

	Wait    *Wait    `json:"wait,omitempty"`
	Memory  *Memory  `json:"memory,omitempty"`
	History *History `json:"history,omitempty"`

	// Error is why there are no figures.
	Error string `json:"error,omitempty"`
}

// Wait is how long claims have waited that compete for slots, in milliseconds.
type Wait struct {
	// Longest is the longest wait, and Fair what it would be if the slots passed from client to
	// client in turn.
	Longest float64 `json:"longest_ms"`
	Fair    float64 `json:"fair_ms"`
	// WithoutSlot is the longest time in which a host with clients that waited had no slot.
	WithoutSlot float64 `json:"without_slot_ms"`
}

// Reference is what a case is compared with.
type Reference struct {
	What      string   `json:"what"`
	PerSecond float64  `json:"per_second"`
	Put       *Latency `json:"put,omitempty"` // or its claims, if it is no floor
	Delete    *Latency `json:"delete,omitempty"`
}

func (r *Row) row() *Row { return r }

// Summary returns the figures in a few words.
func (r *Row) Summary() []string {
	switch {
	case r.Memory != nil:
		return []string{fmt.Sprintf("%.1f MB idle, %.1f MB with %s", r.Memory.Idle, r.Memory.Holding, text.Count(r.Memory.Claims, "claim"))}
	case r.History != nil:
		return []string{fmt.Sprintf("%.0f/s at first, %.0f/s at last", r.History.First, r.History.Last)}
	}
	words := []string{fmt.Sprintf("%.0f/s", r.PerSecond), fmt.Sprintf("%.2f × %s", r.Ratio.Median, r.Reference.What)}
	if r.Wait != nil {
		words = append(words, fmt.Sprintf("longest wait %.0f ms (%.0f ms if it were fair), a host without a slot for up to %.0f ms", r.Wait.Longest, r.Wait.Fair, r.Wait.WithoutSlot))
	}
	if r.Used != nil && r.Held != nil {
		words = append(words, fmt.Sprintf("%.1f%% of slot time used", 100*r.Used.Median))
	}
	return words
}

// WriteTable writes a report for people: where it was measured, and the figures.
func (r *Report[R]) WriteTable(w io.Writer) {
	r.WriteHead(w)
	var cells [][]string
	var lines []string
	for _, each := range r.Rows {
		switch r := each.row(); {
		case r.Claim != nil:
			cells = append(cells, []string{
				r.Name,
				fmt.Sprintf("%.0f", r.Reference.PerSecond), fmt.Sprintf("%.0f", r.PerSecond),
				fmt.Sprintf("%.2f", r.Ratio.Median), fmt.Sprintf("%.2f-%.2f", r.Ratio.Low, r.Ratio.High),
				r.Reference.Put.Cell(), r.Claim.Cell(), r.Release.Cell(), r.Transfer.Cell(),
			})
		}
		if r := each.row(); r.Memory != nil || r.History != nil || r.Wait != nil {
			lines = append(lines, r.Name+": "+strings.Join(r.Summary(), ", "))
		}
	}
	if len(cells) > 0 {
		Columns(w, []string{
			"CASE", "FLOOR/S", "CLAIMS/S", "RATIO", "ROUNDS", "PUT MS", "CLAIM MS", "RELEASE MS", "TRANSFER MS",
		}, cells)
		fmt.Fprintln(w, "RATIO is the median of the rounds; times in ms are p50/p99.")
	} else if len(lines) == 0 {
		fmt.Fprintln(w, "no case was measured")
	}
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
	r.WriteFailures(w)
}

// WriteHead writes where and how it was measured.
func (r *Report[R]) WriteHead(w io.Writer) {
	rounds := text.Count(r.Rounds, "round")
	if r.RoundSeconds > 0 {
		rounds = fmt.Sprintf("%s of %.3gs", rounds, r.RoundSeconds)
	}
	fmt.Fprintf(w, "etcd %s at %s, %s, %s, %s\n\n", r.Etcd, strings.Join(r.Endpoints, ","), r.Go, text.Count(r.CPUs, "CPU"), rounds)
}

// WriteFailures writes which cases failed.
func (r *Report[R]) WriteFailures(w io.Writer) {
	for _, each := range r.Rows {
		if r := each.row(); r.Error != "" {
			fmt.Fprintf(w, "%s failed: %s\n", r.Name, strings.ReplaceAll(r.Error, "\n", "; "))
		}
	}
}

// Columns writes a head and rows in columns. An empty cell is a dash.
func Columns(w io.Writer, head []string, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		cells := slices.Clone(row)
		for i, cell := range cells {
			if cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	_ = t.Flush() // w keeps its error
}

// Latency sums up how long something took, in milliseconds.
type Latency struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// String returns the two usual figures; of no samples, a dash.
func (l *Latency) String() string {
	if l == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f ms (p99 %.3f ms)", l.P50, l.P99)
}

// Cell returns the same for a table, without units; of no samples, nothing.
func (l *Latency) Cell() string {
	if l == nil {
		return ""
	}
	return fmt.Sprintf("%.3g/%.3g", l.P50, l.P99)
}

// Summarize sorts the samples and sums them up; of none it is nil.
func Summarize(samples []time.Duration) *Latency {
	if len(samples) == 0 {
		return nil
	}
	slices.Sort(samples)
	return &Latency{
		Count: len(samples),
		P50:   Millis(quantile(samples, 0.50)),
		P99:   Millis(quantile(samples, 0.99)),
		Max:   Millis(samples[len(samples)-1]),
	}
}

// Millis returns a duration in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile returns the smallest of sorted samples that a share q of them does
// not exceed; of none it is 0.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	at := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(at, 1), len(sorted))-1]
}

// Median returns the median of values, the mean of the middle two if their number is even; of none
// it is 0.
func Median(values []float64) float64 {
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

// SpreadOf sums up a figure of each round; of none it is nil.
func SpreadOf(values []float64) *Spread {
	if len(values) == 0 {
		return nil
	}
	return &Spread{Median: Median(values), Low: slices.Min(values), High: slices.Max(values)}
}

// P50 returns the median of samples in milliseconds, which are sorted by it.
func P50(samples []time.Duration) float64 {
	slices.Sort(samples)
	return Millis(quantile(samples, 0.50))
}
