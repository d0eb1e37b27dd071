package engine

import (
	"context"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool/dispatch"
	"github.com/berthhq/berth/pool/owner"
	"github.com/berthhq/berth/pool/wire"
)

// scrapeTimeout bounds a scrape while the engine has not started yet.
const scrapeTimeout = time.Second

// metrics are what an engine exports. What the state machines count is read from them at each scrape.
type metrics struct {
	wait     prometheus.Histogram
	refusals *prometheus.CounterVec
	losses   *prometheus.CounterVec

	held, waiting, granted, conflicts, queued, batches, unknown, sizes     *prometheus.Desc
	active, demands, pending, taken, offers, ended, silent, advance, loans *prometheus.Desc
	changes, dispatched, reread                                            *prometheus.Desc
}

// newMetrics returns the metrics of an engine of a process of a kind, which is a label of those of the dispatcher: a process has two
// engines if it is a coordinator.
func newMetrics(kind wire.Kind) *metrics {
	claims := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	role := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, prometheus.Labels{"kind": string(kind)})
	}
	return &metrics{
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "berth_claim_wait_seconds",
			Help:    "Time from asking for a claim to its grant.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 12), // 1 ms … 70 min
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_claims_refused_total", Help: "Claims not granted, by reason.",
		}, []string{"reason"}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_claims_lost_total", Help: "Claims that ended before their release, by reason.",
		}, []string{"reason"}),
		held:      claims("berth_claims_held", "Claims of this instance that hold slots of a pool.", "pool"),
		waiting:   claims("berth_claims_waiting", "Claims of this instance that wait for a pool.", "pool"),
		granted:   claims("berth_claims_granted_total", "Claims granted to this instance, by how.", "how"),
		conflicts: claims("berth_claim_conflicts_total", "Grants that another instance was faster with, by how they were tried; each is tried again.", "how"),
		queued:    claims("berth_claims_queued_total", "Claims that had to wait in the wait queue, by why.", "why"),
		batches:   claims("berth_claim_batches_total", "Transactions of claims and releases (claims), and of the wait queue (queue).", "of"),
		unknown:   claims("berth_claim_batches_outcome_unknown_total", "Transactions without an answer, whose outcome had to be resolved.", "of"),
		sizes:     claims("berth_claim_batch_size", "Claims and releases in one transaction."),

		active:     role("berth_dispatcher_active", "1 while this instance dispatches."),
		demands:    role("berth_dispatcher_demands", "Claims that wait, of all hosts, as far as this instance dispatches."),
		pending:    role("berth_dispatcher_pending_pools", "Pools in which nobody claims directly because claims wait, as far as this instance dispatches."),
		taken:      role("berth_dispatcher_takeovers_total", "Times that this instance has become the dispatcher, by why.", "why"),
		offers:     role("berth_dispatcher_offers_total", "Claims that this instance, as the dispatcher, has offered slots."),
		ended:      role("berth_dispatcher_offers_ended_total", "Offers that have ended, by how.", "how"),
		silent:     role("berth_dispatcher_silent_total", "Offers that were taken back since the instance that they were for has not answered."),
		advance:    role("berth_dispatcher_advance_offers_total", "Instances that were offered the slots that they release."),
		loans:      role("berth_dispatcher_loans_waited_total", "Claims that had to wait in a plan for slots that were offered to others."),
		changes:    role("berth_dispatcher_pending_changes_total", "Pools that this instance, as the dispatcher, has made pending, by why, or no longer pending (ended).", "why"),
		dispatched: role("berth_dispatcher_batches_total", "Transactions of this instance as the dispatcher."),
		reread:     role("berth_watch_resyncs_total", "Times that this instance, as the dispatcher, had to read all waiting claims again, since its watch was silent or could not go on."),
	}
}

// ofClaims are the metrics of the claims of the instance.
func (m *metrics) ofClaims() []*prometheus.Desc {
	return []*prometheus.Desc{m.held, m.waiting, m.granted, m.conflicts, m.queued, m.batches, m.unknown, m.sizes}
}

// ofRole are the metrics of the dispatcher.
func (m *metrics) ofRole() []*prometheus.Desc {
	return []*prometheus.Desc{m.active, m.demands, m.pending, m.taken, m.offers, m.ended, m.silent, m.advance, m.loans, m.changes, m.dispatched, m.reread}
}

// refused counts a request for a claim that was not granted.
func (m *metrics) refused(err error) { m.refusals.WithLabelValues(string(problem.CodeOf(err))).Inc() }

// lost counts a claim that has ended.
func (m *metrics) lost(why error) { m.losses.WithLabelValues(string(problem.CodeOf(why))).Inc() }

// waited records how long a claim has waited for its grant.
func (m *metrics) waited(d time.Duration) { m.wait.Observe(d.Seconds()) }

// Describe makes an engine a [prometheus.Collector]: of its claims, and of what it does as the dispatcher. An engine of a coordinator
// exports only the latter, and can be in one registry with another one.
func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range e.metrics.ofRole() {
		ch <- d
	}
	if e.cfg.Kind == wire.Coordinator {
		return
	}
	for _, d := range e.metrics.ofClaims() {
		ch <- d
	}
	for _, c := range []prometheus.Collector{e.metrics.wait, e.metrics.refusals, e.metrics.losses} {
		c.Describe(ch)
	}
}

