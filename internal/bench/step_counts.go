package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

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
