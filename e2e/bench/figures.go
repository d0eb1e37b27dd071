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
	"time"

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
	// Published is the time from the publication of a step until it was begun. Where all
	// are published at once, most of it is the wait for a free place.
	Published *bench.Latency `json:"published_to_begun"`
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
	// EtcdCPU and OwnCPU are milliseconds of processor time: of etcd, if its process is
	// known, and of this process, which has the workers, the coordinator and the client
	// that submits. What they take while there is no step is subtracted.
	EtcdCPU *float64 `json:"etcd_cpu_ms,omitempty"`
	OwnCPU  float64  `json:"workers_cpu_ms"`
	// Conflicts are the attempts to take a step that another worker took first.
	Conflicts float64 `json:"take_conflicts"`
	// Wakes are how often a worker was woken for new steps, and Picks its decisions what
	// to take.
	Wakes float64 `json:"worker_wakes"`
	Picks float64 `json:"worker_picks"`
	// Operations are those on keys in all these requests; nil where etcd does not report
	// them.
	Operations *keyOperations `json:"etcd_operations,omitempty"`
}

// keyOperations are operations on keys, as etcd counts them.
type keyOperations struct {
	Puts    float64 `json:"puts"`
	Deletes float64 `json:"deletes"`
	Ranges  float64 `json:"ranges"`
	// Events are those that etcd sent to watches.
	Events float64 `json:"events_sent"`
}

// Writes are puts and deletes.
func (o *keyOperations) Writes() float64 { return o.Puts + o.Deletes }

