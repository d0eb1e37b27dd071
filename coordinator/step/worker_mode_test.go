package step

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestTheModeOfAWorkerIsKept(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		id := WorkerID{"a", "worker"}
		var befores []WorkerMode
		set := func(m WorkerMode) bool {
			t.Helper()
			before, changed, err := s.SetWorkerMode(t.Context(), id, WorkerState{Mode: m, At: time.Now(), By: "ann", From: "desk"})
			if err != nil {
				t.Fatal(err)
			}
			if changed {
				befores = append(befores, before)
			}
			return changed
		}
		is := func(want WorkerMode) {
			t.Helper()
			states, bad, err := s.WorkerStates(t.Context())
			if err != nil || len(bad) > 0 || states[id].Mode != want {
				t.Errorf("%v, %v, %v, want %s", states, bad, err, want)
			}
		}
		if set(Working) || !set(Drained) || set(Drained) {
			t.Error("a change is reported where there is none, or the other way round")
		}
		is(Drained)
		set(Stopped)
		is(Stopped)
		set(Working)
		is("")
		s.commit(store.Put(s.Keys.Worker("a", "worker"), []byte("?"), 0))
		if _, bad, err := s.WorkerStates(t.Context()); err != nil || len(bad) != 1 {
			t.Errorf("a broken one: %v, %v", bad, err)
		}
		set(Working)
		if want := []WorkerMode{Working, Drained, Stopped, ""}; strings.Join(texts(befores), ",") != strings.Join(texts(want), ",") {
			t.Errorf("before it was %v, want %v", befores, want)
		}
	})
}

func texts(modes []WorkerMode) (all []string) {
	for _, m := range modes {
		all = append(all, string(m))
	}
	return all
}

func FuzzWorkerState(f *testing.F) {
	keys := store.NewKeys("/b/")
	f.Add("/b/workers/a/worker", []byte(`{"v":1,"mode":"drained","at":"2026-11-22T15:00:00Z","by":"ann","from":"desk","reason":"disk"}`))
	f.Add("/b/workers/a", []byte(`{"v":1,"mode":"stopped","at":"2026-11-22T15:00:00Z","by":"ann"}`))
	f.Add("/b/workers/a/b/c", []byte(`{"v":1,"mode":"working"}`))
	f.Add("/b/workers/a/worker", []byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, key string, data []byte) {
		id, s, err := DecodeWorkerState(keys, key, data)
		if corrupt := (*store.CorruptError)(nil); err != nil {
			if !errors.As(err, &corrupt) {
				t.Errorf("%v is no corrupt value", err)
			}
			return
		}
		again, same, err := DecodeWorkerState(keys, keys.Worker(id[0], id[1]), s.Encode())
		if err != nil || again != id || same.Mode != s.Mode || !same.At.Equal(s.At) || same.By != s.By || same.Reason != s.Reason {
			t.Errorf("%s %s is read again as %v %+v, %v", key, data, again, same, err)
		}
	})
}
