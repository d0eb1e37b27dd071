package bench

import "fmt"

// stepTargets is the table of steps.
func stepTargets() []target {
	return []target{
		{"4 workers × 10, no limits", "baseline/4w/10r", false, 1.0, "× the floor of claims, 64 clients", stepRatio},
		{"a step over its life, no limits", "baseline/4w/10r", true, 1, "etcd transactions", stepTransactions},
		{"tasks without a limit where others have one", "unlimited/4w/10r", true, 0, "claims of slots", slotClaims},
		{"and what is written of a step", "unlimited/4w/10r", true, 1.01, "× the writes without a task", stepWrites},
		{"all limited", "enabled/4w/10r", false, 0.85, "× without limits", stepRatio},
		{"a step over its life, all limited", "enabled/4w/10r", true, 1, "etcd transactions", stepTransactions},
		{"taking with a slot, p50", "enabled/4w/10r", true, 1, "ms more", takeAdded},
		{"completing with a slot, p50", "enabled/4w/10r", true, 1, "ms more", completeAdded},
		{"1 of 100 limited", "mixed/4w/10r", false, 0.95, "× without limits", stepRatio},
		{"taking with a slot, one at a time, p50", "enabled/1w/1r", true, 1, "ms more", takeAdded},
		{"completing with a slot, one at a time, p50", "enabled/1w/1r", true, 1, "ms more", completeAdded},
		{"8 workers × 30, limit 500", "high/8w/30r", false, 0.85, "× without limits", stepRatio},
	}
}

func stepRatio(r *Row) (float64, string, bool) {
	if r.StepLoads == nil || r.Ratio == nil {
		return 0, "", false
	}
	return r.Ratio.Median, fmt.Sprintf("%.0f/s against %.0f/s (rounds %.2f to %.2f), %d steps each",
		r.StepLoads.Own.PerSecond, r.Reference.PerSecond, r.Ratio.Low, r.Ratio.High, r.Case.Steps), true
}

func stepTransactions(r *Row) (float64, string, bool) {
	if r.StepLoads == nil {
		return 0, "", false
	}
	c := r.StepLoads.Own.Cost
	return c.Transactions, fmt.Sprintf("%.3f, %.3f reads, %.3f entries of etcd's log", c.Transactions, c.Reads, c.Entries), true
}

func slotClaims(r *Row) (float64, string, bool) {
	if r.StepLoads == nil {
		return 0, "", false
	}
	own, ref := r.StepLoads.Own, r.StepLoads.Unlimited
	return float64(own.SlotClaims), fmt.Sprintf("%d transactions of slots; %.3f transactions and %.3f reads a step against %.3f and %.3f",
		own.SlotTransactions, own.Cost.Transactions, own.Cost.Reads, ref.Cost.Transactions, ref.Cost.Reads), true
}

func stepWrites(r *Row) (float64, string, bool) {
	if r.StepLoads == nil {
		return 0, "", false
	}
	own, ref := r.StepLoads.Own.Cost.Operations, r.StepLoads.Unlimited.Cost.Operations
	if own == nil || ref == nil || ref.Writes() == 0 {
		return 0, "", false
	}
	return own.Writes() / ref.Writes(), fmt.Sprintf("%.2f puts, %.2f deletes, %.2f ranges against %.2f, %.2f, %.2f",
		own.Puts, own.Deletes, own.Ranges, ref.Puts, ref.Deletes, ref.Ranges), true
}

func takeAdded(r *Row) (float64, string, bool) {
	if r.StepLoads == nil || r.StepLoads.TakeAdded == nil {
		return 0, "", false
	}
	return r.StepLoads.TakeAdded.Median, fmt.Sprintf("%s against %s", r.StepLoads.Own.Take, r.StepLoads.Unlimited.Take), true
}

func completeAdded(r *Row) (float64, string, bool) {
	if r.StepLoads == nil || r.StepLoads.CompleteAdded == nil {
		return 0, "", false
	}
	return r.StepLoads.CompleteAdded.Median, fmt.Sprintf("%s against %s", r.StepLoads.Own.Complete, r.StepLoads.Unlimited.Complete), true
}
