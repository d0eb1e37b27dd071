package e2e

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// The rules that a [RunHistory] checks.
const (
	// RunLimits: whenever a run is admitted, no limit is exceeded.
	RunLimits Rule = "limits of runs"
	// RunWays: a run goes from status to status as it may.
	RunWays Rule = "ways of runs"
	// RunReasons: a run that does not wait has no reason to.
	RunReasons Rule = "reasons of runs"
	// RunSlots: a run holds the slots that it needs from its admission on, for as long
	// as its executor is seen to live.
	RunSlots Rule = "slots of runs"
)

// RunHistory is what a watch has delivered of runs and their limits. Like [History] it
// reads values by itself.
type RunHistory struct {
	keys   store.Keys
	limits runLimits
	runs   map[string]*runSeen
	// Admissions counts how often each run was admitted, Order is in which order.
	Admissions map[string]int
	Order      []string
	slots      *slotsSeen
	violations []Violation

	rev      int64 // that is being taken
	admitted bool  // a run was, at rev
}

// runSeen is a run as its record shows it.
type runSeen struct {
	Status string            `json:"status"`
	Tags   map[string]string `json:"tags"`
	Pools  map[string]int    `json:"pools"`
	Claim  string            `json:"claim"`
	Block  *struct {
		Text string `json:"text"`
	} `json:"block"`
}

func (r *runSeen) inProgress() bool { return r.Status == "not_started" || r.Status == "running" }

type runLimits struct {
	Max  int `json:"max_concurrent_runs"`
	Tags []struct {
		Key    string `json:"key"`
		Value  string `json:"value"`
		Unique bool   `json:"per_unique_value"`
		Limit  int    `json:"limit"`
	} `json:"tags"`
}

// NewRunHistory returns a history that has seen nothing.
func NewRunHistory(keys store.Keys) *RunHistory {
	return &RunHistory{
		keys: keys, limits: runLimits{Max: 10}, runs: map[string]*runSeen{}, Admissions: map[string]int{},
		slots: newSlotsSeen(keys),
	}
}

// Violations are the promises that were broken.
func (h *RunHistory) Violations() []Violation {
	h.check()
	return h.violations
}

// Count is how many runs have that status.
func (h *RunHistory) Count(status string) int {
	n := 0
	for _, r := range h.runs {
		if r.Status == status {
			n++
		}
	}
	return n
}

// Reasons are why runs wait, as their records say, by id.
func (h *RunHistory) Reasons() map[string]string {
	all := map[string]string{}
	for id, r := range h.runs {
		if r.Block != nil {
			all[id] = r.Block.Text
		}
	}
	return all
}

// runWays are the ways that there are.
var runWays = map[string]string{
	"":            "queued storing",
	"storing":     "queued canceled", // its steps are written before it is queued
	"queued":      "queued not_started canceled",
	"not_started": "running queued failed canceled",
	"running":     "succeeded queued failed canceled",
}

// Event takes one event, in order.
func (h *RunHistory) Event(ev *mvccpb.Event) {
	if ev.Kv.ModRevision != h.rev {
		h.check()
		h.rev = ev.Kv.ModRevision
	}
	key := string(ev.Kv.Key)
	if key == h.keys.Limits() && ev.Type == mvccpb.Event_PUT {
		h.limits = runLimits{}
		if err := json.Unmarshal(ev.Kv.Value, &h.limits); err != nil {
			h.violate(Readable, "%s: %v", key, err)
		}
	}
	if id, ok := strings.CutPrefix(key, h.keys.Runs()); ok {
		h.admitted = h.run(id, ev) || h.admitted
	}
	if err := h.slots.event(ev); err != nil {
		h.violate(Readable, "%s: %v", key, err)
	}
}

// run takes one record, and tells whether it was admitted.
func (h *RunHistory) run(id string, ev *mvccpb.Event) (admitted bool) {
	if ev.Type == mvccpb.Event_DELETE {
		delete(h.runs, id)
		return false
	}
	now := &runSeen{}
	if err := json.Unmarshal(ev.Kv.Value, now); err != nil {
		h.violate(Readable, "%s: %v", ev.Kv.Key, err)
		return false
	}
	was := ""
	if old := h.runs[id]; old != nil {
		was = old.Status
	}
	h.runs[id] = now
	if !strings.Contains(" "+runWays[was]+" ", " "+now.Status+" ") {
		h.violate(RunWays, "%s from %q to %q", id, was, now.Status)
	}
	if now.Status != "queued" && now.Block != nil {
		h.violate(RunReasons, "%s is %s: %s", id, now.Status, now.Block.Text)
	}
	if now.Status == "not_started" && was == "queued" {
		h.Admissions[id]++
		h.Order = append(h.Order, id)
		return true
	}
	return false
}

// check judges a revision that is whole: what is in progress after one that has
// admitted a run, and who holds slots.
func (h *RunHistory) check() {
	h.checkSlots()
	if !h.admitted {
		return
	}
	h.admitted = false
	all, used := 0, map[string]int{}
	for _, r := range h.runs {
		if !r.inProgress() {
			continue
		}
		all++
		for key, value := range r.Tags {
			used[key]++
			used[key+"="+value]++
		}
	}
	if h.limits.Max >= 0 && all > h.limits.Max {
		h.violate(RunLimits, "%d of %d runs are in progress", all, h.limits.Max)
	}
	for _, l := range h.limits.Tags {
		for tag, n := range used {
			about := tag == l.Key && l.Value == "" && !l.Unique || tag == l.Key+"="+l.Value && l.Value != "" ||
				l.Unique && strings.HasPrefix(tag, l.Key+"=")
			if about && n > l.Limit {
				h.violate(RunLimits, "%d of %d runs with %s are in progress", n, l.Limit, tag)
			}
		}
	}
}

func (h *RunHistory) violate(r Rule, format string, args ...any) {
	h.violations = append(h.violations, Violation{Revision: h.rev, Rule: r, Text: fmt.Sprintf(format, args...)})
}
