//go:build linux

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// stubborn is a shell text that records its start, and that it was signaled to
// stop, and stays until then or until a test says go.
const stubborn = `trap 'echo $BERTH_STEP-$BERTH_INDEX-$BERTH_ATTEMPT >> signaled; exit 3' TERM; ` +
	`echo $BERTH_STEP-$BERTH_INDEX-$BERTH_ATTEMPT >> began; until [ -e go ]; do sleep 0.02; done; echo $BERTH_STEP-$BERTH_INDEX-$BERTH_ATTEMPT >> ended`

// twoAtWork is a shop with a coordinator and two workers of two places each.
func twoAtWork(t *testing.T) (s *shop, workers map[string]*command) {
	t.Helper()
	s = newShop(t, embedtest.New(t).Endpoint())
	s.do("pools", "set", "db", "8")
	s.coordinators("lead")
	workers = map[string]*command{}
	for _, host := range []string{"a", "b"} {
		workers[host] = s.worker(host, "worker", 2)
	}
	return s, workers
}

// stopped checks that all that began was signaled to stop, that nothing has come to its end,
// and that no rule was broken.
func (s *shop) stopped(run string, began int) {
	s.t.Helper()
	s.w.until("all slots are given back", func(h *History) bool { return h.Held() == 0 })
	s.w.wait("nothing runs any more", func() bool {
		return s.steps.Count(run, "", "running")+s.steps.Count(run, "", "scheduled") == 0
	})
	s.look(func(h *StepHistory) {
		for _, v := range h.Violations() {
			s.t.Error(v)
		}
	})
	begun, answers := s.lines("began"), s.lines("signaled")
	slices.Sort(begun)
	slices.Sort(answers)
	if len(begun) != began || !slices.Equal(begun, answers) {
		s.t.Errorf("%v began, and %v were signaled to stop", begun, answers)
	}
	if ended := s.lines("ended"); len(ended) > 0 {
		s.t.Errorf("%v have gone on to their end", ended)
	}
}

// A run that is canceled is stopped on all workers, and nothing more of it begins.
func TestACanceledRunIsStoppedEverywhere(t *testing.T) {
	t.Parallel()
	s, _ := twoAtWork(t)
	s.submit("r", fmt.Sprintf(`
steps:
  - {name: m, items: {from: 1, to: 3}, shell: %[1]q}
  - {name: slotted, items: {from: 1, to: 3}, pools: {db: 2}, retries: 5, shell: %[1]q}
`, stubborn))
	s.awaitLines("began", 4)
	s.do("runs", "cancel", "r", "--reason", "no need")
	s.ends("r", "canceled")
	s.stopped("r", 4)
	s.look(func(h *StepHistory) {
		for _, i := range h.Instances("r") {
			if i.Status != "canceled" || i.Attempt > 1 {
				t.Errorf("%s is %s after %d starts", i.ID, i.Status, i.Attempt)
			}
		}
	})
}

// What fails its run at once stops all other instances, wherever they run.
func TestAFailureStopsARunEverywhere(t *testing.T) {
	t.Parallel()
	s, _ := twoAtWork(t)
	s.submit("r", fmt.Sprintf(`
steps:
  - {name: m, items: {from: 1, to: 3}, pools: {db: 1}, shell: %q}
  - {name: fails, shell: "until [ -e fail ]; do sleep 0.02; done; exit 7"}
  - {name: later, needs: [m], command: [touch, later]}
`, stubborn))
	s.awaitLines("began", 3)
	s.until("r", "fails", "running", 1)
	s.write("fail")
	s.ends("r", "failed")
	s.stopped("r", 3)
	s.look(func(h *StepHistory) {
		if got := h.failures("r"); !slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, "exit code 7") }) {
			t.Errorf("nothing has failed with exit code 7: %v", got)
		}
		if n := h.Count("r", "later", "requested") + h.Count("r", "later", "scheduled"); n > 0 || len(s.lines("later")) > 0 {
			t.Error("what needs it has gone")
		}
	})
}

// A worker that is stopped stops what it has, and another one runs that; a second end of
// the first attempt is none.
func TestWhatAStoppedWorkerHadIsRunByAnother(t *testing.T) {
	t.Parallel()
	s := newShop(t, embedtest.New(t).Endpoint())
	s.do("pools", "set", "db", "2")
	s.coordinators("lead")
	first := s.worker("a", "worker", 4)
	s.submit("r", fmt.Sprintf(`
steps:
  - {name: m, items: [1, 2], retries: 1, shell: %[1]q}
  - {name: slotted, items: [1, 2], retries: 1, pools: {db: 1}, shell: %[1]q}
`, stubborn))
	s.awaitLines("began", 4)
	first.signal(syscall.SIGINT)
	first.succeeds()
	if answers := s.lines("signaled"); len(answers) != 4 {
		t.Errorf("%v were signaled to stop", answers)
	}
	s.worker("b", "worker", 4)
	s.awaitLines("began", 8)
	s.write("go")
	s.ends("r", "succeeded")
	s.wasRight(map[string]int{"r": 4})
	s.look(func(h *StepHistory) {
		for _, i := range h.Instances("r") {
			if i.Attempt != 2 || !slices.Equal(i.Hosts, []string{"a/worker", "b/worker"}) {
				t.Errorf("%s was started %d times, by %v", i.ID, i.Attempt, i.Hosts)
			}
		}
	})
}

// A worker that is killed and does not come back, with instances that need no slots:
// their commands are gone when others begin them.
func TestWhatAKilledWorkerHadWithoutSlotsIsRunElsewhere(t *testing.T) {
	if os.Getenv("BERTH_LONG") == "" {
		t.Skip("it takes the minute that such an instance stays a dead worker's: BERTH_LONG runs it")
	}
	t.Parallel()
	s := newShop(t, embedtest.New(t).Endpoint())
	s.coordinators("lead")
	first := s.worker("a", "worker", 2)
	s.submit("r", fmt.Sprintf("steps: [{name: m, items: [1, 2], retries: 1, shell: %q}]", stubborn))
	s.awaitLines("began", 2)
	first.kill()
	s.worker("b", "worker", 2)
	s.awaitLines("signaled", 2) // before the lease ends
	s.w.wait("both are run elsewhere", func() bool {
		all := s.steps.Instances("r")
		return !slices.ContainsFunc(all, func(i *StepSeen) bool { return i.Attempt != 2 })
	})
	s.write("go")
	s.ends("r", "succeeded")
	s.wasRight(map[string]int{"r": 2})
	if began := s.lines("began"); len(began) != 4 {
		t.Errorf("%v began", began)
	}
}
