package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// The rules that a [StepHistory] checks.
const (
	// StepWindows: no more instances are in flight than the window of their step and
	// the cap of their run allow.
	StepWindows Rule = "windows of steps"
	// StepPools: no more instances are run than the pools allow that they need, and
	// each is taken together with its slots.
	StepPools Rule = "pools of steps"
	// StepWays: an instance goes from status to status as it may, and its starts are
	// counted right.
	StepWays Rule = "ways of steps"
	// StepOrder: the instances of a step are published in the order of their index.
	StepOrder Rule = "order of steps"
	// StepNeeds: no instance is published before all that its step needs has
	// succeeded.
	StepNeeds Rule = "needs of steps"
	// StepAlone: an instance is run by one executor at a time, who is seen to live, and
	// only that one says how it has ended.
	StepAlone Rule = "executors of steps"
	// StepQueued: an instance stands in a queue while it is scheduled, and only then.
	StepQueued Rule = "queues of steps"
	// StepStopped: nothing is started of a run that was canceled or has failed.
	StepStopped Rule = "canceled runs"
	// StepWhole: a run has succeeded when all of its instances have.
	StepWhole Rule = "ends of runs"
)

// StepHistory is what a watch has delivered of the steps of runs. Like [History] it reads
// values by itself, and checks each revision.
type StepHistory struct {
	keys       store.Keys
	runs       map[string]*steppedRun
	limits     map[string]int       // of pools
	queued     map[string]*StepSeen // by their places
	turns      []*turn
	violations []Violation

	// What the revision at hand has touched.
	rev     int64
	touched map[*StepSeen]bool
	taken   map[taking]bool // what was taken
	freed   map[taking]bool // the slots whose keys were deleted, or put again

	// slots are those of each key. Had is their number on each lease, and needed the number that
	// running instances need.
	slots       map[string]slotsOf
	had, needed map[taking]int
}

// slotsOf is what one key holds.
type slotsOf struct {
	taking
	n int
}

// turn is one execution of an instance that needs slots, from the revision that took it
// to the one from which it is not seen any more.
type turn struct {
	took     map[string]int
	lease    int64
	limits   map[string]int // as it was taken
	from, to int64          // to is 0 while it goes on
	// unused says that its slots may have been free before its record says so: it was handed
	// back, or its worker was lost, which has stopped it first.
	unused bool
	over   bool // it no longer needs its slots
}

// free notes that the slots of an execution may be free already.
func (h *StepHistory) free(t *turn) {
	if t != nil {
		t.unused = true
		h.endUse(t)
	}
}

// endUse records that an execution no longer needs its slots.
func (h *StepHistory) endUse(t *turn) {
	if !t.over {
		t.over = true
		for pool, n := range t.took {
			at := taking{t.lease, pool}
			h.needed[at] = max(0, h.needed[at]-n) // its slots may have been lost before
		}
	}
}

// taking is what was taken of a pool on a lease.
type taking struct {
	lease int64
	pool  string
}

// steppedRun is a run with its steps.
type steppedRun struct {
	id       string
	status   string
	most     int // max_concurrent_steps
	total    int
	canceled bool
	inFlight int
	peak     int
	steps    []*stepSeen
	seen     map[string]*StepSeen // instances, by STEP/INDEX
}

// stepSeen is a step as its run's graph shows it.
type stepSeen struct {
	Name        string         `json:"name"`
	Needs       []int          `json:"needs"`
	Count       int            `json:"count"`
	Concurrency int            `json:"concurrency"`
	Pools       map[string]int `json:"pools"`
	Task        string         `json:"task"`
	Retries     int            `json:"retries"`

	inFlight, peak, succeeded int
	published, highest        int // instances that ever were, and the highest index among them
}

// StepSeen is an instance as its record shows it.
type StepSeen struct {
	ID store.StepID
	// Status is empty before its first publication.
	Status  string
	Attempt int
	// Error is why its last attempt has failed.
	Error string
	// Hosts are the instances of berth that have started it, one for each start.
	Hosts []string
	// Succeeded counts the successful executions that were recorded.
	Succeeded int

	run     *steppedRun
	step    *stepSeen
	rev     int64 // of its record
	started int64 // the revision of its last start
	by      string
	active  map[string]int64 // hosts where it is seen to be run, with the revision
	ready   map[string]int64 // queued places, with the revision
	turn    *turn            // while it is seen to be run with slots
}

// NewStepHistory returns a history that has seen nothing.
func NewStepHistory(keys store.Keys) *StepHistory {
	return &StepHistory{
		keys: keys, runs: map[string]*steppedRun{}, limits: map[string]int{}, queued: map[string]*StepSeen{},
		touched: map[*StepSeen]bool{}, taken: map[taking]bool{}, freed: map[taking]bool{}, slots: map[string]slotsOf{}, had: map[taking]int{}, needed: map[taking]int{},
	}
}

