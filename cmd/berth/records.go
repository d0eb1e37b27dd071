package main

import (
	"cmp"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

// What is printed as JSON has the types of the HTTP API, so that a program reads
// both in the same way. These make them of what etcd has told.

func poolRecord(p pool.Status) sidecar.Pool {
	return sidecar.Pool{
		Name: p.Name, Limit: p.Limit, Claimed: p.Claimed, Waiting: p.Waiting,
		LeaseDuration: sidecar.Duration(p.LeaseDuration), ReserveAfter: sidecar.Duration(p.ReserveAfter),
		Paused: p.Paused, Survives: sidecar.Duration(survives(p.LeaseDuration)),
		Deleted: p.Deleted, Problem: p.Problem,
	}
}

// survives is about how long etcd can be away without a holder being stopped
// that needs time to stop.
func survives(leaseDuration time.Duration) time.Duration {
	return lease.Survives(leaseDuration, lease.StopGrace(leaseDuration)).Round(time.Second)
}

// leaseEnds tells how long leases still live unless they are renewed.
type leaseEnds map[store.LeaseID]time.Duration

func poolDetail(d pool.Detail, ends leaseEnds) sidecar.PoolDetail {
	r := sidecar.PoolDetail{Pool: poolRecord(d.Status), Holders: []sidecar.Holder{}, Waiters: []sidecar.Waiter{}}
	for _, h := range d.Holders {
		if _, known := ends[h.Lease]; !known {
			r.ExpiriesUnknown++
		}
		r.Holders = append(r.Holders, sidecar.Holder{
			Claim: h.Claim, Host: h.Host, Instance: h.Instance, RunID: h.Run, StepKey: h.Step, PID: h.PID, Labels: h.Labels,
			Slots: h.Slots, Since: h.Since, ExpiresIn: sidecar.Duration(ends[h.Lease]), Fence: h.Fence,
		})
	}
	for _, w := range d.Waiters {
		r.Waiters = append(r.Waiters, sidecar.Waiter{
			Claim: w.Claim, Host: w.Host, Instance: w.Instance, RunID: w.Run, StepKey: w.Step, PID: w.PID, Labels: w.Labels,
			Slots: w.Slots, Position: w.Position, Priority: w.Priority, Since: w.Since, Reason: w.Reason,
		})
	}
	return r
}

func heldClaim(h pool.HolderStatus) sidecar.Claim {
	return sidecar.Claim{
		ID: h.Claim, State: sidecar.StateHeld, Pools: h.Pools, Priority: h.Priority,
		Host: h.Host, Instance: h.Instance, RunID: h.Run, StepKey: h.Step, PID: h.PID, Labels: h.Labels,
		Fence: h.Fence, ClaimedAt: h.Since,
	}
}

func waitingClaim(w pool.WaiterStatus) sidecar.Claim {
	return sidecar.Claim{
		ID: w.Claim, State: sidecar.StateWaiting, Pools: w.Pools, Priority: w.Priority,
		Host: w.Host, Instance: w.Instance, RunID: w.Run, StepKey: w.Step, PID: w.PID, Labels: w.Labels,
		QueuedAt: w.Since, Position: w.Position, Reason: w.Reason,
	}
}

func whyRecord(w pool.Why) sidecar.Why {
	if w.Waiter == nil {
		return sidecar.Why{Claim: heldClaim(*w.Held)}
	}
	return sidecar.Why{Claim: waitingClaim(*w.Waiter), Reason: reasonRecord(w.Reason)}
}

func reasonRecord(r pool.Reason) *sidecar.Reason {
	out := &sidecar.Reason{Text: r.Text, Position: r.Position, Line: r.Line, Since: r.Since}
	for _, s := range r.Pools {
		out.Pools = append(out.Pools, sidecar.Shortage{
			Pool: s.Pool, Wanted: s.Wanted, Limit: s.Limit, Claimed: s.Claimed, Short: s.Short, Paused: s.Paused,
		})
		for _, h := range s.Holders {
			out.Holders = append(out.Holders, sidecar.HolderRef{
				Pool: s.Pool, Claim: h.Claim, Host: h.Host, RunID: h.Run, StepKey: h.Step, Slots: h.Slots,
			})
		}
	}
	return out
}

// listOf makes what lists are printed as of some things; none make no null.
func listOf[T, R any](all []T, record func(T) R) sidecar.List[R] {
	items := make([]R, 0, len(all))
	for _, v := range all {
		items = append(items, record(v))
	}
	return sidecar.List[R]{Items: items}
}

// What is printed of runs as JSON has the types of the HTTP API, as with pools.

// reasonOf says why a run is queued still, or why it ended as it did.
func reasonOf(r sidecar.Run) string {
	if r.Status == string(run.Queued) {
		return cmp.Or(r.BlockReason, "not looked at yet")
	}
	return r.Error
}

// queuedRun is a run with its place in the queue; 0 is none.
type queuedRun struct {
	sidecar.Run
	Position int `json:"position"`
}

func runWhyRecord(w *run.Why, holds []step.Hold) sidecar.RunWhy {
	record := sidecar.RunWhy{
		Run: sidecar.RunOf(w.Run), Position: w.Position, Line: w.Line,
		InTheWay: listOf(w.InTheWay, sidecar.RunOf).Items, Estimate: sidecar.Duration(w.Estimate),
		Steps: sidecar.StepHoldsOf(holds),
	}
	if record.Reason = reasonOf(record.Run); w.Run.Status != run.Queued {
		record.Reason = standText(w.Run) + sidecar.HoldsText(holds)
	}
	return record
}

// standText says how a run stands that is not queued.
func standText(r *run.Run) string {
	if r.Status.Ended() {
		return endText(r)
	}
	return progressText(r, "")
}

func runEventRecord(e run.LoggedEvent) sidecar.RunEvent {
	return sidecar.RunEvent{
		Type: string(e.Type), At: e.At, By: e.By, Reason: e.Reason, Metadata: e.Metadata, Revision: e.Revision,
	}
}

// limitsRecord is what limits are printed as: as in the file of export, with what is
// used of them.
type limitsRecord struct {
	exportedLimits
	Used usedRecord `json:"used"`
}

// usedRecord is what is used of limits, by their names in [exportedLimits]. Fullest is the
// value that Tags has the use of, where each value has a limit of its own.
type usedRecord struct {
	exportedLimits
	Fullest map[string]string `json:"fullest,omitempty"`
}

func limitsRecordOf(l run.Limits, used []usedLimit) limitsRecord {
	r := limitsRecord{exportedLimits: exportLimits(l)}
	r.Used.Tags, r.Used.Fullest = map[string]int{}, map[string]string{}
	for _, u := range used {
		if u.name == maxRuns {
			r.Used.MaxConcurrentRuns = u.used
			continue
		}
		r.Used.Tags[u.name] = u.used
		if u.value != "" {
			r.Used.Fullest[u.name] = u.value
		}
	}
	return r
}
