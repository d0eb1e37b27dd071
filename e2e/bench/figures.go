//go:build linux

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/text"
)

// stepLoads are the loads of a case of steps, and those of its reference, which is the
// same without limits. The reference of the baseline is the floor, which has no steps.
type stepLoads struct {
	Own       *stepLoad `json:"own"`
	Unlimited *stepLoad `json:"unlimited,omitempty"`
	// TakeAdded and CompleteAdded are by how many milliseconds the p50 is longer than
	// the reference's, by round.
	TakeAdded     *bench.Spread `json:"take_p50_added_ms,omitempty"`
	CompleteAdded *bench.Spread `json:"complete_p50_added_ms,omitempty"`

	// Megabytes are of 2^20 bytes. Heap is the size of Go's heap after the loads, when
	// workers and coordinator have nothing to do, and Peak the most that was resident of
	// this process, of which they are parts; Before is what was resident before the
	// loads.
	Heap   float64 `json:"heap_mb,omitempty"`
	Peak   float64 `json:"peak_mb,omitempty"`
	Before float64 `json:"before_mb,omitempty"`
	// Database is the size of etcd's database after the loads, and InUse how much of it
	// is not free pages.
	Database float64 `json:"database_mb"`
	InUse    float64 `json:"database_in_use_mb"`
}

// stepLoad is one kind of load.
type stepLoad struct {
	// PerSecond is how many steps were done, the median of the rounds, and ByWorker what
	// each worker did of it, the slowest of a round first.
	PerSecond float64   `json:"steps_per_second"`
	ByWorker  []float64 `json:"steps_per_second_by_worker"`
	// Take is the time from a worker's decision to take a step until it was begun, and
	// Complete that from its end until the worker knew that it was written.
	Take     *bench.Latency `json:"take"`
	Complete *bench.Latency `json:"complete"`
	// SlotClaims and SlotReleases are counted over all rounds; SlotTransactions are
	// those that were sent for them, and for what was taken with them.
	SlotClaims       int `json:"slot_claims"`
	SlotReleases     int `json:"slot_releases"`
	SlotTransactions int `json:"slot_transactions"`
	// InVain is the number of attempts in all rounds that did not end well, although
	// their steps can't fail. They were tried again.
	InVain int `json:"attempts_in_vain"`
	// Cost is that of a step over its life, from the submission to the last release.
	Cost stepCost `json:"cost_of_a_step"`
}

// stepCost is what a step costs.
type stepCost struct {
	// Transactions and Reads are requests of berth to etcd.
	Transactions float64 `json:"etcd_transactions"`
	Reads        float64 `json:"etcd_reads"`
	// Entries are those of etcd's log.
	Entries float64 `json:"etcd_log_entries"`
	// Operations are those on keys in all these requests; nil where etcd does not report
	// them.
	Operations *keyOperations `json:"etcd_operations,omitempty"`
}

// keyOperations are operations on keys, as etcd counts them.
type keyOperations struct {
	Puts    float64 `json:"puts"`
	Deletes float64 `json:"deletes"`
	Ranges  float64 `json:"ranges"`
}

// Writes are puts and deletes.
func (o *keyOperations) Writes() float64 { return o.Puts + o.Deletes }

// sumLoads sums up the rounds of a load of so many steps.
func sumLoads(rounds []stepOutcome, steps int) *stepLoad {
	l := &stepLoad{ByWorker: make([]float64, len(rounds[0].perWorker))}
	all := stepOutcome{counts: rounds[0].counts}
	var rates []float64
	for i, o := range rounds {
		rates = append(rates, o.perSecond)
		all.take, all.complete = append(all.take, o.take...), append(all.complete, o.complete...)
		if i > 0 {
			all.counts = all.counts.plus(o.counts, 1)
		}
		l.SlotReleases += o.released
		l.InVain += o.inVain
	}
	for i := range l.ByWorker {
		var of []float64
		for _, o := range rounds {
			of = append(of, o.perWorker[i])
		}
		l.ByWorker[i] = bench.Median(of)
	}
	l.PerSecond, l.Take, l.Complete = bench.Median(rates), bench.Summarize(all.take), bench.Summarize(all.complete)
	c, done := all.counts, float64(steps*len(rounds))
	l.SlotClaims, l.SlotTransactions = int(c.claims), int(c.claimBatches)
	l.Cost = stepCost{Transactions: c.transactions / done, Reads: c.reads / done, Entries: c.entries / done}
	if o := c.etcd; o != nil {
		l.Cost.Operations = &keyOperations{o.Puts / done, o.Deletes / done, o.Ranges / done}
	}
	return l
}

