//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// shop is an etcd whose steps are followed, with workers in processes of their own.
type shop struct {
	t       testing.TB
	etcd    string
	backend *store.Client
	w       *witness
	steps   *StepHistory // read under the witness's lock
	dir     string       // for what commands write
}

func newShop(t testing.TB, etcd string) *shop {
	t.Helper()
	s := &shop{t: t, etcd: etcd, backend: connect(t, etcd), steps: NewStepHistory(keys), dir: shortDir(t)}
	s.w = watch(t, s.backend, func(w *witness) {
		w.onEvent = func(_ *History, ev *mvccpb.Event) { s.steps.Event(ev) }
	})
	s.w.state = func() any { return s.steps.unended() }
	return s
}

// unended are the instances that have not ended, with their status and where they ran.
func (h *StepHistory) unended() (all []string) {
	for run := range h.runs {
		for _, i := range h.Instances(run) {
			if !ended(i.Status) {
				all = append(all, fmt.Sprintf("%s is %s in attempt %d, by %v", i.ID, i.Status, i.Attempt, i.Hosts))
			}
		}
	}
	slices.Sort(all)
	return all
}

// do runs a command of berth that is to succeed.
func (s *shop) do(args ...string) {
	s.t.Helper()
	berthCommand(s.t, s.etcd, nil, args...).succeeds()
}

// coordinators starts candidates, one for each host, and waits until one leads.
func (s *shop) coordinators(hosts ...string) map[string]*command {
	s.t.Helper()
	all := map[string]*command{}
	for _, host := range hosts {
		all[host] = berthCommand(s.t, s.etcd, nil, "coordinator", "--host", host)
	}
	eventually(s.t, "a coordinator leads", func(ctx context.Context) bool {
		return len(s.candidates(ctx)) == len(hosts)
	})
	return all
}

// candidates are the hosts that stand, the leader first; nil until it has had a tick.
func (s *shop) candidates(ctx context.Context) (hosts []string) {
	all, err := run.Store{Backend: s.backend, Keys: keys}.Candidates(ctx)
	if err != nil || len(all) == 0 || all[0].Tick == nil {
		return nil
	}
	for _, c := range all {
		hosts = append(hosts, c.Host)
	}
	return hosts
}

// leader is the host that leads.
func (s *shop) leader() (host string) {
	s.t.Helper()
	eventually(s.t, "a coordinator leads", func(ctx context.Context) bool {
		hosts := s.candidates(ctx)
		if len(hosts) > 0 {
			host = hosts[0]
		}
		return host != ""
	})
	return host
}

// worker starts one. What it keeps is in a folder of its name, where the next process of
// that name finds it.
func (s *shop) worker(host, name string, concurrency int, more ...string) *command {
	s.t.Helper()
	dir := filepath.Join(s.dir, host)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	c := berthCommand(s.t, s.etcd, nil, append([]string{
		"worker", "--host", host, "--name", name, "--state-dir", dir, "--work-dir", s.dir, "--concurrency", fmt.Sprint(concurrency),
	}, more...)...)
	s.t.Cleanup(func() { // it takes its commands with it
		c.signal(syscall.SIGINT)
		c.code()
	})
	return c
}

