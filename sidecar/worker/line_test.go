package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/list"
)

// line is who waits for a pool, in order.
func (y *yard) line(name string) (steps []string) {
	y.t.Helper()
	state, err := list.Read(y.t.Context(), y.runs.Backend, y.runs.Keys)
	if err != nil {
		y.t.Fatal(err)
	}
	d, err := state.Pool(name)
	if err != nil {
		y.t.Fatal(err)
	}
	for _, w := range d.Waiters {
		steps = append(steps, w.Step)
	}
	return steps
}

// An instance starts when it has its slots: the time in the wait queue does not count as its own.
func TestAnInstanceIsStartedWhenItHasItsSlots(t *testing.T) {
	y, s := newYard(t), newStage()
	s.auto = true
	y.pool("db", 0)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 1, 0, from("db", 1)))
	eventually(t, "it is in the wait queue", func() bool { return len(y.line("db")) == 1 })
	opened := time.Now().Truncate(time.Millisecond)
	y.pool("db", 1)
	y.is("r", run.Succeeded)
	i, err := y.step.Get(t.Context(), idOf(t, "r/m/000000"))
	if err != nil || i.StartedAt.Before(opened) {
		t.Errorf("it was started %s before there was a slot (%v)", opened.Sub(i.StartedAt), err)
	}
	events, err := y.runs.Events(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Type == run.StepStarted && e.At.Before(i.StartedAt) {
			t.Errorf("the event says %s, and the record, of when it was taken, %s", e.At, i.StartedAt)
		}
	}
}

// What comes to wait together waits in the order of the run.
func TestInstancesWaitInTheirOrder(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 0)
	w := y.worker("a", "", 8, s)
	defer w.close(t)
	y.submit("r", fan("m", 8, 0, from("db", 1)))
	eventually(t, "all are in the wait queue", func() bool { return len(y.line("db")) == 8 })
	if got, want := strings.Join(y.line("db"), " "), "m[0] m[1] m[2] m[3] m[4] m[5] m[6] m[7]"; got != want {
		t.Errorf("the wait queue is %s", got)
	}
}

// An instance that is canceled while it waits for slots leaves the wait queue, and another
// takes its place.
func TestAnInstanceThatIsCanceledLeavesTheLine(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	y.pool("db", 0)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 3, 0, from("db", 1), others))
	eventually(t, "the first is in the wait queue", func() bool { return strings.Join(y.line("db"), " ") == "m[0]" })
	if _, err := y.step.Cancel(t.Context(), y.runs, store.StepID{Run: "r", Step: "m", Index: 0}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second stands there instead", func() bool { return strings.Join(y.line("db"), " ") == "m[1]" })
}

// waiter returns the only waiter of a pool, or none if there is not exactly one.
func (y *yard) waiter(name string) (host string) {
	y.t.Helper()
	state, err := list.Read(y.t.Context(), y.runs.Backend, y.runs.Keys)
	if err != nil {
		y.t.Fatal(err)
	}
	d, err := state.Pool(name)
	if err != nil {
		y.t.Fatal(err)
	}
	if len(d.Waiters) != 1 {
		return ""
	}
	return d.Waiters[0].Host
}

// An instance for which two workers have a place has the waiter of one. It is the other's
// when the first drains, and so is the instance. That it waits is one event.
func TestAWorkerThatDrainsLeavesItsWaitersToOthers(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 0)
	crews := map[string]*crew{}
	for _, host := range []string{"a", "b"} {
		crews[host] = y.worker(host, "", 1, s)
		defer crews[host].close(t)
	}
	y.submit("r", fan("m", 1, 0, from("db", 1)))
	for _, w := range crews {
		w.asks(t, 1)
	}
	var first string
	eventually(t, "one of them waits", func() bool { first = y.waiter("db"); return first != "" })
	<-crews[first].Drain(t.Context())
	other := map[string]string{"a": "b", "b": "a"}[first]
	eventually(t, "the other waits", func() bool { return y.waiter("db") == other })
	y.pool("db", 1)
	s.runs(t, "r/m/000000")
	eventually(t, "no claim waits", func() bool { return len(y.line("db")) == 0 })
	s.end("r/m/000000", succeeded)
	y.is("r", run.Succeeded)
	var waits []string
	eventually(t, "it is reported which slots it had", func() bool {
		waits = nil
		had := false
		for _, e := range y.events("r") {
			if had = had || e.Type == run.StepSlotReleased; e.Type == run.StepSlotWaiting {
				waits = append(waits, e.Reason)
			}
		}
		return had
	})
	if len(waits) != 1 {
		t.Errorf("reported that it waits: %q", waits)
	}
}

// So it is when the first has no place left.
func TestAWorkerThatIsFullLeavesItsWaitersToOthers(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 0)
	for _, host := range []string{"a", "b"} {
		w := y.worker(host, "", 1, s)
		defer w.close(t)
	}
	y.submit("r", fan("m", 1, 0, from("db", 1)))
	eventually(t, "one of them waits", func() bool { return y.waiter("db") != "" })
	y.submit("plain", fan("m", 1, 0))
	s.runs(t, "plain/m/000000")
	i, err := y.step.Get(t.Context(), idOf(t, "plain/m/000000"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the one waits that has a place", func() bool {
		host := y.waiter("db")
		return host != "" && host != i.Executor.Host
	})
	y.pool("db", 1)
	s.runs(t, "plain/m/000000", "r/m/000000")
}

// A step whose pool got a lower limit than it needs waits in the queue, and runs when the limit
// is raised.
func TestAnInstanceAboveALimitWaitsUntilItIsRaised(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 2)
	y.submit("r", fan("m", 1, 0, from("db", 2)))
	y.published("r/m/000000")
	y.pool("db", 1)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	eventually(t, "it is in the wait queue", func() bool { return len(y.line("db")) == 1 })
	y.submit("plain", fan("m", 1, 0))
	s.runs(t, "plain/m/000000")
	s.end("plain/m/000000", succeeded)
	y.pool("db", 2)
	s.runs(t, "r/m/000000")
}
