package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// StepLoads are the loads of a case of steps, and those of its reference, which is the
// same without limits; the baseline's is the floor, which is no steps.
type StepLoads struct {
	Own       *StepLoad `json:"own"`
	Unlimited *StepLoad `json:"unlimited,omitempty"`
	// TakeAdded and CompleteAdded are by how many milliseconds the p50 is longer than
	// the reference's, by round.
	TakeAdded     *Spread `json:"take_p50_added_ms,omitempty"`
	CompleteAdded *Spread `json:"complete_p50_added_ms,omitempty"`

	// Megabytes are of 2^20 bytes. Heap is what is left of Go's heap after the loads,
	// with workers and a coordinator that have nothing to do, and Peak the most that was
	// resident of this process, in which all of them are; Before is what was resident
	// with them, before.
	Heap   float64 `json:"heap_mb,omitempty"`
	Peak   float64 `json:"peak_mb,omitempty"`
	Before float64 `json:"before_mb,omitempty"`
	// Database is the size of etcd's database after the loads, and InUse how much of it
	// is not free pages.
	Database float64 `json:"database_mb"`
	InUse    float64 `json:"database_in_use_mb"`
}

// StepLoad is one kind of load.
type StepLoad struct {
	// PerSecond is how many steps were done, the median of the rounds, and ByWorker what
	// each worker did of it, the slowest of a round first.
	PerSecond float64   `json:"steps_per_second"`
	ByWorker  []float64 `json:"steps_per_second_by_worker"`
	// Take is the time from a worker's decision to take a step until it was begun, and
	// Complete that from its end until it was known to be written.
	Take     *Latency `json:"take"`
	Complete *Latency `json:"complete"`
	// SlotClaims and SlotReleases are counted over all rounds; SlotTransactions are
	// those that were sent for them, and for what was taken with them.
	SlotClaims       int `json:"slot_claims"`
	SlotReleases     int `json:"slot_releases"`
	SlotTransactions int `json:"slot_transactions"`
	// InVain are attempts in all rounds that did not end well, though what they had to do
	// can't fail: their steps were tried again.
	InVain int `json:"attempts_in_vain"`
	// Cost is that of a step over its life, from the submission to the last release.
	Cost StepCost `json:"cost_of_a_step"`
}

// StepCost is what a step costs.
type StepCost struct {
	// Transactions and Reads are requests of berth to etcd.
	Transactions float64 `json:"etcd_transactions"`
	Reads        float64 `json:"etcd_reads"`
	// Entries are those of etcd's log.
	Entries float64 `json:"etcd_log_entries"`
	// Operations are those of keys inside of all that, as etcd counts them; missing
	// where it does not tell.
	Operations *KeyOperations `json:"etcd_operations,omitempty"`
}

// KeyOperations are those of keys.
type KeyOperations struct {
	Puts    float64 `json:"puts"`
	Deletes float64 `json:"deletes"`
	Ranges  float64 `json:"ranges"`
}

// Writes are puts and deletes.
func (o *KeyOperations) Writes() float64 { return o.Puts + o.Deletes }

// stepSum is a kind of load over all rounds.
type stepSum struct {
	outcomes []stepOutcome
}

func (s *stepSum) rates() []float64 {
	var rates []float64
	for _, o := range s.outcomes {
		rates = append(rates, o.perSecond)
	}
	return rates
}

// load sums up the rounds.
func (s *stepSum) load(steps int) *StepLoad {
	all := stepOutcome{}
	l := &StepLoad{PerSecond: median(s.rates())}
	var counts stepCounts
	told := &operations{}
	for _, o := range s.outcomes {
		all.take, all.complete = append(all.take, o.take...), append(all.complete, o.complete...)
		counts.transactions += o.counts.transactions
		counts.reads += o.counts.reads
		counts.entries += o.counts.entries
		counts.claims += o.counts.claims
		counts.claimBatches += o.counts.claimBatches
		l.SlotReleases += o.released
		l.InVain += o.inVain
		if e := o.counts.etcd; e == nil {
			told = nil
		} else if told != nil {
			told.puts, told.deletes, told.ranges = told.puts+e.puts, told.deletes+e.deletes, told.ranges+e.ranges
		}
	}
	l.Take, l.Complete = summarize(all.take), summarize(all.complete)
	l.SlotClaims, l.SlotTransactions = int(counts.claims), int(counts.claimBatches)
	done := float64(steps * len(s.outcomes))
	l.Cost = StepCost{Transactions: counts.transactions / done, Reads: counts.reads / done, Entries: counts.entries / done}
	if told != nil {
		l.Cost.Operations = &KeyOperations{told.puts / done, told.deletes / done, told.ranges / done}
	}
	for i := range s.outcomes[0].perWorker {
		var of []float64
		for _, o := range s.outcomes {
			of = append(of, o.perWorker[i])
		}
		l.ByWorker = append(l.ByWorker, median(of))
	}
	return l
}