// fillSteps computes the figures of a row from its rounds.
func (r *row) fillSteps(rounds []stepRound) {
	var own, ref []stepOutcome
	var floor []bench.Outcome
	var ratios, takes, completes []float64
	for _, p := range rounds {
		own = append(own, p.own)
		if r.Kind == baseline {
			floor = append(floor, p.floor)
			ratios = append(ratios, p.own.perSecond/p.floor.PerSecond)
			continue
		}
		ref = append(ref, p.ref)
		ratios = append(ratios, p.own.perSecond/p.ref.perSecond)
		takes = append(takes, bench.P50(p.own.take)-bench.P50(p.ref.take))
		completes = append(completes, bench.P50(p.own.complete)-bench.P50(p.ref.complete))
	}
	r.Ratio = bench.SpreadOf(ratios)
	r.StepLoads = &stepLoads{Own: sumLoads(own, r.Steps), TakeAdded: bench.SpreadOf(takes), CompleteAdded: bench.SpreadOf(completes)}
	if r.Kind == baseline {
		r.Reference = bench.ReferenceOf("the floor of claims", floor)
		return
	}
	r.StepLoads.Unlimited = sumLoads(ref, r.Steps)
	r.Reference = &bench.Reference{What: "the same without limits", PerSecond: r.StepLoads.Unlimited.PerSecond}
}

// fillSizes fills in the sizes in memory and on etcd's disk.
func (r *runner) fillSizes(ctx context.Context, l *stepLoads, before memoryUse) (err error) {
	l.Before = before.resident
	if after, err := ownMemory(); err == nil {
		l.Heap, l.Peak = after.heap, after.peak
	}
	l.Database, l.InUse, err = r.Database(ctx)
	return err
}

// stepCounts are counters whose differences count what happened between.
type stepCounts struct {
	// transactions and reads are requests of berth to etcd, as its connections count
	// them: those of the workers, of the coordinator, and of the submitting client.
	transactions, reads float64
	// claims are those that were granted, and claimBatches the transactions with which
	// slots were claimed and released.
	claims, claimBatches float64
	// entries are those of etcd's log: writes of all kinds and of all clients.
	entries float64
	// etcd has the operations in the transactions; nil where etcd does not report them.
	etcd *keyOperations
}

// plus adds other counts, times a factor.
func (c stepCounts) plus(other stepCounts, factor float64) stepCounts {
	c.transactions += factor * other.transactions
	c.reads += factor * other.reads
	c.claims += factor * other.claims
	c.claimBatches += factor * other.claimBatches
	c.entries += factor * other.entries
	if a, b := c.etcd, other.etcd; a != nil && b != nil {
		c.etcd = &keyOperations{a.Puts + factor*b.Puts, a.Deletes + factor*b.Deletes, a.Ranges + factor*b.Ranges}
	} else {
		c.etcd = nil
	}
	return c
}

// The names of what is counted.
const (
	requestsMetric = "berth_etcd_request_duration_seconds"
	grantsMetric   = "berth_claims_granted_total"
	batchesMetric  = "berth_claim_batches_total"
)

// addFrom adds what a registry counts.
func (c *stepCounts) addFrom(reg prometheus.Gatherer) error {
	families, err := reg.Gather()
	if err != nil {
		return fmt.Errorf("read the metrics: %w", err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case requestsMetric:
				n := float64(m.GetHistogram().GetSampleCount())
				for _, l := range m.GetLabel() {
					switch {
					case l.GetName() != "op":
					case l.GetValue() == "txn":
						c.transactions += n
					case l.GetValue() == "range":
						c.reads += n
					}
				}
			case grantsMetric:
				c.claims += m.GetCounter().GetValue()
			case batchesMetric:
				c.claimBatches += m.GetCounter().GetValue()
			}
		}
	}
	return nil
}

// count reads all counters.
func (f *fleet) count(ctx context.Context) (stepCounts, error) {
	var c stepCounts
	for _, reg := range f.registries {
		if err := c.addFrom(reg); err != nil {
			return c, err
		}
	}
	s, err := f.r.Status(ctx)
	if err != nil {
		return c, err
	}
	c.entries = float64(s.RaftAppliedIndex)
	c.etcd = f.r.operations(ctx)
	return c, nil
}

