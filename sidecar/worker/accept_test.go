package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// What is promised of workers, of tasks with limits and of slots of instances.

func ofTask(name string) func(*step.Spec) { return func(s *step.Spec) { s.Task.Name = name } }
func from(name string, n int) func(*step.Spec) {
	return func(s *step.Spec) { s.Pools = map[string]int{name: n} }
}
func others(s *step.Spec) { s.OnFailure = step.Finish }

// steps counts what runs by step.
func (s *stage) steps() map[string]int {
	all := map[string]int{}
	for _, id := range s.running() {
		all[strings.Split(id, "/")[1]]++
	}
	return all
}

// reach waits until so many run, by step, and sees to it that it stays so over some
// looks of the workers.
func (s *stage) reach(t *testing.T, want map[string]int, workers ...*crew) {
	t.Helper()
	same := func() bool { return fmt.Sprint(s.steps()) == fmt.Sprint(want) }
	eventually(t, fmt.Sprintf("running are %v", want), same)
	for range 3 {
		for _, w := range workers {
			w.nudge(t)
		}
	}
	if !same() {
		t.Errorf("running are %v, want %v", s.steps(), want)
	}
}

// started is how many were.
func (s *stage) started() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// endAll ends what runs, one by one, until so many have ended.
func (s *stage) endAll(t *testing.T, n int, each func()) {
	t.Helper()
	for n > 0 {
		eventually(t, "something runs", func() bool { return len(s.running()) > 0 })
		for _, id := range s.running() {
			if s.end(id, succeeded) {
				n--
			}
		}
		each()
	}
}

func nothing() {}

// A restarted worker has what the one before had: it is full, and takes nothing.
func TestARestartedWorkerThatIsFullTakesNothing(t *testing.T) {
	y, s, dir := newYard(t), newStage(), t.TempDir()
	first := y.worker("a", dir, 2, s)
	y.submit("r", fan("m", 3, 0))
	s.runs(t, "r/m/000000", "r/m/000001")
	first.leave()
	next := y.worker("a", dir, 2, s)
	defer next.close(t)
	eventually(t, "both are back", func() bool { return next.Active() == 2 })
	s.reach(t, map[string]int{"m": 2}, next)
	if got := y.statuses("r", "m", 3); got[step.Running] != 2 || got[step.Scheduled] != 1 || s.started() != 2 {
		t.Errorf("%v, %d were started", got, s.started())
	}
	s.end("r/m/000000", succeeded)
	s.runs(t, "r/m/000001", "r/m/000002")
}

// Each worker that watches a queue is notified of what is published there, and fills its
// capacity; how much that is differs between workers.
func TestAPublicationWakesAllWorkersOfItsQueue(t *testing.T) {
	y, small, large := newYard(t), newStage(), newStage()
	a, b := y.worker("a", "", 1, small), y.worker("b", "", 3, large)
	defer a.close(t)
	defer b.close(t)
	y.submit("r", fan("m", 6, 0))
	small.reach(t, map[string]int{"m": 1}, a)
	large.reach(t, map[string]int{"m": 3}, b)
	small.end(small.running()[0], succeeded)
	eventually(t, "the small one has the next", func() bool { return len(small.running()) == 1 && small.started() == 2 })
	large.reach(t, map[string]int{"m": 3}, b)
}

// An idle worker can be stopped any number of times, and that writes nothing.
func TestStoppingAnIdleWorkerIsNoEvent(t *testing.T) {
	y, s := newYard(t), newStage()
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	for range 2 {
		ended := w.Drain(t.Context())
		w.Stop(t.Context())
		<-ended
	}
	all, err := store.ReadAll(t.Context(), y.runs.Backend, y.runs.Keys.EventsAll())
	if err != nil || len(all.KVs) > 0 {
		t.Errorf("%d events, %v", len(all.KVs), err)
	}
}

// However many workers and runs: of a task with a limit no more run, and as many as may.
func TestATasksLimitHoldsOverWorkersAndRuns(t *testing.T) {
	for _, limit := range []int{1, 4} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			y, s := newYard(t), newStage()
			y.pool(step.TaskPool("resize"), limit)
			var crews []*crew
			for _, host := range []string{"a", "b", "c"} {
				w := y.worker(host, "", 4, s)
				defer w.close(t)
				crews = append(crews, w)
			}
			y.submit("one", fan("m", 6, 0, ofTask("resize")))
			y.submit("two", fan("m", 6, 0, ofTask("resize")))
			s.reach(t, map[string]int{"m": limit}, crews...)
			s.endAll(t, 12, func() {
				if n := y.claimed(step.TaskPool("resize")); n > limit {
					t.Errorf("%d slots of %d are claimed", n, limit)
				}
			})
			y.is("one", run.Succeeded)
			y.is("two", run.Succeeded)
			if s.most != limit {
				t.Errorf("%d ran at a time, want %d", s.most, limit)
			}
		})
	}
}

