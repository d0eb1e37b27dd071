//go:build linux

package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/berthhq/berth/internal/bench"
)

// verdict states whether a figure reached its target.
type verdict struct {
	// Name states what is measured, Case in which case.
	Name string `json:"target"`
	Case string `json:"case"`
	// Wanted is the bound: "≥ 2.20 × the floor".
	Wanted string  `json:"wanted"`
	Bound  float64 `json:"bound"`
	Got    float64 `json:"got"`
	// Numbers are those that Got is computed from.
	Reached bool   `json:"reached"`
	Numbers string `json:"numbers"`
}

// figure returns a figure of a row, and the numbers that it is computed from: none if
// etcd did not report them.
type figure func(*row) (value float64, numbers string)

// target is a bound for a figure of a case. All are ratios within one run, so that they
// hold on any machine, but for the sizes in memory and the times of plans and steps.
type target struct {
	name, of string
	most     bool // the bound is the most that is allowed, not the least
	bound    float64
	unit     string
	figure   figure
}

// targets are those of all suites: no two suites have a case in common. Those of claims that need not wait are shares of what
// batches of puts and deletes without any logic reach: 2.5 times the floor with 64 clients, 4 times with 256.
var targets = []target{
	{"claim p50, 1 client", "uncontended/go/1c/1h/1p", true, 1.3, "× a plain put", claimToPut},
	{"64 clients, uncontended", "uncontended/go/64c/1h/1p", false, 2.5, "× the floor", ratio},
	{"256 clients, uncontended", "uncontended/go/256c/1h/1p", false, 3.25, "× the floor", ratio},
	{"64 clients on 4 hosts, uncontended", "uncontended/go/64c/4h/1p", false, 1.6, "× the floor", ratio},
	{"256 clients on 4 hosts, uncontended", "uncontended/go/256c/4h/1p", false, 2.4, "× the floor", ratio},
	{"64 clients, limit 8", "contended/go/64c/1h/1p", false, 1.2, "× the floor", ratio},
	{"256 clients, limit 32", "contended/go/256c/1h/1p", false, 2, "× the floor", ratio},
	{"64 clients on 4 hosts, limit 8", "contended/go/64c/4h/1p", false, 0.35, "× the floor", ratio},
	{"256 clients on 4 hosts, limit 32", "contended/go/256c/4h/1p", false, 0.75, "× the floor", ratio},
	{"pool full, hold 5 ms, 64 clients on 8 slots", "full/go/64c/1h/1p", false, 75, "% of slot time used", used},
	{"pool full, hold 5 ms, 256 clients on 32 slots", "full/go/256c/1h/1p", false, 68, "% of slot time used", used},
	{"pool full, hold 5 ms, 64 clients on 4 hosts and 8 slots", "full/go/64c/4h/1p", false, 64, "% of slot time used", used},
	{"pool full, hold 5 ms, 256 clients on 4 hosts and 32 slots", "full/go/256c/4h/1p", false, 52, "% of slot time used", used},
	{"transfer p50, 1 host", "transfer/go/8c/1h/1p", true, 2, "× a plain put", transferP50},
	{"transfer p99, 1 host", "transfer/go/8c/1h/1p", true, 15, "× a plain put", transferP99},
	{"longest wait, 1 host", "transfer/go/8c/1h/1p", true, 1.5, "× the fair wait", longestWait},
	{"transfer p50, 4 hosts", "transfer/go/8c/4h/1p", true, 3.6, "× a plain put", transferP50},
	{"transfer p99, 4 hosts", "transfer/go/8c/4h/1p", true, 15, "× a plain put", transferP99},
	{"longest wait, 4 hosts", "transfer/go/8c/4h/1p", true, 1.5, "× the fair wait", longestWait},
	{"64 clients over HTTP, uncontended", "uncontended/http/64c/1h/1p", false, 0.6, "× the floor", ratio},
	{"limit 100,000 against 1,000", "limit/go/64c/1h/1p", true, 1.5, "× the time per claim", timePerClaim},
	{"idle sidecar", "memory/http/64c/1h/1p", true, 35, "MB resident", idleMemory},
	{"sidecar with 10,000 held claims", "memory/http/64c/1h/1p", true, 90, "MB resident", holdingMemory},
	{"throughput after a long history", "history/go/256c/1h/1p", false, 85, "% of that at first", afterHistory},

	{"submissions, 64 clients", "submit/64c", false, 0.8, "× the floor", submissionsToFloor},
	{"admission p50, below the limits", "admit/1c", true, 3, "× a plain put", admissionP50},
	{"plan p50, nothing has changed", "plan/idle/100000q", true, 20, "ms", planP50},
	{"plan p50, the last run may go", "plan/last/100000q", true, 20, "ms", planP50},
	{"plan p50, 1,024 runs may go", "plan/many/100000q", true, 20, "ms", planP50},

	{"4 workers × 10, no limits", "baseline/4w/10r", false, 1.0, "× the floor of claims, 64 clients", stepRatio},
	{"a step over its life, no limits", "baseline/4w/10r", true, 1, "etcd transactions", stepTransactions},
	{"tasks without a limit where others have one", "unlimited/4w/10r", true, 0, "claims of slots", slotClaims},
	{"and what is written of a step", "unlimited/4w/10r", true, 1.01, "× the writes without a task", stepWrites},
	{"all limited", "enabled/4w/10r", false, 0.85, "× without limits", stepRatio},
	{"a step over its life, all limited", "enabled/4w/10r", true, 1, "etcd transactions", stepTransactions},
	{"taking with a slot, p50", "enabled/4w/10r", true, 1, "ms more", takeAdded},
	{"completing with a slot, p50", "enabled/4w/10r", true, 1, "ms more", completeAdded},
	{"1 of 100 limited", "mixed/4w/10r", false, 0.97, "× without limits", stepRatio},
	{"taking with a slot, one at a time, p50", "enabled/1w/1r", true, 1, "ms more", takeAdded},
	{"completing with a slot, one at a time, p50", "enabled/1w/1r", true, 1, "ms more", completeAdded},
	{"8 workers × 30, limit 500", "high/8w/30r", false, 0.85, "× without limits", stepRatio},
	{"limit 10 binds", "binding/4w/10r", false, 0.85, "× 10 at a time without limits", bindingRatio},
}

