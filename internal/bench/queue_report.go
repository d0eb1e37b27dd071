package bench

// Submissions are runs that were put into the queue, beside the floor: a put of
// one record for each.
type Submissions struct {
	// PerSecond is the median of the rounds.
	PerSecond float64 `json:"runs_per_second"`
	// Submit is the time from the asking to the answer.
	Submit *Latency `json:"submit"`
}

// Admissions are runs that were admitted by a coordinator that had nothing else to
// do.
type Admissions struct {
	// Seen is the time from the answer to a submission until the executor that waits
	// for the run has seen that it was admitted.
	Seen *Latency `json:"seen"`
	// SeenToPut is its p50 as a multiple of that of the floor's puts.
	SeenToPut *Spread `json:"seen_p50_to_put_p50"`
}

// Leader is what a coordinator takes that leads in this process. Megabytes are of
// 2^20 bytes.
type Leader struct {
	Queued     int `json:"queued"`
	InProgress int `json:"in_progress"`
	TagLimits  int `json:"tag_limits"`
	// Seconds are those from its start until each run had the reason noted for which
	// it is queued.
	Seconds float64 `json:"seconds"`
	// Heap is what garbage collection leaves of Go's heap, and Resident the memory of
	// the process after free memory was given back: how much more than before it
	// started.
	Heap     float64 `json:"heap_mb"`
	Resident float64 `json:"resident_mb"`
	// Peak is the most that was resident on the way there, likewise.
	Peak float64 `json:"peak_mb"`
	// Before is what was resident then: the benchmark itself.
	Before float64 `json:"before_mb"`
}

func (r *Row) fillSubmissions(all *rounds) {
	r.Ratio = spread(all.ratio)
	r.Submissions = &Submissions{PerSecond: median(all.ownRate), Submit: summarize(all.own.claim)}
}

func (r *Row) fillAdmissions(all *rounds) {
	r.Admissions = &Admissions{Seen: summarize(all.own.claim), SeenToPut: spread(all.claimToPut)}
}