// Collect yields nothing while the engine does not run.
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	s, err := await(ctx, e, func(reply chan<- scrape) { reply <- e.scrape() })
	if err != nil {
		return
	}
	s.role(e.metrics, ch)
	if e.cfg.Kind != wire.Coordinator {
		s.claims(e.metrics, ch)
	}
}

// scrape is what an engine has counted, at one moment.
type scrape struct {
	held, waiting    map[string]int // claims, by pool
	owner            owner.Counts
	sent, unknown    map[string]int // transactions
	active           bool
	demands, pending int
	taken            map[string]int
	dispatch         dispatch.Counts
	dispatched       int
	reread           int
}

// scrape returns what was counted so far.
func (l *loop) scrape() scrape {
	c := l.owner.Counts()
	s := scrape{
		held: map[string]int{}, waiting: map[string]int{},
		owner:   owner.Counts{Granted: maps.Clone(c.Granted), Conflicts: maps.Clone(c.Conflicts), Queued: maps.Clone(c.Queued), Sizes: c.Sizes},
		sent:    map[string]int{"claims": l.commits.sent, "queue": l.queue.sent},
		unknown: map[string]int{"claims": l.commits.unknown, "queue": l.queue.unknown},
		active:  l.hosting.role != 0, demands: l.hosting.demands(), pending: l.hosting.pools(),
		taken: l.polls.succession.Taken(), dispatch: l.hosting.counts(), dispatched: l.hosting.writer.sent, reread: l.hosting.reread,
	}
	for c, e := range l.requests.of {
		_, waits := c.Waits()
		for name := range e.request.Slots {
			switch {
			case e.granted != nil:
				s.held[name]++
			case waits:
				s.waiting[name]++
			}
		}
	}
	return s
}

// yield sends a value.
func yield(ch chan<- prometheus.Metric, d *prometheus.Desc, t prometheus.ValueType, n int, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, t, float64(n), labels...)
}

// claims yields the metrics of claims.
func (s *scrape) claims(m *metrics, ch chan<- prometheus.Metric) {
	for name, n := range s.held {
		yield(ch, m.held, prometheus.GaugeValue, n, name)
	}
	for name, n := range s.waiting {
		yield(ch, m.waiting, prometheus.GaugeValue, n, name)
	}
	for _, how := range owner.Hows() {
		yield(ch, m.granted, prometheus.CounterValue, s.owner.Granted[how], string(how))
		if how != owner.TakenOver { // which another instance can't be faster with
			yield(ch, m.conflicts, prometheus.CounterValue, s.owner.Conflicts[how], string(how))
		}
	}
	for _, why := range owner.Whys() {
		yield(ch, m.queued, prometheus.CounterValue, s.owner.Queued[why], string(why))
	}
	for of, n := range s.sent {
		yield(ch, m.batches, prometheus.CounterValue, n, of)
		yield(ch, m.unknown, prometheus.CounterValue, s.unknown[of], of)
	}
	sizes, upTo := s.owner.Sizes, map[float64]uint64{}
	for i, n := range sizes.UpTo {
		upTo[float64(int(1)<<i)] = uint64(n)
	}
	ch <- prometheus.MustNewConstHistogram(m.sizes, uint64(sizes.Count), float64(sizes.Sum), upTo)
	for _, c := range []prometheus.Collector{m.wait, m.refusals, m.losses} {
		c.Collect(ch)
	}
}

// role yields the metrics of the dispatcher.
func (s *scrape) role(m *metrics, ch chan<- prometheus.Metric) {
	active := 0
	if s.active {
		active = 1
	}
	yield(ch, m.active, prometheus.GaugeValue, active)
	yield(ch, m.demands, prometheus.GaugeValue, s.demands)
	yield(ch, m.pending, prometheus.GaugeValue, s.pending)
	for _, why := range dispatch.Reasons() {
		yield(ch, m.taken, prometheus.CounterValue, s.taken[why], why)
	}
	c := &s.dispatch
	yield(ch, m.offers, prometheus.CounterValue, c[dispatch.Offered]+c[dispatch.OfferedOwn])
	for how, of := range map[string]dispatch.Count{"committed": dispatch.Committed, "declined": dispatch.Declined, "withdrawn": dispatch.Withdrawn} {
		yield(ch, m.ended, prometheus.CounterValue, c[of], how)
	}
	yield(ch, m.silent, prometheus.CounterValue, c[dispatch.Silent])
	yield(ch, m.advance, prometheus.CounterValue, c[dispatch.Advanced])
	yield(ch, m.loans, prometheus.CounterValue, c[dispatch.WaitedForLoan])
	for why, of := range map[string]dispatch.Count{
		"short": dispatch.PendingShort, "reserved": dispatch.PendingReserved, "failed": dispatch.PendingFailed, "ended": dispatch.PendingEnded,
	} {
		yield(ch, m.changes, prometheus.CounterValue, c[of], why)
	}
	yield(ch, m.dispatched, prometheus.CounterValue, s.dispatched)
	yield(ch, m.reread, prometheus.CounterValue, s.reread)
}