// submit submits a run whose file is that text.
func (s *shop) submit(id, text string) {
	s.t.Helper()
	file := filepath.Join(s.dir, id+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.do("submit", "--id", id, "-f", file)
}

// until waits until so many instances of a step have a status.
func (s *shop) until(run, step, status string, n int) {
	s.t.Helper()
	enough := false
	s.w.wait(fmt.Sprintf("%d of %s/%s are %s", n, run, step, status), func() bool {
		enough = s.steps.Count(run, step, status) >= n
		return enough || s.steps.Ended(run)
	})
	s.look(func(h *StepHistory) {
		if !enough {
			s.t.Fatalf("run %s is %s, and %d of its step %s are %s: %v", run, h.Status(run), h.Count(run, step, status), step, status, h.failures(run))
		}
	})
}

// failures are why instances of a run have failed, or were tried again.
func (h *StepHistory) failures(run string) (all []string) {
	for _, i := range h.Instances(run) {
		if i.Error != "" {
			all = append(all, fmt.Sprintf("%s, %s in attempt %d: %s", i.ID, i.Status, i.Attempt, i.Error))
		}
	}
	return all
}

// ends waits until a run has ended, as it is to.
func (s *shop) ends(run, status string) {
	s.t.Helper()
	s.w.wait("run "+run+" has ended", func() bool { return s.steps.Ended(run) })
	s.look(func(h *StepHistory) {
		if got := h.Status(run); got != status {
			s.t.Errorf("run %s is %s, want %s: %v", run, got, status, h.failures(run))
		}
	})
}

// look reads what there is to see by now.
func (s *shop) look(f func(*StepHistory)) { s.w.look(func(*History) { f(s.steps) }) }

// wasRight waits until nothing is taken any more, and checks all that was seen: each of
// so many instances has just one successful execution.
func (s *shop) wasRight(instances map[string]int) {
	s.t.Helper()
	s.w.until("all slots are given back", func(h *History) bool { return h.Held() == 0 })
	s.look(func(h *StepHistory) {
		for _, v := range h.Violations() {
			s.t.Error(v)
		}
		for run, n := range instances {
			all := h.Instances(run)
			if len(all) != n {
				s.t.Errorf("%d instances of %s were seen, want %d", len(all), run, n)
			}
			for _, i := range all {
				if i.Succeeded != 1 || i.Status != "succeeded" {
					s.t.Errorf("%s has succeeded %d times, and is %s", i.ID, i.Succeeded, i.Status)
				}
			}
		}
	})
}

// lines are those of a file that commands have written.
func (s *shop) lines(name string) []string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// awaitLines waits until a file has so many.
func (s *shop) awaitLines(name string, n int) []string {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%s has %d lines", name, n), func(context.Context) bool { return len(s.lines(name)) >= n })
	return s.lines(name)
}

// write makes a file that commands wait for.
func (s *shop) write(name string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// Windows, a cap, a pool and a task's limit hold at every revision, over two runs and
// four workers on three hosts.
func TestWindowsCapsAndPoolsHoldAtEveryRevision(t *testing.T) {
	s := newShop(t, embedtest.New(t).Endpoint())
	s.do("pools", "set", "db", "2")
	s.do("pools", "set", "task.resize", "1")
	s.coordinators("lead")
	s.submit("one", `
max_concurrent_steps: 6
steps:
  - {name: extract, items: {from: 1, to: 20}, concurrency: 3, shell: 'echo {{.index}} >> extract'}
  - {name: load, items: {from: 1, to: 8}, concurrency: 4, pools: {db: 1}, command: ["true"]}
  - {name: resize, items: [a, b, c, d], task: resize, command: ["true"]}
  - {name: report, needs: [extract, load, resize], shell: wc -l < extract > report}
`)
	s.submit("two", `
steps:
  - {name: load, items: {from: 1, to: 8}, concurrency: 5, pools: {db: 1}, command: ["true"]}
  - {name: resize, items: [a, b, c], task: resize, command: ["true"]}
`)
	// They begin when all is published: so the windows are full.
	for _, w := range [][2]string{{"a", "worker"}, {"b", "worker"}, {"c", "worker"}, {"c", "second"}} {
		s.worker(w[0], w[1], 3)
	}
	s.ends("one", "succeeded")
	s.ends("two", "succeeded")
	s.wasRight(map[string]int{"one": 20 + 8 + 4 + 1, "two": 8 + 3})
	s.look(func(h *StepHistory) {
		for _, full := range []struct {
			run, step string
			want      int
		}{{"one", "extract", 3}, {"one", "", 6}, {"two", "load", 5}} {
			if got := h.Peak(full.run, full.step); got != full.want {
				t.Errorf("the most of %s/%s in flight were %d, want %d", full.run, full.step, got, full.want)
			}
		}
		by := map[string]bool{}
		for _, i := range append(h.Instances("one"), h.Instances("two")...) {
			for _, host := range i.Hosts {
				by[host] = true
			}
		}
		t.Logf("at work were %v", by)
	})
	if got := s.lines("report"); len(got) != 1 || got[0] != "20" {
		t.Errorf("the report counts %v items, want 20", got)
	}
}