// hasTarget reports whether a case has a target, or another one is compared with it.
func hasTarget(name string) bool {
	of := func(t target) bool { return t.of == name }
	return name == freeCase || slices.ContainsFunc(targets, of)
}

// judge returns the verdicts on what was measured.
func judge(rows []*row) []verdict {
	byName := map[string]*row{}
	for _, r := range rows {
		byName[r.Name], r.others = r, byName
	}
	all := []verdict{}
	for _, t := range targets {
		if r := byName[t.of]; r != nil && r.Error == "" {
			if v := t.judge(r); v.Numbers != "" {
				all = append(all, v)
			}
		}
	}
	return all
}

func (t target) judge(r *row) verdict {
	got, numbers := t.figure(r)
	sign, reached := "≥", got >= t.bound
	if t.most {
		sign, reached = "≤", got <= t.bound
	}
	return verdict{
		Name: t.name, Case: t.of, Bound: t.bound, Got: got, Reached: reached, Numbers: numbers,
		Wanted: fmt.Sprintf("%s %.4g %s", sign, t.bound, t.unit),
	}
}

func ratio(r *row) (float64, string) {
	return r.Ratio.Median, fmt.Sprintf("%.0f/s against %.0f/s (rounds %.2f to %.2f)",
		r.PerSecond, r.Reference.PerSecond, r.Ratio.Low, r.Ratio.High)
}

func timePerClaim(r *row) (float64, string) {
	return 1 / r.Ratio.Median, fmt.Sprintf("%.0f/s against %.0f/s", r.PerSecond, r.Reference.PerSecond)
}

func claimToPut(r *row) (float64, string) {
	return r.ClaimToPut.Median, fmt.Sprintf("%.3f ms against %.3f ms (rounds %.2f to %.2f)",
		r.Claim.P50, r.Reference.Put.P50, r.ClaimToPut.Low, r.ClaimToPut.High)
}

func used(r *row) (float64, string) {
	return 100 * r.Used.Median, fmt.Sprintf("%.0f claims/s, really held %.2f ms (p50), transfer %s",
		r.PerSecond, r.Held.P50, r.Transfer)
}

func transferP50(r *row) (float64, string) {
	return r.TransferToPut.Median, fmt.Sprintf("%.3f ms against %.3f ms (rounds %.2f to %.2f); a plain delete after the same hold: %.3f ms",
		r.Transfer.P50, r.Reference.Put.P50, r.TransferToPut.Low, r.TransferToPut.High, r.Reference.Delete.P50)
}

func transferP99(r *row) (float64, string) {
	return r.Transfer.P99 / r.Reference.Put.P50, fmt.Sprintf("%.3f ms of %d transfers",
		r.Transfer.P99, r.Transfer.Count)
}

// longestWait compares the longest wait with the fair one: the holds of all other
// clients.
func longestWait(r *row) (float64, string) {
	fair := bench.Millis(r.Hold) * float64(r.Clients-1)
	return r.Claim.Max / fair, fmt.Sprintf("%.0f ms against %.0f ms", r.Claim.Max, fair)
}

func idleMemory(r *row) (float64, string) {
	return r.Memory.Idle, fmt.Sprintf("%.1f MB", r.Memory.Idle)
}

