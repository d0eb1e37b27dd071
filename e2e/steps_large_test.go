//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	steppkg "github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar/worker"
)

// idlePart is what a worker whose instances do nothing needs to know.
type idlePart struct {
	Endpoints   []string
	Host        string
	Concurrency int
}

// playIdle is a worker in a process of its own, which starts no commands: each instance
// has succeeded as soon as it was begun.
func playIdle(part []byte, in io.Reader, say func(report)) error {
	var p idlePart
	if err := json.Unmarshal(part, &p); err != nil {
		return err
	}
	client, err := instance.Open(context.Background(), instance.Options{
		Endpoints: p.Endpoints, Host: p.Host, Instance: worker.Role, Role: worker.Role, Capacity: p.Concurrency,
	})
	if err != nil {
		return err
	}
	w := worker.New(worker.Config{
		Client: client, Queues: []string{steppkg.DefaultQueue}, Concurrency: p.Concurrency, Runner: idle{},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	say(report{Event: "open"})
	_, err = io.Copy(io.Discard, in)
	cancel()
	if ran := <-ended; !errors.Is(ran, context.Canceled) {
		err = errors.Join(err, ran)
	}
	return errors.Join(err, client.Leave())
}

// idle is a runner of nothing, and its jobs.
type idle struct{}

var over = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (idle) Start(string, *steppkg.Taken, time.Duration, time.Duration) (worker.Job, error) {
	return idle{}, nil
}
func (idle) Open(string, *steppkg.Taken) (worker.Job, error) { return nil, nil }
func (idle) Done() <-chan struct{}                           { return over }
func (idle) Outcome() steppkg.Outcome                        { return steppkg.Outcome{Status: steppkg.Succeeded} }
func (idle) Output(int) []byte                               { return nil }
func (idle) Stop(string)                                     {}
func (idle) Extend(time.Duration)                            {}
func (idle) Close()                                          {}

// memoryPeak is the most memory that a process has had, in bytes.
func memoryPeak(t testing.TB, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("the kernel does not tell the memory of process %d", pid)
	return 0
}

// Many items go through a window on four workers, and neither the processes nor the
// database grow without bound.
func TestManyItemsThroughAWindow(t *testing.T) {
	items, mostMemory, mostData := 2_000, int64(256<<20), int64(64<<20)
	if os.Getenv("BERTH_LONG") != "" {
		items, mostData = 10_000, 256<<20
	}
	srv := embedtest.New(t)
	s := newShop(t, srv.Endpoint())
	leads := s.coordinators("lead")
	pids := map[string]int{"coordinator": leads["lead"].cmd.Process.Pid}
	for i := range 4 {
		host := fmt.Sprintf("host%d", i)
		p := begins(t, host, "idle", idlePart{Endpoints: []string{srv.Endpoint()}, Host: host, Concurrency: 15})
		t.Cleanup(p.kill)
		p.hear("open", "")
		pids[host] = p.cmd.Process.Pid
	}
	begun := time.Now()
	s.submit("r", fmt.Sprintf(`
steps:
  - {name: m, items: {from: 1, to: %d}, concurrency: 50, command: ["true"]}
  - {name: last, needs: [m], command: ["true"]}
`, items))
	s.ends("r", "succeeded")
	took := time.Since(begun)
	s.wasRight(map[string]int{"r": items + 1})
	s.startedOnce("r")
	s.look(func(h *StepHistory) {
		if got := h.Peak("r", "m"); got != 50 {
			t.Errorf("%d were in flight at most, want 50", got)
		}
	})
	size := databaseSize(t, srv)
	t.Logf("%d items in %s: %.0f/s; database: %d MB", items, took.Round(time.Millisecond), float64(items)/took.Seconds(), size>>20)
	if size > mostData {
		t.Errorf("the database has grown to %d MB, allowed are %d", size>>20, mostData>>20)
	}
	for name, pid := range pids {
		peak := memoryPeak(t, pid)
		t.Logf("%s: at most %d MB of memory", name, peak>>20)
		if peak > mostMemory {
			t.Errorf("%s has had %d MB of memory, allowed are %d", name, peak>>20, mostMemory>>20)
		}
	}
}