// One limited among ninety-nine that are not: they go on without it, and touch no slot.
func TestALimitedTaskHoldsUpNoOther(t *testing.T) {
	y, s := newYard(t), newStage()
	s.auto = true
	name := step.TaskPool("resize")
	y.pool(name, 0) // closed
	w := y.worker("a", "", 4, s)
	defer w.close(t)
	y.submit("r", fan("front", 49, 0, ofTask("plain")), fan("limited", 1, 0, ofTask("resize")), fan("behind", 50, 0))
	eventually(t, "all others have ended", func() bool {
		return y.statuses("r", "front", 49)[step.Succeeded] == 49 && y.statuses("r", "behind", 50)[step.Succeeded] == 50
	})
	if got := y.status("r/limited/000000"); got != step.Scheduled {
		t.Errorf("the limited one is %s", got)
	}
	granted := 0
	for _, e := range y.events("r") {
		if e.Type == run.StepSlotClaimed {
			granted++
		}
	}
	if granted > 0 || y.claimed(name) > 0 {
		t.Errorf("%d had slots", granted)
	}
	y.pool(name, 1)
	y.is("r", run.Succeeded)
	eventually(t, "the slot is given back", func() bool { return y.claimed(name) == 0 })
}

func (y *yard) events(id string) []run.LoggedEvent {
	y.t.Helper()
	all, err := y.runs.Events(y.t.Context(), id)
	if err != nil {
		y.t.Fatal(err)
	}
	return all
}

// A large limit is shared out over slot groups, of which none holds more than its share.
func TestALargeLimitOfATaskIsSharedOutOverGroups(t *testing.T) {
	y, s := newYard(t), newStage()
	const limit, items = 500, 130
	name := step.TaskPool("resize")
	y.pool(name, limit)
	for _, host := range []string{"a", "b", "c"} {
		w := y.worker(host, "", 50, s)
		defer w.close(t)
	}
	y.submit("r", fan("m", items, 0, ofTask("resize")))
	eventually(t, "all run", func() bool { return len(s.running()) == items })
	all, err := store.ReadAll(t.Context(), y.runs.Backend, y.runs.Keys.Slots(name))
	if err != nil {
		t.Fatal(err)
	}
	keys := wire.Keys{Keys: y.runs.Keys}
	groups, per := map[int]int{}, (limit+49)/50
	for _, kv := range all.KVs {
		ref, err := keys.Ref(string(kv.Key))
		if err != nil {
			t.Fatal(err)
		}
		groups[ref.Number/per]++
	}
	if len(all.KVs) != items {
		t.Errorf("%d slots", len(all.KVs))
	}
	for group, n := range groups {
		if group < 0 || group >= 50 || n > per {
			t.Errorf("group %d has %d of %d", group, n, per)
		}
	}
	s.endAll(t, items, nothing)
	y.is("r", run.Succeeded)
	eventually(t, "all slots are free", func() bool { return y.claimed(name) == 0 })
}

// A lowered limit stops no instance: no more begin until enough have ended. A raised one lets
// more go at once.
func TestATasksLimitIsChangedWhileStepsRun(t *testing.T) {
	y, s := newYard(t), newStage()
	name := step.TaskPool("resize")
	y.pool(name, 4)
	a, b := y.worker("a", "", 6, s), y.worker("b", "", 6, s)
	defer a.close(t)
	defer b.close(t)
	y.submit("r", fan("m", 12, 0, ofTask("resize")))
	s.reach(t, map[string]int{"m": 4}, a, b)
	y.pool(name, 2)
	first := s.running()
	for left := 3; left >= 2; left-- {
		s.end(first[left], succeeded)
		eventually(t, "its slot is given back", func() bool { return y.claimed(name) <= left })
		s.reach(t, map[string]int{"m": left}, a, b)
	}
	s.end(first[1], succeeded)
	s.reach(t, map[string]int{"m": 2}, a, b)
	y.pool(name, 7)
	s.reach(t, map[string]int{"m": 7}, a, b)
	s.endAll(t, 9, nothing)
	y.is("r", run.Succeeded)
}

