package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
)

// An instance that waits for its slots longer than claim_timeout has failed that attempt:
// it is tried again as its retries say, and nothing of it was started.
func TestAnInstanceThatWaitsTooLongForItsSlotsFailsAsItsRetriesSay(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	y.timeout = 100 * time.Millisecond
	y.pool("db", 1)
	release := y.holder(map[string]int{"db": 1})
	for _, host := range []string{"a", "b"} { // both wait for it, and it fails once
		w := y.worker(host, "", 1, s)
		defer w.close(t)
	}
	y.submit("r", fan("m", 1, 0, from("db", 1), func(s *step.Spec) { s.Retries = 1 }))
	y.is("r", run.Failed)
	release()
	i, err := y.step.Get(t.Context(), idOf(t, "r/m/000000"))
	if err != nil {
		t.Fatal(err)
	}
	const why = "timed out after 100ms: pool 'db' full (1/1 slots)"
	if i.Status != step.Failed || i.Attempt != 2 || i.Error != why || !i.StartedAt.IsZero() {
		t.Errorf("it is %+v, want failed after 2 attempts: %s", i.Record, why)
	}
	var got []string
	for _, e := range y.events("r") {
		if text := string(e.Type); strings.HasPrefix(text, "Step") && !strings.HasPrefix(text, "StepSlot") {
			got = append(got, text+" "+e.Metadata["attempt"]+" "+e.Reason)
		}
	}
	if text := strings.Join(got, "\n"); text != "StepRetried 1 "+why+"\nStepFailed 2 "+why {
		t.Errorf("events are\n%s", text)
	}
	if s.started() > 0 {
		t.Error("it was started")
	}
}

// The time counts while the instance waits for slots, also if that is not at one stretch:
// the worker has no place for it in between.
func TestTheTimeThatAnInstanceWaitsForSlotsAddsUp(t *testing.T) {
	w := &Worker{waited: map[string]waited{}}
	p := &step.Published{Order: "o", Revision: 7}
	begun := time.Unix(100, 0)
	for n := 1; n <= 3; n++ {
		w.noteWaited(p, begun, begun.Add(time.Minute))
		if got, want := w.waitLeft(p, 10*time.Minute), time.Duration(10-n)*time.Minute; got != want {
			t.Errorf("after %d minutes %s are left, want %s", n, got, want)
		}
	}
	if got := w.waitLeft(p, time.Minute); got != 0 {
		t.Errorf("%s are left of a minute after three", got)
	}
	again := &step.Published{Order: "o", Revision: 8}
	if got := w.waitLeft(again, time.Minute); got != time.Minute {
		t.Errorf("the next publication has %s left of a minute", got)
	}
}

// With 0s nothing waits for slots: an instance has them at once, or has failed.
func TestAnInstanceThatIsNotToWaitForSlotsFailsAtOnce(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	y.timeout = -1
	y.pool("db", 1)
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("r", fan("m", 2, 0, from("db", 1), others))
	eventually(t, "one runs, and the other has failed", func() bool {
		return len(s.running()) == 1 && y.statuses("r", "m", 2)[step.Failed] == 1
	})
	s.end(s.running()[0], succeeded)
	y.is("r", run.Failed)
	if got := y.statuses("r", "m", 2); got[step.Succeeded] != 1 {
		t.Errorf("they are %v", got)
	}
}