// Event takes one event, in order.
func (h *StepHistory) Event(ev *mvccpb.Event) {
	if ev.Kv.ModRevision != h.rev {
		h.judgeAll()
		h.rev = ev.Kv.ModRevision
	}
	if err := h.event(string(ev.Kv.Key), ev.Type == mvccpb.Event_PUT, ev.Kv); err != nil {
		h.violate(Readable, "%s: %v", ev.Kv.Key, err)
	}
}

func (h *StepHistory) event(key string, put bool, kv *mvccpb.KeyValue) error {
	in := func(prefix string) (rest string, ok bool) { return strings.CutPrefix(key, prefix) }
	if rest, ok := in(h.keys.StepsAll()); ok {
		if strings.Contains(rest, "/") {
			return h.stepRecord(rest, put, kv)
		}
		return h.graph(rest, put, kv.Value)
	}
	if id, ok := in(h.keys.Runs()); ok {
		return h.runRecord(id, put, kv.Value)
	}
	if rest, ok := in(h.keys.ActiveAll()); ok {
		host, id, _ := strings.Cut(rest, "/")
		if !strings.Contains(id, "/") {
			return nil // a run's
		}
		return h.active(host, id, put, kv)
	}
	if rest, ok := in(h.keys.ReadyAll()); ok {
		return h.ready(rest, put, kv)
	}
	if id, ok := in(h.keys.CanceledAll()); ok {
		h.run(id).canceled = put
		return nil
	}
	if strings.HasPrefix(key, h.keys.Pools()) {
		return h.pool(key, put, kv)
	}
	return nil
}

func (h *StepHistory) run(id string) *steppedRun {
	r := h.runs[id]
	if r == nil {
		r = &steppedRun{id: id, seen: map[string]*StepSeen{}}
		h.runs[id] = r
	}
	return r
}

// runRecord takes the record of a run.
func (h *StepHistory) runRecord(id string, put bool, value []byte) error {
	r := h.run(id)
	if !put {
		delete(h.runs, id)
		return nil
	}
	var v struct {
		Status string `json:"status"`
		Steps  int    `json:"steps"`
		Most   int    `json:"max_concurrent_steps"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return err
	}
	r.status, r.most, r.total = v.Status, v.Most, v.Steps
	if v.Status != "succeeded" {
		return nil
	}
	for _, s := range r.steps {
		if s.succeeded != s.Count {
			h.violate(StepWhole, "run %s has succeeded with %d of %d of its step %s", id, s.succeeded, s.Count, s.Name)
		}
	}
	return nil
}

func (h *StepHistory) graph(id string, put bool, value []byte) error {
	if !put {
		return nil
	}
	var v struct {
		Steps []*stepSeen `json:"steps"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return err
	}
	if r := h.run(id); r.steps == nil {
		r.steps = v.Steps
		for _, s := range r.steps {
			s.highest = -1
		}
	}
	return nil
}

// instance finds one by the end of a key.
func (h *StepHistory) instance(text string) (*StepSeen, error) {
	id, err := store.ParseStepID(text)
	if err != nil {
		return nil, err
	}
	r := h.run(id.Run)
	i := r.seen[text]
	if i == nil {
		i = &StepSeen{ID: id, run: r, active: map[string]int64{}, ready: map[string]int64{}}
		for _, s := range r.steps {
			if s.Name == id.Step {
				i.step = s
			}
		}
		if i.step == nil || id.Index >= i.step.Count {
			return nil, fmt.Errorf("its run has no such instance")
		}
		r.seen[text] = i
	}
	h.touched[i] = true
	return i, nil
}

// stepWays are the ways that there are.
var stepWays = map[string]string{
	"":          "scheduled",
	"requested": "scheduled canceled",
	"scheduled": "running canceled",
	"running":   "succeeded failed canceled requested scheduled",
}

// stepRecord takes the record of an instance.
func (h *StepHistory) stepRecord(text string, put bool, kv *mvccpb.KeyValue) error {
	if !put {
		return nil // with its run, which is gone
	}
	i, err := h.instance(text)
	if err != nil {
		return err
	}
	var v struct {
		Status   string      `json:"status"`
		Attempt  int         `json:"attempt"`
		Error    string      `json:"error"`
		Executor *holder     `json:"executor"`
		EndFence store.Fence `json:"end_fence"`
	}
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		return err
	}
	was, attempt := i.Status, i.Attempt
	i.Status, i.Attempt, i.Error, i.rev = v.Status, v.Attempt, v.Error, kv.ModRevision
	if !strings.Contains(" "+stepWays[was]+" ", " "+v.Status+" ") {
		h.violate(StepWays, "%s from %q to %q", i.ID, was, v.Status)
	}
	switch {
	case was == "":
		h.publishedFirst(i)
	case v.Status == "running":
		attempt++
	case was == "running" && v.Status == "scheduled": // it was handed back
		attempt--
		h.free(i.turn)
	case was == "running" && v.Status != "canceled" && v.EndFence == 0: // not by its worker
		h.free(i.turn)
	}
	if v.Attempt != attempt || attempt > i.step.Retries+1 {
		h.violate(StepWays, "%s is %s with %d starts, and was started %d times of %d", i.ID, v.Status, v.Attempt, attempt, i.step.Retries+1)
	}
	by := 0
	if inFlight(v.Status) {
		by++
	}
	if inFlight(was) {
		by--
	}
	i.step.inFlight, i.run.inFlight = i.step.inFlight+by, i.run.inFlight+by
	switch {
	case v.Status == "running":
		h.startedBy(i, v.Executor)
	case v.Status == "succeeded":
		i.Succeeded++
		i.step.succeeded++
		if v.EndFence != store.FenceAt(i.started) {
			h.violate(StepAlone, "%s was ended by fence %d, and was started with %d", i.ID, v.EndFence, store.FenceAt(i.started))
		}
	}
	return nil
}