// The tightest of all bounds wins, and leaves the rest of a worker to others.
func TestATightPoolLeavesTheRestOfAWorkerToOthers(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 2)
	w := y.worker("a", "", 8, s)
	defer w.close(t)
	y.submit("r", fan("slow", 8, 0, from("db", 1)))
	s.reach(t, map[string]int{"slow": 2}, w)
	y.submit("other", fan("free", 8, 0))
	s.reach(t, map[string]int{"slow": 2, "free": 6}, w)
	for ended := 0; ended < 8; {
		eventually(t, "a free one runs", func() bool { return s.steps()["free"] > 0 })
		for _, id := range s.running() {
			if strings.Contains(id, "/free/") && s.end(id, succeeded) {
				ended++
			}
		}
	}
	y.submit("window", fan("narrow", 4, 1)) // two of the pool, and one through the window
	s.reach(t, map[string]int{"slow": 2, "narrow": 1}, w)
}

// Each instance has a claim of its own, of all its pools or of none, with its weight.
func TestEachInstanceHasAClaimOfItsOwn(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 5)
	y.pool("gpu", 1)
	w := y.worker("a", "", 8, s)
	defer w.close(t)
	y.submit("r", fan("wide", 3, 0, from("db", 2)))
	s.reach(t, map[string]int{"wide": 2}, w) // four of five
	held, err := w.client.Held(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fences := map[string]store.Fence{}
	for _, c := range held {
		fences[c.Holder.Run+" "+c.Holder.Step] = c.Fence()
		if got := c.Slots; len(got) != 1 || got["db"] != 2 {
			t.Errorf("%s has %v", c.Holder.Step, got)
		}
	}
	for _, id := range s.running() {
		sid := idOf(t, id)
		i, err := y.step.Get(t.Context(), sid)
		if err != nil || fences["r "+sid.Text()] != i.Fence() {
			t.Errorf("%s was taken at %d, its claim has fence %d: %v", id, i.Revision, fences["r "+sid.Text()], err)
		}
	}
	if len(held) != 2 {
		t.Errorf("%d claims", len(held))
	}
	// One of db is free, and gpu: that of both is taken, that of too much of one has none.
	y.submit("both", fan("both", 2, 0, func(s *step.Spec) { s.Pools = map[string]int{"db": 1, "gpu": 1} }))
	s.reach(t, map[string]int{"wide": 2, "both": 1}, w)
	if db, gpu := y.claimed("db"), y.claimed("gpu"); db != 5 || gpu != 1 {
		t.Errorf("%d of db and %d of gpu are claimed", db, gpu)
	}
	s.endAll(t, 5, nothing)
	y.is("r", run.Succeeded)
	y.is("both", run.Succeeded)
}

// However an instance ends, its slots are given back.
func TestSlotsComeBackHoweverAnInstanceEnds(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(t *testing.T, y *yard, s *stage, w *crew){
		"it has succeeded": func(_ *testing.T, _ *yard, s *stage, _ *crew) { s.end("r/m/000000", succeeded) },
		"it has failed": func(_ *testing.T, _ *yard, s *stage, _ *crew) {
			s.end("r/m/000000", step.Outcome{Status: step.Failed, ExitCode: 1})
		},
		"its run was canceled": func(t *testing.T, y *yard, _ *stage, _ *crew) {
			if _, err := y.runs.Cancel(t.Context(), "r", "", false); err != nil {
				t.Error(err)
			}
		},
		"it was canceled": func(t *testing.T, y *yard, _ *stage, _ *crew) {
			if _, err := y.step.Cancel(t.Context(), y.runs, idOf(t, "r/m/000000")); err != nil {
				t.Error(err)
			}
		},
		"its worker was stopped": func(t *testing.T, _ *yard, _ *stage, w *crew) { w.Stop(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			y, s := newYard(t), newStage()
			y.pool("db", 3)
			w := y.worker("a", "", 2, s)
			defer w.close(t)
			// The run goes on, so that no other process releases them.
			y.submit("r", fan("m", 1, 0, from("db", 2), others), fan("stays", 0, 0, func(s *step.Spec) { s.Queue = "nobodys" }))
			s.runs(t, "r/m/000000")
			if n := y.claimed("db"); n != 2 {
				t.Errorf("%d slots are claimed while it runs", n)
			}
			ends(t, y, s, w)
			eventually(t, "it has ended", func() bool { return y.status("r/m/000000").Ended() })
			eventually(t, "its slots are free", func() bool { return y.claimed("db") == 0 })
		})
	}
}

// While a retry waits for its time, others have its slots.
func TestSlotsAreNotHeldDuringTheBackoffOfARetry(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 1)
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("r", fan("m", 2, 0, from("db", 1), func(s *step.Spec) {
		s.Retries, s.Backoff, s.OnFailure = 1, step.Duration(step.MaxBackoff), step.Finish
	}))
	eventually(t, "one runs", func() bool { return len(s.running()) == 1 })
	first := s.running()[0]
	s.end(first, step.Outcome{Status: step.Failed, ExitCode: 1})
	eventually(t, "the other one has the slot", func() bool {
		all := s.running()
		return len(all) == 1 && all[0] != first
	})
	i, err := y.step.Get(t.Context(), idOf(t, first))
	if err != nil || i.Status != step.Requested || i.Pause != step.MaxBackoff || i.Attempt != 1 {
		t.Errorf("the first is %+v, %v", i, err)
	}
}

