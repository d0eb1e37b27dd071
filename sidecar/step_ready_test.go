package sidecar

import (
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
)

// awaited is how a wait for a queue has ended.
type awaited struct {
	found []*step.Published
	err   error
}

// await has somebody wait for a queue, and returns when they do.
func (s *stage) await(a *api, in *session, wait time.Duration) <-chan awaited {
	ended := make(chan awaited, 1)
	go func() {
		found, _, err := a.awaitReady(s.t.Context(), in, &readyInput{Queue: step.DefaultQueue, Limit: 10}, wait)
		ended <- awaited{found, err}
	}()
	synctest.Wait()
	return ended
}

func TestAWaitForAQueueEndsInAllWays(t *testing.T) {
	onStage(t, func(s *stage) {
		a := &api{waits: newWaits()}
		in := &session{runs: s.executors, runStreams: make(chan struct{}, 1)}
		first := s.await(a, in, time.Minute)
		if second := <-s.await(a, in, time.Minute); problem.CodeOf(second.err) != problem.Unavailable {
			t.Errorf("one too many: %v", second.err)
		}
		s.published("worker", func(sp *step.Spec) { sp.External, sp.Shell = false, "true" })
		pass(time.Second)
		if len(first) > 0 {
			t.Fatalf("it has ended with what is for workers: %+v", <-first)
		}
		id := s.published("a")
		if got := <-first; got.err != nil || len(got.found) != 1 || got.found[0].Run != "a" {
			t.Errorf("%+v", got)
		}
		s.takeOne(id, "", time.Hour)
		begun := time.Now()
		if got := <-s.await(a, in, time.Minute); got.err != nil || len(got.found) != 0 || time.Since(begun) != time.Minute {
			t.Errorf("%+v after %s", got, time.Since(begun))
		}
		last := s.await(a, in, time.Minute)
		a.waits.stop(errStopping)
		if got := <-last; problem.CodeOf(got.err) != problem.Stopping {
			t.Errorf("%+v", got)
		}
	})
}

// The document describes steps by a type of its own, since that of the steps knows
// nothing of documents.
func TestStepsAreDescribedByTheirFields(t *testing.T) {
	names := func(t reflect.Type) []string { return slices.Sorted(slices.Values(shapeOf(t).names)) }
	got, want := names(reflect.TypeFor[stepSpec]()), names(reflect.TypeFor[step.Spec]())
	if !slices.Equal(got, want) {
		t.Errorf("described are %v, and there are %v", got, want)
	}
}
