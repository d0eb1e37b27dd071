package main

import (
	"fmt"
	"strings"

	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/text"
)

// benchPage writes a report for people: where it was measured, the cases, and
// the targets.
func benchPage(out *page, r *bench.Report, table func(*page, []*bench.Row)) {
	rounds := text.Count(r.Rounds, "round")
	if r.RoundSeconds > 0 { // those of steps last until all are done
		rounds = fmt.Sprintf("%s of %.3gs", rounds, r.RoundSeconds)
	}
	out.line("etcd %s at %s, %s, %s, %s", r.Etcd, strings.Join(r.Endpoints, ","), r.Go, text.Count(r.CPUs, "CPU"), rounds)
	out.gap()
	table(out, r.Rows)
	benchFailures(out, r.Rows)
	out.gap()
	benchTargets(out, r.Targets)
}

// benchClaimsTable writes the cases of claims.
func benchClaimsTable(out *page, rows []*bench.Row) {
	var cells [][]string
	for _, r := range rows {
		if r.Claim == nil {
			continue // it has a target only
		}
		cells = append(cells, []string{
			r.Name,
			fmt.Sprintf("%.0f", r.Reference.PerSecond), fmt.Sprintf("%.0f", r.PerSecond),
			fmt.Sprintf("%.2f", r.Ratio.Median), fmt.Sprintf("%.2f-%.2f", r.Ratio.Low, r.Ratio.High),
			latency(r.Reference.Put), latency(r.Claim), latency(r.Release), latency(r.HandOver),
		})
	}
	out.table("no case was measured", []string{
		"CASE", "FLOOR/S", "CLAIMS/S", "RATIO", "ROUNDS", "PUT MS", "CLAIM MS", "RELEASE MS", "HAND-OVER MS",
	}, cells)
	out.line("RATIO is the median of the rounds; times in ms are p50/p99.")
}

// latency writes p50 and p99.
func latency(l *bench.Latency) string {
	if l == nil {
		return ""
	}
	return fmt.Sprintf("%.3g/%.3g", l.P50, l.P99)
}

func benchFailures(out *page, rows []*bench.Row) {
	for _, r := range rows {
		if r.Error != "" {
			out.line("%s failed: %s", r.Name, r.Error)
		}
	}
}

func benchTargets(out *page, targets []bench.Target) {
	var cells [][]string
	for _, t := range targets {
		cells = append(cells, []string{t.Name, t.Wanted, fmt.Sprintf("%.3g", t.Got), verdict(t), t.Numbers})
	}
	out.table("no case with a target was measured", []string{"TARGET", "WANTED", "GOT", "VERDICT", "NUMBERS"}, cells)
}

func verdict(t bench.Target) string {
	if t.Reached {
		return "reached"
	}
	return "missed"
}

// benchSummary says in a few words what came of a case.
func benchSummary(r *bench.Row) []string {
	var words []string
	switch {
	case r.Memory != nil:
		words = append(words, fmt.Sprintf("%.1f MB idle, %.1f MB with %s", r.Memory.Idle, r.Memory.Holding, text.Count(r.Memory.Claims, "claim")))
	case r.History != nil:
		words = append(words, fmt.Sprintf("%.0f/s at first, %.0f/s at last", r.History.First, r.History.Last))
	case r.Submissions != nil:
		words = append(words, fmt.Sprintf("%.0f/s", r.Submissions.PerSecond), fmt.Sprintf("%.2f × %s", r.Ratio.Median, r.Reference.What))
	case r.Admissions != nil:
		words = append(words, fmt.Sprintf("seen in %s", r.Admissions.Seen), fmt.Sprintf("%.2f × a plain put", r.Admissions.SeenToPut.Median))
	case r.Plan != nil:
		words = append(words, r.Plan.String())
	case r.StepLoads != nil:
		words = append(words, fmt.Sprintf("%.0f/s", r.StepLoads.Own.PerSecond), fmt.Sprintf("%.2f × %s", r.Ratio.Median, r.Reference.What))
	case r.Leader != nil:
		words = append(words, fmt.Sprintf("%.1f MB of heap, %.1f MB resident", r.Leader.Heap, r.Leader.Resident))
	default:
		words = append(words, fmt.Sprintf("%.0f/s", r.PerSecond), fmt.Sprintf("%.2f × %s", r.Ratio.Median, r.Reference.What))
	}
	if r.Used != nil && r.Held != nil {
		words = append(words, fmt.Sprintf("%.1f%% of slot time used", 100*r.Used.Median))
	}
	return words
}