func inFlight(status string) bool { return status == "scheduled" || status == "running" }

// publishedFirst records that an instance may be taken for the first time.
func (h *StepHistory) publishedFirst(i *StepSeen) {
	i.step.published++
	i.step.highest = max(i.step.highest, i.ID.Index)
	for _, n := range i.step.Needs {
		if need := i.run.steps[n]; need.succeeded != need.Count {
			h.violate(StepNeeds, "%s is published with %d of %d of step %s", i.ID, need.succeeded, need.Count, need.Name)
		}
	}
}

// startedBy records that an instance is run.
func (h *StepHistory) startedBy(i *StepSeen, by *holder) {
	if by == nil {
		h.violate(StepAlone, "%s is running without an executor", i.ID)
		return
	}
	i.started, i.by = h.rev, by.Host
	i.Hosts = append(i.Hosts, by.Host+"/"+by.Instance)
	if i.run.canceled {
		h.violate(StepStopped, "%s is started", i.ID)
	}
}

// active records that the executor of an instance is seen on a host, or no longer.
func (h *StepHistory) active(host, text string, put bool, kv *mvccpb.KeyValue) error {
	i, err := h.instance(text)
	if err != nil {
		return err
	}
	if !put {
		delete(i.active, host)
		if i.turn != nil {
			i.turn.to = kv.ModRevision
			h.endUse(i.turn)
		}
		return nil
	}
	if kv.Lease == 0 {
		h.violate(Leased, "%s hangs on no lease", kv.Key)
	}
	i.active[host] = kv.ModRevision
	took := maps.Clone(i.step.Pools)
	if pool := "task." + i.step.Task; i.step.Task != "" {
		if _, ok := h.limits[pool]; ok {
			took = map[string]int{pool: 1}
			maps.Copy(took, i.step.Pools)
		}
	}
	i.turn = nil
	if len(took) > 0 {
		i.turn = &turn{took: took, lease: kv.Lease, limits: maps.Clone(h.limits), from: kv.ModRevision}
		h.turns = append(h.turns, i.turn)
	}
	for pool, n := range took {
		h.needed[taking{kv.Lease, pool}] += n
		h.taken[taking{kv.Lease, pool}] = true
	}
	return nil
}

// ready records that an instance is in a queue, or no longer.
func (h *StepHistory) ready(place string, put bool, kv *mvccpb.KeyValue) error {
	if !put {
		if i := h.queued[place]; i != nil {
			delete(h.queued, place)
			delete(i.ready, place)
			h.touched[i] = true
		}
		return nil
	}
	var v struct {
		Run, Step string
		Index     int
	}
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		return err
	}
	i, err := h.instance(store.StepID{Run: v.Run, Step: v.Step, Index: v.Index}.String())
	if err == nil {
		h.queued[place], i.ready[place] = i, kv.ModRevision
	}
	return err
}

// pool takes the events of a pool's limit and its slots.
func (h *StepHistory) pool(key string, put bool, kv *mvccpb.KeyValue) error {
	k, _, err := parseKey(h.keys, key)
	switch {
	case err != nil:
		return err
	case k.Kind == specKey && !put:
		delete(h.limits, k.Pool)
	case k.Kind == specKey:
		v, err := readSpec(kv.Value)
		if err != nil {
			return err
		}
		h.limits[k.Pool] = *v.Limit
	case k.isSlots():
		before := h.slots[key]
		h.had[before.taking] -= before.n
		h.freed[before.taking] = true
		delete(h.slots, key)
		if !put {
			return nil
		}
		v, err := readSlot(k, kv.Value)
		if err != nil {
			return err
		}
		h.slots[key] = slotsOf{taking{kv.Lease, k.Pool}, v.n()}
		h.had[h.slots[key].taking] += v.n()
	}
	return nil
}

func (h *StepHistory) violate(r Rule, format string, args ...any) {
	h.violations = append(h.violations, Violation{Revision: h.rev, Rule: r, Text: fmt.Sprintf(format, args...)})
}
