package bench

import "fmt"

// queueTargets is the table of the queue.
func queueTargets() []target {
	return []target{
		{"submissions, 64 clients", "submit/64c", false, 0.8, "× the floor", submissionsToFloor},
		{"admission p50, where there is room", "admit/1c", true, 3, "× a plain put", admissionP50},
		{"plan p50, nothing has changed", "plan/idle/100000q", true, 20, "ms", planP50},
		{"plan p50, the last run may go", "plan/last/100000q", true, 20, "ms", planP50},
		{"plan p50, 1,024 runs may go", "plan/many/100000q", true, 20, "ms", planP50},
	}
}

func submissionsToFloor(r *Row) (float64, string, bool) {
	if r.Submissions == nil || r.Ratio == nil {
		return 0, "", false
	}
	return r.Ratio.Median, fmt.Sprintf("%.0f/s against %.0f/s (rounds %.2f to %.2f)",
		r.Submissions.PerSecond, r.Reference.PerSecond, r.Ratio.Low, r.Ratio.High), true
}

func admissionP50(r *Row) (float64, string, bool) {
	a := r.Admissions
	if a == nil || a.Seen == nil || r.Reference.Put == nil || r.Reference.Delete == nil {
		return 0, "", false
	}
	return a.SeenToPut.Median, fmt.Sprintf("%s against %.3f ms (rounds %.2f to %.2f); a plain delete after the same pause: %.3f ms",
		a.Seen, r.Reference.Put.P50, a.SeenToPut.Low, a.SeenToPut.High, r.Reference.Delete.P50), true
}

func planP50(r *Row) (float64, string, bool) {
	if r.Plan == nil {
		return 0, "", false
	}
	return r.Plan.P50, fmt.Sprintf("%s of %d plans", r.Plan, r.Plan.Count), true
}
