package lease

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestMetricsTellWhatHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		if m := h.leastMargin(); !math.IsNaN(m) {
			t.Errorf("margin %v without leases", m)
		}
		h.run()
		id, other := h.acquire(10*time.Second, 1), h.acquire(time.Minute, 1)
		if m := h.leastMargin(); m != 9.5 {
			t.Errorf("margin %v, want that of the shorter lease", m)
		}
		h.wait(3250 * time.Millisecond)
		h.etcd.kill(id)
		h.wait(3250 * time.Millisecond)
		h.etcd.fault.Store(failing(store.ErrUnavailable))
		h.wait(time.Minute)
		h.wantValidityEnded(other)
		for series, least := range map[string]float64{
			"berth_lease_renewals_total ok":     1,
			"berth_lease_renewals_total failed": 5,
			"berth_lease_renewals_total gone":   1,
			"berth_lease_lost_total gone":       1,
			"berth_lease_lost_total expired":    1,
		} {
			if got := h.metric(series); !(got >= least) {
				t.Errorf("%s: %v, want %v at least", series, got, least)
			}
		}
		if got := h.metric("berth_leases"); got != 0 {
			t.Errorf("%v leases, want none", got)
		}
		if got := h.metric("berth_lease_margin_seconds"); !math.IsNaN(got) {
			t.Errorf("margin %v without leases", got)
		}
	})
}

// metric returns the value of a series, given as a name and the value of its
// label, if it has one; 0 if there is no such series.
func (h *harness) metric(series string) float64 {
	h.t.Helper()
	families, err := h.reg.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			if name == series {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func (h *harness) wantValidityEnded(id store.LeaseID) {
	h.t.Helper()
	for _, l := range h.losses() {
		if l.id == id && errors.Is(l.cause, ErrValidityEnded) {
			return
		}
	}
	h.t.Errorf("no validity ended of lease %s: %v", name(id), h.losses())
}