// Each transition of an instance that its worker makes is among the events of its run.
func TestWhatAWorkerDoesIsAmongTheEventsOfTheRun(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 1)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 1, 0, from("db", 1), func(s *step.Spec) { s.Retries, s.OnFailure = 1, step.Finish }),
		fan("n", 1, 0, others, func(s *step.Spec) { s.Needs = []string{"m"} }))
	s.runs(t, "r/m/000000")
	s.end("r/m/000000", step.Outcome{Status: step.Failed, ExitCode: 3, Error: "no such day"})
	eventually(t, "it runs once more", func() bool { return s.started() == 2 && len(s.running()) == 1 })
	s.end("r/m/000000", succeeded)
	s.runs(t, "r/n/000000")
	if _, err := y.step.Cancel(t.Context(), y.runs, idOf(t, "r/n/000000")); err != nil {
		t.Fatal(err)
	}
	y.is("r", run.Failed)
	want := []string{
		"RunQueued", "RunDequeued", "RunStarted", "StepStarted m[0] 1", "StepSlotClaimed m[0] db", "StepRetried m[0] 1 no such day", "StepSlotReleased m[0] db",
		"StepStarted m[0] 2", "StepSlotClaimed m[0] db", "StepSucceeded m[0] 2", "StepSlotReleased m[0] db",
		"StepStarted n[0] 1", "StepCanceled n[0] 1 it was canceled", "RunFailed step 'n' has failed",
	}
	slices.Sort(want)
	var got []string
	reported := func() bool {
		got = nil
		for _, e := range y.events("r") {
			text := strings.Join(strings.Fields(strings.Join([]string{
				string(e.Type), e.Metadata["step"], e.Metadata["attempt"], e.Metadata["pools"], e.Reason,
			}, " ")), " ")
			// The wait queue is left for a moment, or it is the turn of one that has just been freed.
			if e.Type != run.StepSlotWaiting {
				got = append(got, text)
			}
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	}
	for deadline := time.Now().Add(within); !reported(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		<-time.After(5 * time.Millisecond)
	}
}

// An instance that waits for slots is reported once, with the reason, and is in the wait queue.
func TestAnInstanceThatWaitsForSlotsSaysWhy(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 1)
	w := y.worker("a", "", 3, s)
	defer w.close(t)
	release := y.holder(map[string]int{"db": 1})
	y.submit("r", fan("m", 1, 0, from("db", 1)))
	waiting := func() (n int, reason string) {
		for _, e := range y.events("r") {
			if e.Type == run.StepSlotWaiting {
				n, reason = n+1, e.Reason
			}
		}
		return n, reason
	}
	eventually(t, "it is reported", func() bool { n, _ := waiting(); return n > 0 })
	for range 5 {
		w.nudge(t)
	}
	if n, reason := waiting(); n != 1 || reason != "pool 'db' full (1/1 slots)" {
		t.Errorf("reported %d times: %s", n, reason)
	}
	release()
	s.runs(t, "r/m/000000")
	s.end("r/m/000000", succeeded)
	y.is("r", run.Succeeded)
}

// Instances of a task without a limit, and of no task at all, write nothing below the pools,
// and the transactions that take and finish them read nothing there.
func TestWhatHasNoLimitTouchesNoSlot(t *testing.T) {
	y, s := newYard(t), newStage()
	s.auto = true
	y.pool("db", 1)
	pools := y.runs.Keys.Pools()
	var touched atomic.Int32
	w := y.faultyWorker("a", "", 4, s, &faulty{txn: func(_ context.Context, r *pb.TxnRequest) error {
		if strings.Contains(r.String(), pools) {
			touched.Add(1)
		}
		return nil
	}})
	defer w.close(t)
	before, err := store.ReadAll(t.Context(), y.runs.Backend, pools)
	if err != nil {
		t.Fatal(err)
	}
	watch := y.runs.Backend.Watch(t.Context(), store.Prefix(pools), before.Revision+1)
	y.submit("r", fan("task", 20, 0, ofTask("resize")), fan("plain", 20, 0))
	y.is("r", run.Succeeded)
	y.pool("last", 1)
	if first := <-watch.Messages(); first.Err != nil || len(first.Events) != 1 || string(first.Events[0].Kv.Key) != y.runs.Keys.Spec("last") {
		t.Errorf("%+v was written beneath the pools before", first)
	}
	if n := touched.Load(); n > 0 {
		t.Errorf("%d transactions touch pools", n)
	}
}
