package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
)

// asks waits until a worker has asked for the slots of so many instances.
func (c *crew) asks(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the worker has asked for the slots of %d instances", n), func() bool {
		asked := 0
		c.do(t, func() { asked = len(c.waiting) })
		return asked == n
	})
}

// Three workers wait for the slots of the same 15 instances: that is 15 waiters, and a
// claim behind them is at position 16 and no other.
func TestAnInstanceThatSeveralWorkersWaitForIsOneWaiter(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	y.pool("db", 0)
	var crews []*crew
	for _, host := range []string{"a", "b", "c"} {
		w := y.worker(host, "", 15, s)
		defer w.close(t)
		crews = append(crews, w)
	}
	y.submit("r", fan("m", 15, 0, from("db", 1)))
	for _, w := range crews {
		w.asks(t, 15)
	}
	// What is asked of an instance after that is written after it.
	last := behind(t, crews)
	defer last()
	all := ""
	for n := range 15 {
		all += fmt.Sprintf("m[%d] ", n)
	}
	got := ""
	defer func() {
		if t.Failed() {
			t.Logf("in the wait queue: %s", got)
		}
	}()
	eventually(t, "each instance is one waiter, in order, before the claims behind them", func() bool {
		got = strings.Join(y.line("db"), " ")
		return got == all+"behind behind behind"
	})
	for n, w := range crews {
		eventually(t, "a claim behind 15 instances is one of 18", func() bool { // each worker has a view of its own
			why, err := w.client.Why(t.Context(), fmt.Sprint("behind-", n))
			return err == nil && why.Reason.Position >= 16 && why.Reason.Waiting == 18
		})
	}
}

// behind has a claim wait behind all that each worker has asked for.
func behind(t *testing.T, crews []*crew) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n, w := range crews {
		all.Go(func() {
			_, _ = w.client.Claim(ctx, instance.Slots{"db": 1}, instance.WithID(fmt.Sprint("behind-", n)), instance.WithRun("other", "behind"), instance.WithPriority(-1), instance.WithWait(instance.MaxWait))
		})
	}
	return func() { cancel(); all.Wait() }
}

// active is how many instances a host had at most at a time, according to etcd, until so
// many have ended.
func (y *yard) active(host string, ends int) (most int) {
	y.t.Helper()
	ctx, cancel := context.WithTimeout(y.t.Context(), within)
	defer cancel()
	has := map[string]bool{}
	ended := 0
	for m := range y.runs.Backend.Watch(ctx, store.Prefix(y.runs.Keys.Active(host)), 1).Messages() {
		for n, ev := range m.Events {
			if ev.Type == mvccpb.Event_DELETE {
				delete(has, string(ev.Kv.Key))
				ended++
			} else {
				has[string(ev.Kv.Key)] = true
			}
			if n+1 == len(m.Events) || m.Events[n+1].Kv.ModRevision > ev.Kv.ModRevision {
				most = max(most, len(has))
			}
		}
		if ended >= ends {
			return most
		}
	}
	y.t.Fatalf("%d have ended, not %d", ended, ends)
	return 0
}

// A worker takes instances that have slots in several pools, in addition to those that need
// none, only as it has places for them: so it hands nothing back, and only what is started is
// reported as started.
func TestAWorkerNeverTakesMoreThanItHasPlacesFor(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	s.auto = true
	var specs []step.Spec
	for _, name := range []string{"a", "b", "c", "d"} {
		y.pool(name, 100)
		specs = append(specs, fan("of-"+name, 10, 0, from(name, 1)))
	}
	y.submit("r", append(specs, fan("plain", 20, 0))...)
	eventually(t, "all are published", func() bool {
		n := 0
		for _, s := range specs {
			n += y.statuses("r", s.Name, 10)[step.Scheduled]
		}
		return n+y.statuses("r", "plain", 20)[step.Scheduled] == 60
	})
	w := y.worker("one", "", 5, s)
	defer w.close(t)
	y.is("r", run.Succeeded)
	if n := y.active("one", 60); n > 5 {
		t.Errorf("the worker had %d at a time, and has 5 places", n)
	}
	for _, e := range y.events("r") {
		if e.Type == run.StepHandedBack {
			t.Errorf("it was taken and handed back: %v", e.Metadata)
		}
	}
}

// broken is a runner that starts nothing.
type broken struct{ *stage }

func (b broken) Start(string, *step.Taken, time.Duration, time.Duration) (Job, error) {
	return nil, errors.New("no more processes")
}

// types are the events of a run that are about its step instances.
func (y *yard) stepEvents(id string) (types []string) {
	y.t.Helper()
	for _, e := range y.events(id) {
		if text := string(e.Type); strings.HasPrefix(text, "Step") && !strings.HasPrefix(text, "StepSlot") {
			types = append(types, text)
		}
	}
	return types
}

func TestOnlyACommandThatWasStartedIsReportedAsStarted(t *testing.T) {
	t.Run("none could be started", func(t *testing.T) {
		y := newYard(t)
		w := y.worker("a", "", 1, broken{newStage()})
		defer w.close(t)
		y.submit("r", fan("m", 0, 0))
		y.is("r", run.Failed)
		if got := fmt.Sprint(y.stepEvents("r")); got != "[StepFailed]" {
			t.Errorf("events are %s", got)
		}
	})
	t.Run("its worker has come to drain", func(t *testing.T) {
		y, s := newYard(t), newStage()
		taking, goOn := make(chan struct{}), make(chan struct{})
		var once sync.Once
		f := &faulty{txn: func(_ context.Context, r *pb.TxnRequest) error {
			if strings.Contains(r.String(), "/ready/") {
				once.Do(func() { close(taking); <-goOn })
			}
			return nil
		}}
		w := y.faultyWorker("a", "", 1, s, f)
		defer w.close(t)
		y.submit("r", fan("m", 0, 0))
		<-taking
		ended := w.Drain(t.Context())
		close(goOn)
		<-ended
		if got := fmt.Sprint(y.stepEvents("r")); got != "[StepHandedBack]" {
			t.Errorf("events are %s", got)
		}
	})
	t.Run("it ends at once, or runs", func(t *testing.T) {
		y, s := newYard(t), newStage()
		w := y.worker("a", "", 1, s)
		defer w.close(t)
		y.submit("r", fan("m", 2, 0))
		s.runs(t, "r/m/000000")
		eventually(t, "it is reported while it runs", func() bool { return fmt.Sprint(y.stepEvents("r")) == "[StepStarted]" })
		s.mu.Lock()
		s.auto = true
		s.mu.Unlock()
		s.end("r/m/000000", succeeded)
		y.is("r", run.Succeeded)
		if got := fmt.Sprint(y.stepEvents("r")); got != "[StepStarted StepSucceeded StepStarted StepSucceeded]" {
			t.Errorf("events are %s", got)
		}
	})
}