// fillSteps computes the figures of a row from its rounds.
func (r *Row) fillSteps(pairs []stepPair) {
	var own, ref stepSum
	var floor rounds
	var ratios, takes, completes []float64
	for _, p := range pairs {
		own.outcomes = append(own.outcomes, p.own)
		if r.Kind == baseline {
			floor.refRate = append(floor.refRate, p.floor.perSecond)
			floor.ref.add(p.floor)
			ratios = append(ratios, p.own.perSecond/p.floor.perSecond)
			continue
		}
		ref.outcomes = append(ref.outcomes, p.ref)
		ratios = append(ratios, p.own.perSecond/p.ref.perSecond)
		takes = append(takes, p50(slices.Clone(p.own.take))-p50(slices.Clone(p.ref.take)))
		completes = append(completes, p50(slices.Clone(p.own.complete))-p50(slices.Clone(p.ref.complete)))
	}
	steps := r.Case.Steps
	r.Ratio = spread(ratios)
	r.StepLoads = &StepLoads{Own: own.load(steps), TakeAdded: spread(takes), CompleteAdded: spread(completes)}
	if r.Kind == baseline {
		r.Reference = &Reference{
			What: "the floor of claims", PerSecond: median(floor.refRate),
			Put: summarize(floor.ref.claim), Delete: summarize(floor.ref.release),
		}
		return
	}
	r.StepLoads.Unlimited = ref.load(steps)
	r.Reference = &Reference{What: "the same without limits", PerSecond: r.StepLoads.Unlimited.PerSecond}
}

// fillSizes notes what was taken of memory and of etcd's disk.
func (r *runner) fillSizes(ctx context.Context, l *StepLoads, before memoryUse) (err error) {
	l.Before = before.resident
	if after, err := ownMemory(); err == nil {
		l.Heap, l.Peak = after.heap, after.peak
	}
	l.Database, l.InUse, err = r.database(ctx)
	return err
}

// stepCounts are counters since whenever, of which differences mean something.
type stepCounts struct {
	// transactions and reads are requests of berth to etcd, as its connections count
	// them: those of the workers, of the coordinator, and of who submits.
	transactions, reads float64
	// claims are those that were granted, and claimBatches the transactions with which
	// slots were claimed and given back.
	claims, claimBatches float64
	// entries are those of etcd's log: writes of all kinds, whoever sent them.
	entries float64
	// etcd has the operations inside of the transactions, as etcd counts them itself;
	// nil where it does not tell.
	etcd *operations
}

// operations are reads and writes of keys in etcd.
type operations struct{ puts, deletes, ranges float64 }

func (c stepCounts) minus(before stepCounts) stepCounts {
	c.transactions -= before.transactions
	c.reads -= before.reads
	c.claims -= before.claims
	c.claimBatches -= before.claimBatches
	c.entries -= before.entries
	if c.etcd != nil && before.etcd != nil {
		c.etcd = &operations{
			c.etcd.puts - before.etcd.puts, c.etcd.deletes - before.etcd.deletes, c.etcd.ranges - before.etcd.ranges,
		}
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
	s, err := f.r.status(ctx)
	if err != nil {
		return c, err
	}
	c.entries = float64(s.RaftAppliedIndex)
	c.etcd = f.r.operations(ctx)
	return c, nil
}

// operations asks the first endpoint for its own metrics. It is nil if they are not to
// be had there: that depends on how etcd was started.
func (r *runner) operations(ctx context.Context) *operations {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.metricsURL(), nil)
	if err != nil {
		return nil
	}
	t := &http.Transport{TLSClientConfig: cloneTLS(r.cfg.Etcd.TLS), DisableKeepAlives: true}
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
	o := &operations{values["etcd_mvcc_put_total"], values["etcd_mvcc_delete_total"], values["etcd_mvcc_range_total"]}
	if o.puts == 0 {
		return nil
	}
	return o
}

// metricsURL is where etcd serves its metrics unless it was told otherwise.
func (r *runner) metricsURL() string {
	endpoint := r.cfg.Etcd.Endpoints[0]
	if !strings.Contains(endpoint, "://") {
		scheme := "http://"
		if r.cfg.Etcd.TLS != nil {
			scheme = "https://"
		}
		endpoint = scheme + endpoint
	}
	return strings.TrimSuffix(endpoint, "/") + "/metrics"
}

func cloneTLS(c *tls.Config) *tls.Config {
	if c == nil {
		return nil
	}
	return c.Clone()
}
