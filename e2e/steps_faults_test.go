//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// jobStep is the argument vector of a step whose command is a job of the test's own,
// which writes down that it is there.
func (s *shop) jobStep(p jobPart) string {
	s.t.Helper()
	part, err := json.Marshal(p)
	if err != nil {
		s.t.Fatal(err)
	}
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		s.t.Fatal(err)
	}
	argv, err := json.Marshal([]string{"env", roleVar + "=job", partVar + "=" + string(part), self})
	if err != nil {
		s.t.Fatal(err)
	}
	return string(argv)
}

// A worker that is killed and started again finds its commands, with slots or without,
// and nothing is started twice.
func TestAKilledWorkerFindsItsCommandsAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t, embedtest.New(t).Endpoint())
	s.do("pools", "set", "db", "1")
	s.coordinators("lead")
	s.submit("r", `
steps:
  - name: plain
    shell: echo plain-$$-$BERTH_ATTEMPT-$BERTH_FENCE >> began; until [ -e go ]; do sleep 0.02; done; echo plain-$$-$BERTH_ATTEMPT-$BERTH_FENCE >> ended
  - name: slotted
    pools: {db: 1}
    shell: echo slotted-$$-$BERTH_ATTEMPT-$BERTH_FENCE >> began; until [ -e go ]; do sleep 0.02; done; echo slotted-$$-$BERTH_ATTEMPT-$BERTH_FENCE >> ended
  - name: quick
    shell: until [ -e killed ]; do sleep 0.02; done; echo quick-$$-$BERTH_ATTEMPT-$BERTH_FENCE >> ended
  - name: later
    needs: [quick]
    shell: "true"
`)
	w := s.worker("a", "worker", 4)
	began := s.awaitLines("began", 2)
	s.until("r", "quick", "running", 1)
	w.kill()
	s.write("killed") // quick ends while there is no worker
	quick := s.awaitLines("ended", 1)
	s.worker("a", "worker", 4)
	// The next process tells how it has ended, and goes on with what it finds.
	s.until("r", "later", "succeeded", 1)
	s.write("go")
	s.ends("r", "succeeded")
	s.wasRight(map[string]int{"r": 4})
	ended := s.lines("ended")
	slices.Sort(began)
	slices.Sort(ended)
	if want := slices.Sorted(slices.Values(append(quick, began...))); !slices.Equal(ended, want) {
		t.Errorf("%v have ended, want %v", ended, want)
	}
	if got := s.lines("began"); len(got) != 2 {
		t.Errorf("began have %v", got)
	}
	s.look(func(h *StepHistory) {
		for _, i := range h.Instances("r") {
			if len(i.Hosts) != 1 || i.Attempt != 1 {
				t.Errorf("%s was started %d times, by %v", i.ID, i.Attempt, i.Hosts)
			}
		}
	})
}

// Instances that were taken together, in one transaction and so with one fence, are each
// found again with the slots of their own.
func TestAKilledWorkerFindsEachWithItsSlots(t *testing.T) {
	t.Parallel()
	s := newShop(t, embedtest.New(t).Endpoint())
	s.do("pools", "set", "db", "4")
	s.coordinators("lead")
	s.submit("r", `
steps:
  - name: m
    items: [1, 2, 3, 4, 5, 6, 7, 8]
    pools: {db: 1}
    shell: echo $BERTH_INDEX >> began; until [ -e go ]; do sleep 0.02; done
`)
	s.until("r", "m", "scheduled", 8)
	w := s.worker("a", "worker", 4)
	s.awaitLines("began", 4)
	w.kill()
	s.worker("a", "worker", 4)
	s.write("go")
	s.ends("r", "succeeded")
	s.wasRight(map[string]int{"r": 8})
	s.startedOnce("r")
	if n := len(s.lines("began")); n != 8 {
		t.Errorf("%d commands were begun for 8 items", n)
	}
}

// A worker that is killed and does not come back: its command is stopped before its
// lease ends, and the step is run on another host then.
func TestWhatAKilledWorkerHadIsRunElsewhere(t *testing.T) {
	t.Parallel()
	s := newShop(t, embedtest.New(t).Endpoint())
	s.do("pools", "set", "db", "1", "--lease-duration", "10s")
	s.coordinators("lead")
	j, stop := journal{filepath.Join(s.dir, "journal")}, filepath.Join(s.dir, "stop")
	s.submit("r", fmt.Sprintf(`
steps:
  - {name: m, pools: {db: 1}, retries: 1, command: %s}
`, s.jobStep(jobPart{Journal: j.path, Name: "m", Stop: stop})))
	first := s.worker("a", "worker", 1)
	began := j.wait(t, "m", "start")
	s.worker("b", "worker", 1)
	first.kill()
	s.w.wait("another runs it", func() bool {
		all := s.steps.Instances("r")
		return len(all) == 1 && all[0].Status == "running" && all[0].Attempt == 2
	})
	s.write("stop")
	s.ends("r", "succeeded")
	s.wasRight(map[string]int{"r": 1})
	s.look(func(h *StepHistory) {
		if i := h.Instances("r")[0]; !slices.Equal(i.Hosts, []string{"a/worker", "b/worker"}) {
			t.Errorf("it was run by %v", i.Hosts)
		}
	})
	stays := map[string]*stay{}
	for _, e := range j.read(t) {
		key := fmt.Sprint(e.Fence)
		if stays[key] == nil {
			stays[key] = &stay{job: key, from: e.At, pids: map[int]bool{}}
		}
		st := stays[key]
		st.from, st.to = min(st.from, e.At), max(st.to, e.At)
		st.ended, st.signaled = st.ended || e.What == "end", st.signaled || e.What == "term"
		st.pids[e.PID] = true
	}
	if len(stays) != 2 {
		t.Fatalf("%d fences were at work", len(stays))
	}
	if n := together(stays); n != 1 {
		t.Errorf("%d were there at one time", n)
	}
	if st := stays[fmt.Sprint(began.Fence)]; !st.signaled || st.ended {
		t.Errorf("the first was not signaled to stop: %+v", st)
	}
	for key, st := range stays {
		if len(st.pids) != 1 {
			t.Errorf("fence %s was at work as %v", key, st.pids)
		}
	}
}