// operations reads the metrics of the first endpoint. It returns nil if the endpoint
// does not serve them, which depends on how etcd was started.
func (r *runner) operations(ctx context.Context) *keyOperations {
	ctx, cancel := context.WithTimeout(ctx, bench.CloseTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.metricsURL(), nil)
	if err != nil {
		return nil
	}
	var conf *tls.Config
	if r.Etcd.TLS != nil {
		conf = r.Etcd.TLS().Clone()
	}
	t := &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}
	defer t.CloseIdleConnections()
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil
	}
	values := map[string]float64{}
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), " "); ok && strings.HasPrefix(name, "etcd_mvcc_") {
			values[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	o := &keyOperations{values["etcd_mvcc_put_total"], values["etcd_mvcc_delete_total"], values["etcd_mvcc_range_total"]}
	if o.Puts == 0 {
		return nil
	}
	return o
}

// metricsURL returns the URL at which etcd serves its metrics by default.
func (r *runner) metricsURL() string {
	endpoint := r.Etcd.Endpoints[0]
	if !strings.Contains(endpoint, "://") {
		scheme := "http://"
		if r.Etcd.TLS != nil {
			scheme = "https://"
		}
		endpoint = scheme + endpoint
	}
	return strings.TrimSuffix(endpoint, "/") + "/metrics"
}

// writeSteps writes a report of steps for people: the cases, each with its reference.
func writeSteps(w io.Writer, report *report) {
	report.WriteHead(w)
	var cells [][]string
	for _, r := range report.Rows {
		l := r.StepLoads
		if l == nil {
			continue // it has failed
		}
		if l.Unlimited != nil {
			cells = append(cells, stepCells(r.Name+" without", l.Unlimited))
		} else {
			floor := []string{r.Reference.What, fmt.Sprintf("%.0f", r.Reference.PerSecond)}
			cells = append(cells, append(floor, slices.Repeat([]string{""}, len(stepHead)-len(floor))...))
		}
		own := stepCells(r.Name, l.Own)
		own[2], own[3] = fmt.Sprintf("%.2f", r.Ratio.Median), fmt.Sprintf("%.2f-%.2f", r.Ratio.Low, r.Ratio.High)
		cells = append(cells, own)
	}
	if len(cells) > 0 {
		bench.Columns(w, stepHead, cells)
		fmt.Fprint(w, "RATIO is to the line above, the median of the rounds; times in ms are p50/p99. Transactions,\n"+
			"reads, entries of etcd's log, puts and deletes are those of a step from its submission to its\n"+
			"last release; CLAIMS are claims of slots in all rounds, each of which was given back.\n")
	}
	for _, r := range report.Rows {
		if l := r.StepLoads; l != nil {
			fmt.Fprintf(w, "%s: %s a load, %.1f MB of Go's heap left, %.1f MB resident at the peak next to %.1f MB before; etcd's database %.1f MB, %.1f MB of it in use\n",
				r.Name, text.Count(r.Steps, "step"), l.Heap, l.Peak, l.Before, l.Database, l.InUse)
			if l.Own.InVain > 0 {
				fmt.Fprintf(w, "%s: %s in vain, of steps that can't fail: they were tried again\n", r.Name, text.Count(l.Own.InVain, "attempt"))
			}
		}
	}
	report.WriteFailures(w)
}

var stepHead = []string{
	"CASE", "STEPS/S", "RATIO", "ROUNDS", "WORKERS", "TAKE MS", "COMPLETE MS", "CLAIMS", "TXNS", "READS", "ENTRIES", "PUTS", "DELETES",
}

func stepCells(name string, l *stepLoad) []string {
	cells := []string{
		name, fmt.Sprintf("%.0f", l.PerSecond), "", "", byWorker(l.ByWorker), l.Take.Cell(), l.Complete.Cell(),
		fmt.Sprint(l.SlotClaims), fmt.Sprintf("%.3f", l.Cost.Transactions), fmt.Sprintf("%.3f", l.Cost.Reads), fmt.Sprintf("%.3f", l.Cost.Entries), "", "",
	}
	if o := l.Cost.Operations; o != nil {
		cells[11], cells[12] = fmt.Sprintf("%.2f", o.Puts), fmt.Sprintf("%.2f", o.Deletes)
	}
	return cells
}

// byWorker returns what the slowest and the fastest worker did in a second.
func byWorker(all []float64) string {
	if len(all) == 0 {
		return ""
	}
	ends := []string{fmt.Sprintf("%.0f", all[0]), fmt.Sprintf("%.0f", all[len(all)-1])}
	return strings.Join(slices.Compact(ends), "-")
}