func holdingMemory(r *row) (float64, string) {
	return r.Memory.Holding, fmt.Sprintf("%.1f MB with %d claims, %.1f MB at the peak",
		r.Memory.Holding, r.Memory.Claims, r.Memory.Peak)
}

func afterHistory(r *row) (float64, string) {
	h := r.History
	return 100 * h.Last / h.First, fmt.Sprintf(
		"%.0f/s after %d claims against %.0f/s (floor %.0f/s against %.0f/s), database %.0f MB, %.0f MB of it in use",
		h.Last, h.Claims, h.First, h.LastFloor, h.FirstFloor, h.LastDatabase, h.LastInUse)
}

func submissionsToFloor(r *row) (float64, string) {
	return r.Ratio.Median, fmt.Sprintf("%.0f/s against %.0f/s (rounds %.2f to %.2f)",
		r.Submissions.PerSecond, r.Reference.PerSecond, r.Ratio.Low, r.Ratio.High)
}

func admissionP50(r *row) (float64, string) {
	a := r.Admissions
	return a.SeenToPut.Median, fmt.Sprintf("%s against %.3f ms (rounds %.2f to %.2f); a plain delete after the same pause: %.3f ms",
		a.Seen, r.Reference.Put.P50, a.SeenToPut.Low, a.SeenToPut.High, r.Reference.Delete.P50)
}

func planP50(r *row) (float64, string) {
	return r.Plan.P50, fmt.Sprintf("%s of %d plans", r.Plan, r.Plan.Count)
}

func stepRatio(r *row) (float64, string) {
	return r.Ratio.Median, fmt.Sprintf("%.0f/s against %.0f/s (rounds %.2f to %.2f), %d steps each",
		r.StepLoads.Own.PerSecond, r.Reference.PerSecond, r.Ratio.Low, r.Ratio.High, r.Steps)
}

// freeCase is the case whose reference has as many steps at a time as the limit of binding allows.
const freeCase = few + "/4w"

// bindingRatio compares steps whose limit binds with as many at a time that have none.
func bindingRatio(r *row) (float64, string) {
	free := r.others[freeCase]
	if free == nil || free.Reference == nil || free.Error != "" {
		return 0, ""
	}
	own, ref := r.StepLoads.Own.PerSecond, free.Reference.PerSecond
	return own / ref, fmt.Sprintf("%.0f/s against %.0f/s", own, ref)
}

func stepTransactions(r *row) (float64, string) {
	c := r.StepLoads.Own.Cost
	return c.Transactions, fmt.Sprintf("%.3f, %.3f reads, %.3f entries of etcd's log", c.Transactions, c.Reads, c.Entries)
}

func slotClaims(r *row) (float64, string) {
	own, ref := r.StepLoads.Own, r.StepLoads.Unlimited
	return float64(own.SlotClaims), fmt.Sprintf("%d transactions of slots; %.3f transactions and %.3f reads a step against %.3f and %.3f",
		own.SlotTransactions, own.Cost.Transactions, own.Cost.Reads, ref.Cost.Transactions, ref.Cost.Reads)
}

func stepWrites(r *row) (float64, string) {
	own, ref := r.StepLoads.Own.Cost.Operations, r.StepLoads.Unlimited.Cost.Operations
	if own == nil || ref == nil || ref.Writes() == 0 {
		return 0, ""
	}
	return own.Writes() / ref.Writes(), fmt.Sprintf("%.2f puts, %.2f deletes, %.2f ranges against %.2f, %.2f, %.2f",
		own.Puts, own.Deletes, own.Ranges, ref.Puts, ref.Deletes, ref.Ranges)
}

func takeAdded(r *row) (float64, string) {
	return r.StepLoads.TakeAdded.Median, fmt.Sprintf("%s against %s", r.StepLoads.Own.Take, r.StepLoads.Unlimited.Take)
}

func completeAdded(r *row) (float64, string) {
	return r.StepLoads.CompleteAdded.Median, fmt.Sprintf("%s against %s", r.StepLoads.Own.Complete, r.StepLoads.Unlimited.Complete)
}

// writeVerdicts writes verdicts for people.
func writeVerdicts(w io.Writer, verdicts []verdict) {
	if len(verdicts) == 0 {
		fmt.Fprintln(w, "no case with a target was measured")
		return
	}
	var cells [][]string
	for _, v := range verdicts {
		word := "missed"
		if v.Reached {
			word = "reached"
		}
		cells = append(cells, []string{v.Name, v.Wanted, fmt.Sprintf("%.3g", v.Got), word, v.Numbers})
	}
	bench.Columns(w, []string{"TARGET", "WANTED", "GOT", "VERDICT", "NUMBERS"}, cells)
}
