package lease

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The outcomes of a renewal and the causes of a loss, as labels.
const (
	outcomeOK     = "ok"
	outcomeFailed = "failed" // no answer in time, or a refusal
	outcomeGone   = "gone"   // etcd no longer knows the lease
	causeGone     = "gone"   // the same, for a loss
	causeExpired  = "expired"
	causeReplaced = "cluster_changed" // etcd is another cluster
)

type keeperMetrics struct {
	// renewals counts tries, by outcome.
	renewals *prometheus.CounterVec
	// lost counts leases, by cause.
	lost *prometheus.CounterVec
}

// newKeeperMetrics makes the metrics of a keeper. Functions leases and margin
// are called at each scrape.
func newKeeperMetrics(reg prometheus.Registerer, leases, margin func() float64) *keeperMetrics {
	with := promauto.With(reg)
	with.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_leases",
		Help: "Leases kept alive for claims.",
	}, leases)
	with.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_lease_margin_seconds",
		Help: "Time until the validity of a lease ends if no renewal succeeds: the least of all leases. NaN without leases.",
	}, margin)
	return &keeperMetrics{
		renewals: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_lease_renewals_total",
			Help: "Tries to renew a lease, by outcome: ok, failed, gone.",
		}, []string{"outcome"}),
		lost: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_lease_lost_total",
			Help: "Leases whose validity has ended, by cause: expired, gone, cluster_changed.",
		}, []string{"cause"}),
	}
}

// countLeases is the metric of that name.
func (k *Keeper) countLeases() float64 {
	k.lock()
	defer k.mu.Unlock()
	return float64(len(k.book.leases))
}

// leastMargin is the metric of that name.
func (k *Keeper) leastMargin() float64 {
	now := k.clock.Now()
	k.lock()
	defer k.mu.Unlock()
	least := math.NaN()
	for _, e := range k.book.leases {
		if remaining := e.window.Remaining(now).Seconds(); !(remaining >= least) {
			least = remaining
		}
	}
	return least
}
