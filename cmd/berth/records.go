package main

import (
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/sidecar"
)

// queuedRun is a run with its place in the queue; 0 is none.
type queuedRun struct {
	sidecar.Run
	Position int `json:"position"`
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
