package step

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

func TestWhatIsExecutedIsCountedForWhoHasIt(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		const n = activeReads + 20
		s.submit("a", external("x", n))
		live := func(host, text string) {
			id, err := store.ParseStepID(text)
			if err != nil {
				t.Fatal(err)
			}
			s.commit(store.Put(s.Keys.ActiveStep(host, id), activeValue, 0))
		}
		for i := range n {
			text := store.StepID{Run: "a", Step: "x", Index: i}.String()
			s.is(text, Record{Status: Running, Attempt: 1, Executor: by("one")})
			live("one", text)
		}
		s.is("a/x/000001", Record{Status: Running, Executor: &run.Executor{Host: "one", Instance: "sidecar"}})
		s.is("a/x/000002", Record{Status: Succeeded, Executor: by("one")}) // it has just ended
		s.is("a/x/000003", Record{Status: Running, Executor: by("two")})   // it has just moved
		s.is("a/x/000004", Record{Status: Running, Executor: by("two")})
		live("two", "a/x/000004")
		s.commit(store.Put(s.Keys.ActiveAll()+"odd", activeValue, 0), store.Put(s.Keys.Step(store.StepID{Run: "a", Step: "x", Index: 5}), []byte("?"), 0))
		if _, _, err := s.runs.Submit(t.Context(), "plain", run.Spec{}); err != nil {
			t.Fatal(err)
		}
		r, err := s.runs.Get(t.Context(), "plain")
		if err != nil {
			t.Fatal(err)
		}
		rec := r.Record
		rec.Status, rec.Executor = run.Running, &run.Executor{Host: "two", Instance: "sidecar"}
		s.commit(store.Put(s.Keys.Run("plain"), rec.Encode(), 0), store.Put(s.Keys.ActiveRun("two", "plain"), activeValue, 0))
		got, err := s.Active(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		some, err := s.Executed(t.Context(), "two")
		if err != nil || len(some) != 1 || some[0].String() != "a/x/000004" {
			t.Errorf("on one host: %v, %v", some, err)
		}
		if all, err := s.Executed(t.Context(), ""); err != nil || len(all) != n-3 || all[0].Executor.Instance != "sidecar" || all[1].Index != 0 {
			t.Errorf("on all: %d, %v", len(all), err)
		}
		want := []Active{
			{Host: "one", Instance: "sidecar", Steps: 1}, {Host: "one", Instance: "worker", Steps: n - 5},
			{Host: "two", Instance: "sidecar", Runs: 1}, {Host: "two", Instance: "worker", Steps: 1},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}