// halfway waits until some of a run is done, and most is not.
func (s *shop) halfway(run string) { s.until(run, "m", "succeeded", 15) }

// manySteps is a run that goes on for a while, with so many retries: some of it needs
// slots, some needs none.
const manySteps = `
max_concurrent_steps: 9
steps:
  - {name: m, items: {from: 1, to: 50}, concurrency: 6, retries: %[1]d, shell: 'echo $BERTH_STEP-$BERTH_INDEX >> began'}
  - {name: slotted, items: {from: 1, to: 30}, concurrency: 5, pools: {db: 1}, retries: %[1]d, shell: 'echo $BERTH_STEP-$BERTH_INDEX >> began'}
  - {name: n, needs: [m, slotted], items: {from: 1, to: 10}, concurrency: 5, retries: %[1]d, shell: 'echo $BERTH_STEP-$BERTH_INDEX >> began'}
`

// manyAreDone checks what is left of manySteps: all has succeeded, and no command was
// begun twice, since no worker was away for longer than its leases.
func (s *shop) manyAreDone(run string) {
	s.t.Helper()
	// Each step has the deadline for itself: 90 commands are half a minute of work.
	s.until(run, "m", "succeeded", 50)
	s.until(run, "slotted", "succeeded", 30)
	s.ends(run, "succeeded")
	s.wasRight(map[string]int{run: 90})
	began := s.lines("began")
	slices.Sort(began)
	if once := slices.Compact(slices.Clone(began)); len(began) != 90 || len(once) != 90 {
		s.t.Errorf("%d commands were begun for 90 items, of %d of them", len(began), len(once))
	}
}

// The leader is killed while it dispatches: the next one goes on, and counts again.
func TestTheCoordinatorIsKilledWhileItDispatches(t *testing.T) {
	t.Parallel()
	s := newShop(t, embedtest.New(t).Endpoint())
	s.do("pools", "set", "db", "3")
	all := s.coordinators("one", "two")
	s.worker("a", "worker", 4)
	s.worker("b", "worker", 4)
	s.submit("r", fmt.Sprintf(manySteps, 0))
	s.halfway("r")
	all[s.leader()].kill()
	s.manyAreDone("r")
	s.startedOnce("r")
}

// startedOnce checks that nothing was started twice, since no worker has died.
func (s *shop) startedOnce(run string) {
	s.t.Helper()
	s.look(func(h *StepHistory) {
		for _, i := range h.Instances(run) {
			if i.Attempt != 1 {
				s.t.Errorf("%s was started %d times, by %v", i.ID, i.Attempt, i.Hosts)
			}
		}
	})
}

// Etcd is killed in the middle of a run, and comes back: nothing is lost, and nothing is
// run twice.
func TestEtcdIsRestartedInTheMiddleOfARun(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	s := newShop(t, etcd.endpoints()[0])
	s.do("pools", "set", "db", "3")
	s.coordinators("lead")
	s.worker("a", "worker", 4)
	s.worker("b", "worker", 4)
	s.submit("r", fmt.Sprintf(manySteps, 0))
	s.halfway("r")
	etcd.kill()
	etcd.restart()
	s.manyAreDone("r")
	s.startedOnce("r")
}

// Workers are killed, leave and drain all the time, and come back: each command is begun
// once. An attempt is tried again of which the worker was killed when it had not begun
// its command yet.
func TestWorkersComeAndGo(t *testing.T) {
	t.Parallel()
	s := newShop(t, embedtest.New(t).Endpoint())
	s.do("pools", "set", "db", "3")
	s.coordinators("lead")
	hosts := []string{"a", "b"}
	workers := []*command{s.worker("a", "worker", 4), s.worker("b", "worker", 4)}
	s.submit("r", fmt.Sprintf(manySteps, 1))
	for i, end := range []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGHUP, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGKILL} {
		s.until("r", "m", "succeeded", 7*(i+1))
		w := workers[i%2]
		w.signal(end)
		if code := w.code(); end != syscall.SIGKILL && code != 0 {
			t.Errorf("after %s a worker exits with %d", end, code)
		}
		workers[i%2] = s.worker(hosts[i%2], "worker", 4)
	}
	s.manyAreDone("r")
}

// Ten commands end at the same moment, on two workers, and ten more wait.
func TestTenCompletionsAtOnce(t *testing.T) {
	s := newShop(t, embedtest.New(t).Endpoint())
	s.do("pools", "set", "db", "10")
	s.coordinators("lead")
	s.worker("a", "worker", 5)
	s.worker("b", "worker", 5)
	s.submit("r", `
steps:
  - {name: m, items: {from: 1, to: 20}, concurrency: 10, pools: {db: 1}, shell: "echo $$ >> began; until [ -e go ]; do sleep 0.02; done"}
  - {name: last, needs: [m], command: ["true"]}
`)
	s.awaitLines("began", 10)
	s.write("go")
	s.ends("r", "succeeded")
	s.wasRight(map[string]int{"r": 21})
	s.startedOnce("r")
	if n := len(s.lines("began")); n != 20 {
		t.Errorf("%d commands were started for 20 items", n)
	}
}