// sumLoads sums up the rounds of a load of so many steps. Idle is what is used without
// steps.
func sumLoads(rounds []stepOutcome, steps int, idle bench.Rate) *stepLoad {
	l := &stepLoad{ByWorker: make([]float64, len(rounds[0].perWorker))}
	all := stepOutcome{counts: rounds[0].counts}
	var rates []float64
	for i, o := range rounds {
		rates = append(rates, o.perSecond)
		all.take, all.complete = append(all.take, o.take...), append(all.complete, o.complete...)
		all.published = append(all.published, o.published...)
		if i > 0 {
			all.counts = all.counts.plus(o.counts)
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
	l.Published = bench.Summarize(all.published)
	c, done := all.counts, float64(steps*len(rounds))
	l.SlotClaims, l.SlotTransactions = int(c.claims), int(c.claimBatches)
	l.Cost = stepCost{
		Transactions: c.transactions / done, Reads: c.reads / done, Entries: c.entries / done,
		Conflicts: c.conflicts / done, Wakes: c.wakes / done, Picks: c.picks / done,
	}
	etcd, own := c.cpu.Each(idle, c.clock, int(done))
	if l.Cost.OwnCPU = own; c.cpu.Etcd > 0 {
		l.Cost.EtcdCPU = &etcd
	}
	if o := c.etcd; o != nil {
		l.Cost.Operations = &keyOperations{o.Puts / done, o.Deletes / done, o.Ranges / done, o.Events / done}
	}
	return l
}

// fillSteps computes the figures of a row from its rounds.
func (r *row) fillSteps(rounds []stepRound, idle bench.Rate) {
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
	r.StepLoads = &stepLoads{Own: sumLoads(own, r.Steps, idle), TakeAdded: bench.SpreadOf(takes), CompleteAdded: bench.SpreadOf(completes)}
	if r.Kind == baseline {
		r.Reference = bench.ReferenceOf("the floor of claims", floor)
		return
	}
	r.StepLoads.Unlimited = sumLoads(ref, r.Steps, idle)
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
	// conflicts, wakes and picks are what the workers count.
	conflicts, wakes, picks float64
	// clock is the time, and cpu the processor time that was used.
	clock time.Duration
	cpu   bench.Usage
	// entries are those of etcd's log: writes of all kinds and of all clients.
	entries float64
	// etcd has the operations in the transactions; nil where etcd does not report them.
	etcd *keyOperations
}

// plus adds other counts.
func (c stepCounts) plus(other stepCounts) stepCounts { return c.add(other, 1) }

// minus subtracts earlier counts.
func (c stepCounts) minus(other stepCounts) stepCounts { return c.add(other, -1) }

func (c stepCounts) add(other stepCounts, factor float64) stepCounts {
	times := func(d time.Duration) time.Duration { return time.Duration(factor) * d }
	c.transactions += factor * other.transactions
	c.reads += factor * other.reads
	c.claims += factor * other.claims
	c.claimBatches += factor * other.claimBatches
	c.entries += factor * other.entries
	c.conflicts += factor * other.conflicts
	c.wakes += factor * other.wakes
	c.picks += factor * other.picks
	c.clock += times(other.clock)
	c.cpu.Etcd += times(other.cpu.Etcd)
	c.cpu.Instances += times(other.cpu.Instances)
	c.cpu.Others += times(other.cpu.Others)
	if a, b := c.etcd, other.etcd; a != nil && b != nil {
		c.etcd = &keyOperations{a.Puts + factor*b.Puts, a.Deletes + factor*b.Deletes, a.Ranges + factor*b.Ranges, a.Events + factor*b.Events}
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
	conflictMetric = "berth_worker_take_conflicts_total"
	wakesMetric    = "berth_worker_wakes_total"
	picksMetric    = "berth_worker_picks_total"
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
			case conflictMetric:
				c.conflicts += m.GetCounter().GetValue()
			case wakesMetric:
				c.wakes += m.GetCounter().GetValue()
			case picksMetric:
				c.picks += m.GetCounter().GetValue()
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
	c.clock = time.Since(f.opened)
	c.cpu, err = f.meter.Read()
	return c, err
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
		if name, value, ok := strings.Cut(s.Text(), " "); ok && strings.HasPrefix(name, "etcd_") {
			values[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	o := &keyOperations{values["etcd_mvcc_put_total"], values["etcd_mvcc_delete_total"], values["etcd_mvcc_range_total"], values["etcd_debugging_mvcc_events_total"]}
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
	writeStepCosts(w, report.Rows)
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

// writeStepCosts writes what a step costs in processor time, and what of that depends on
// the number of workers.
func writeStepCosts(w io.Writer, rows []*row) {
	var cells [][]string
	for _, r := range rows {
		l := r.StepLoads
		if l == nil {
			continue
		}
		if l.Unlimited != nil {
			cells = append(cells, costCells(r.Name+" without", l.Unlimited))
		}
		cells = append(cells, costCells(r.Name, l.Own))
	}
	if len(cells) == 0 {
		return
	}
	bench.Columns(w, []string{"CASE", "ETCD CPU MS", "WORKERS CPU MS", "EVENTS", "WAKES", "PICKS", "CONFLICTS", "TO BEGIN MS"}, cells)
	fmt.Fprint(w, "CPU is that of etcd, and of this process with all workers, per step, without what they take while\n"+
		"idle. EVENTS were sent to watches, and WAKES and PICKS are of all workers, per step, as are CONFLICTS:\n"+
		"attempts to take a step that another worker took first. TO BEGIN is the time from a publication.\n")
}

func costCells(name string, l *stepLoad) []string {
	c := l.Cost
	cells := []string{
		name, "", fmt.Sprintf("%.2f", c.OwnCPU), "", fmt.Sprintf("%.2f", c.Wakes), fmt.Sprintf("%.2f", c.Picks),
		fmt.Sprintf("%.3f", c.Conflicts), l.Published.Cell(),
	}
	if c.EtcdCPU != nil {
		cells[1] = fmt.Sprintf("%.2f", *c.EtcdCPU)
	}
	if o := c.Operations; o != nil {
		cells[3] = fmt.Sprintf("%.1f", o.Events)
	}
	return cells
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
