package bench

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Report is what was measured. Durations are in milliseconds or seconds, as the
// names say.
type Report struct {
	Began     time.Time `json:"began"`
	Seconds   float64   `json:"seconds"`
	Etcd      string    `json:"etcd_version"`
	Endpoints []string  `json:"endpoints"`
	Go        string    `json:"go_version"`
	CPUs      int       `json:"cpus"`
	Rounds    int       `json:"rounds"`
	// RoundSeconds is how long a round lasts; of steps it is as long as they take.
	RoundSeconds float64 `json:"round_seconds,omitempty"`

	Rows    []*Row   `json:"rows"`
	Targets []Target `json:"targets"`
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
	// Claim is the time from the asking to the grant, HandOver that from the
	// call of a release to the grant that it made possible.
	Claim    *Latency `json:"claim,omitempty"`
	Release  *Latency `json:"release,omitempty"`
	HandOver *Latency `json:"hand_over,omitempty"`
	// Held is how long the claims were really held, if they were at all.
	Held *Latency `json:"held,omitempty"`
	// Used is the share of the slots' time that was used.
	Used *Spread `json:"slot_time_used,omitempty"`
	// ClaimToPut is the p50 of claims as a multiple of that of the floor's puts,
	// HandOverToPut the same of hand-overs.
	ClaimToPut    *Spread `json:"claim_p50_to_put_p50,omitempty"`
	HandOverToPut *Spread `json:"hand_over_p50_to_put_p50,omitempty"`

	Memory  *Memory  `json:"memory,omitempty"`
	History *History `json:"history,omitempty"`

	Submissions *Submissions `json:"submissions,omitempty"`
	Admissions  *Admissions  `json:"admissions,omitempty"`
	// Plan is the time that a plan takes.
	Plan   *Latency `json:"plan,omitempty"`
	Leader *Leader  `json:"leader,omitempty"`

	StepLoads *StepLoads `json:"step_loads,omitempty"`
	// Error is why there are no figures.
	Error string `json:"error,omitempty"`
}

// Reference is what a case is compared with.
type Reference struct {
	What      string   `json:"what"`
	PerSecond float64  `json:"per_second"`
	Put       *Latency `json:"put,omitempty"` // or its claims, if it is no floor
	Delete    *Latency `json:"delete,omitempty"`
}

// Memory is what a sidecar takes.
type Memory struct {
	Claims int `json:"claims"`
	// Idle and Holding are resident megabytes (of 2^20 bytes) without a claim
	// and with all of them; Peak is the most that there ever was.
	Idle    float64 `json:"idle_mb"`
	Holding float64 `json:"holding_mb"`
	Peak    float64 `json:"peak_mb"`
}

// History compares the throughput after many claims with that at the beginning.
type History struct {
	Claims int `json:"claims"`
	// Sample is how many claims were measured at either end.
	Sample int `json:"sample"`
	// First and Last are claims per second, FirstFloor and LastFloor what the
	// floor did just before.
	First      float64 `json:"first_per_second"`
	Last       float64 `json:"last_per_second"`
	FirstFloor float64 `json:"first_floor_per_second"`
	LastFloor  float64 `json:"last_floor_per_second"`
	// The size of the database, and how much of it is not free pages, in
	// megabytes.
	FirstDatabase float64 `json:"first_database_mb"`
	LastDatabase  float64 `json:"last_database_mb"`
	LastInUse     float64 `json:"last_database_in_use_mb"`
}

// rounds are the figures of a case by round, and the samples of all rounds.
type rounds struct {
	ref, own outcome

	refRate, ownRate, ratio, used, claimToPut, handOverToPut []float64
}

func (a *rounds) add(p pair) {
	put := p50(p.ref.claim)
	a.refRate = append(a.refRate, p.ref.perSecond)
	a.ownRate = append(a.ownRate, p.own.perSecond)
	a.ratio = append(a.ratio, p.own.perSecond/p.ref.perSecond)
	a.used = append(a.used, p.own.used)
	a.claimToPut = append(a.claimToPut, p50(p.own.claim)/put)
	a.handOverToPut = append(a.handOverToPut, p50(p.own.handOver)/put)
	a.ref.add(p.ref)
	a.own.add(p.own)
}

// fill computes the figures of a row from its rounds.
func (r *Row) fill(what string, pairs []pair) {
	var all rounds
	for _, p := range pairs {
		all.add(p)
	}
	r.Reference = &Reference{
		What: what, PerSecond: median(all.refRate),
		Put: summarize(all.ref.claim), Delete: summarize(all.ref.release),
	}
	switch r.Kind {
	case submit:
		r.fillSubmissions(&all)
	case admit:
		r.fillAdmissions(&all)
	default:
		r.fillClaims(&all)
	}
}

func (r *Row) fillClaims(all *rounds) {
	r.PerSecond, r.Ratio = median(all.ownRate), spread(all.ratio)
	r.Claim, r.Release = summarize(all.own.claim), summarize(all.own.release)
	r.ClaimToPut = spread(all.claimToPut)
	if r.hold > 0 {
		r.Held = summarize(all.own.held)
	}
	if r.slots() > 0 {
		r.HandOver, r.Used, r.HandOverToPut = summarize(all.own.handOver), spread(all.used), spread(all.handOverToPut)
	}
}

// add puts the samples of two loads together.
func (o *outcome) add(other outcome) {
	o.claim = append(o.claim, other.claim...)
	o.release = append(o.release, other.release...)
	o.held = append(o.held, other.held...)
	o.handOver = append(o.handOver, other.handOver...)
}

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
