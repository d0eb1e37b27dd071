package coordinator

import (
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
)

// in has a run join the queue so long from now.
func in(d time.Duration) func(*run.Spec) {
	return func(s *run.Spec) { s.NotBefore = run.InstantOf(time.Now().Add(d)) }
}

func TestARunThatIsDueLaterGoesThenAndHoldsUpNobody(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.limit(1)
		fl.candidate("one", func(c *Config) { c.TickInterval = time.Hour })
		fl.submit("later", in(10*time.Minute), priority(9))
		fl.submit("soon", in(time.Minute+3*time.Second))
		fl.submit("now")
		x := fl.executor()
		fl.is(map[string]string{"now": "not_started", "later": "queued", "soon": "queued"})
		fl.finish(fl.start("now", x))
		// No event comes before it is due, and then it is queued at once.
		rev, begun := fl.revision(), time.Now()
		time.Sleep(time.Minute - time.Since(begun) - 5*time.Second)
		if got := fl.revision(); got > rev+2 { // the leader tells of itself
			t.Errorf("%d writes while nothing is due", got-rev)
		}
		r, _ := fl.Get(t.Context(), "soon")
		time.Sleep(time.Until(r.NotBefore.Time) + 20*time.Millisecond)
		if r, err := fl.Get(t.Context(), "soon"); err != nil || r.Status != run.NotStarted || r.AdmittedAt.Before(r.NotBefore.Time) {
			t.Errorf("20 ms after it was due it is %s, admitted at %s (%v)", r.Status, r.AdmittedAt, err)
		}
		fl.is(map[string]string{"later": "queued"})
		events, err := fl.Events(t.Context(), "soon")
		if err != nil || len(events) != 3 || events[1].Type != run.RunDue || events[0].Metadata["not_before"] == "" {
			t.Errorf("its events are %+v (%v)", events, err)
		}
		if _, err := fl.Cancel(t.Context(), "later", "", true); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		fl.is(map[string]string{"later": "canceled"})
	})
}

// The order is that in which they would have been submitted when they were due, also if
// no coordinator led at that time.
func TestRunsJoinTheQueueAsIfTheyWereSubmittedWhenTheyAreDue(t *testing.T) {
	for _, led := range []bool{true, false} {
		inFleet(t, func(t *testing.T, fl *fleet) {
			fl.limit(0)
			lead := func() { fl.candidate("one") }
			if led {
				lead()
			}
			fl.submit("at-230", in(150*time.Second))
			fl.submit("at-130", in(90*time.Second))
			fl.submit("urgent", in(150*time.Second), priority(1))
			fl.submit("delayed", func(s *run.Spec) { s.Delay = 90 * time.Second })
			for _, id := range []string{"at-000", "at-100", "at-200", "at-300"} {
				fl.submit(id)
				time.Sleep(time.Minute)
			}
			if !led {
				lead()
			}
			fl.proceed()
			all, err := fl.All(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range all.Queue() {
				got = append(got, r.ID)
			}
			want := "urgent at-000 at-100 at-130 delayed at-200 at-230 at-300"
			if strings.Join(got, " ") != want {
				t.Errorf("led %v: the queue is %v, want %s", led, got, want)
			}
		})
	}
}

func TestTheNextLeaderKnowsWhatIsDueLater(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		one := fl.candidate("one")
		fl.candidate("two")
		fl.submit("a", in(time.Minute))
		fl.submit("b", in(30*time.Second))
		fl.proceed()
		one.by.Down()
		time.Sleep(45 * time.Second)
		fl.is(map[string]string{"a": "queued", "b": "not_started"})
		time.Sleep(15 * time.Second)
		fl.is(map[string]string{"a": "not_started"})
	})
}

// A step goes when what it needs has succeeded and its time has come, whichever is later.
func TestAStepGoesWhenItsNeedsAndItsTimeHaveCome(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one", func(c *Config) { c.TickInterval = time.Hour })
		at := func(d time.Duration) func(*step.Spec) {
			return func(s *step.Spec) { s.NotBefore = run.InstantOf(time.Now().Add(d)) }
		}
		fl.submitSteps("r", []step.Spec{
			fan("first", 0, 0), fan("timed", 3, 2, at(time.Minute), tries(1)), fan("both", 0, 0, after("first"), at(2*time.Minute)),
			fan("past", 0, 0, after("timed"), at(-time.Hour)), fan("free", 2, 0),
		}, caps(3, 0))
		h := fl.hand("x")
		ready := func(want string) {
			t.Helper()
			fl.proceed()
			if got := fl.ready(); got != want {
				t.Errorf("ready is %q, want %q", got, want)
			}
		}
		// What is not due takes no place in the window of the run.
		ready("first[0] free[0] free[1]")
		h.take(3)
		h.finish("succeeded")
		h.finish("succeeded")
		h.finish("succeeded")
		ready("")
		time.Sleep(time.Minute)
		ready("timed[0] timed[1]")
		fl.submitSteps("other", []step.Spec{fan("later", 0, 0)})
		h.take(2)
		h.finish("failed") // and is tried again at once: its time has come
		h.finish("succeeded")
		ready("timed[0] timed[2] later[0]")
		h.take(3)
		for len(h.has) > 0 {
			h.finish("succeeded")
		}
		ready("past[0]")
		time.Sleep(time.Minute)
		ready("both[0] past[0]")
	})
}

// An instance that had to wait for its time stands behind the runs that came before that.
func TestAStepsPlaceIsThatOfItsTime(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		fl.submitSteps("old", []step.Spec{fan("timed", 0, 0, func(s *step.Spec) { s.NotBefore = run.InstantOf(time.Now().Add(90 * time.Second)) })})
		time.Sleep(time.Minute)
		fl.submitSteps("before", []step.Spec{fan("b", 0, 0)})
		time.Sleep(time.Minute)
		fl.submitSteps("behind", []step.Spec{fan("c", 0, 0)})
		fl.proceed()
		if got := fl.ready(); got != "b[0] timed[0] c[0]" {
			t.Errorf("ready is %q", got)
		}
		// Handed back, it is where it was, and canceled it is gone from there.
		h := fl.hand("x")
		h.take(2)
		if _, err := fl.instances().HandBack(t.Context(), h.has[1], nil); err != nil {
			t.Fatal(err)
		}
		if got := fl.ready(); got != "timed[0] c[0]" {
			t.Errorf("handed back: ready is %q", got)
		}
		raw, err := fl.instances().Raw(t.Context(), fl.published()[0].ID())
		if err != nil || raw.Published == nil {
			t.Errorf("it is not found among what can be taken: %+v, %v", raw, err)
		}
		if _, err := fl.Cancel(t.Context(), "old", "", false); err != nil {
			t.Fatal(err)
		}
		fl.proceed()
		if got := fl.ready(); got != "c[0]" {
			t.Errorf("canceled: ready is %q", got)
		}
	})
}
