package step

import (
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// tally counts the states of a run's instances.
type tally struct {
	view   *view
	steps  []Summary
	number map[string]int // by name
	ended  []time.Time    // the last end of each step
	bad    []int          // states of each step that can't be read
}

func newTally(v *view) *tally {
	shapes := v.graph.Shapes()
	t := &tally{
		view: v, steps: make([]Summary, len(shapes)), number: make(map[string]int, len(shapes)),
		ended: make([]time.Time, len(shapes)), bad: make([]int, len(shapes)),
	}
	for n, sh := range shapes {
		t.number[sh.Name] = n
		needs := make([]string, len(sh.Needs))
		for i, before := range sh.Needs {
			needs[i] = shapes[before].Name
		}
		t.steps[n] = Summary{Shape: sh, Needs: needs, Counts: map[Status]int{}}
	}
	return t
}

var errNoInstance = errors.New("the graph of its run has no such instance")

// add counts an instance that has a state.
func (t *tally) add(key string, i *Instance) error {
	n, ok := t.number[i.Step]
	if !ok || i.Index >= t.steps[n].Shape.Count {
		return &store.CorruptError{Key: key, Reason: errNoInstance}
	}
	s := &t.steps[n]
	s.Counts[i.Status]++
	if at := i.StartedAt; !at.IsZero() && (s.StartedAt.IsZero() || at.Before(s.StartedAt)) {
		s.StartedAt = at
	}
	if i.EndedAt.After(t.ended[n]) {
		t.ended[n] = i.EndedAt
	}
	return nil
}

// lose leaves a state out that can't be read: nobody knows what its instance is, but
// it is not one without a state.
func (t *tally) lose(keys store.Keys, kv *mvccpb.KeyValue) {
	id, err := store.ParseStepID(strings.TrimPrefix(string(kv.Key), keys.StepsAll()))
	if n, ok := t.number[id.Step]; err == nil && ok && id.Index < t.steps[n].Shape.Count {
		t.bad[n]++
	}
}

// summaries are the steps, when all states were counted.
func (t *tally) summaries() []Summary {
	for n := range t.steps {
		s := &t.steps[n]
		rest := s.Shape.Count - t.bad[n]
		for _, count := range s.Counts {
			rest -= count
		}
		if rest > 0 { // they have no state
			none := t.view.shown(&Instance{Record: Record{Status: Requested}})
			s.Counts[none.Status] += rest
			if none.EndedAt.After(t.ended[n]) {
				t.ended[n] = none.EndedAt
			}
		}
		if s.Counts[Succeeded]+s.Counts[Failed]+s.Counts[Canceled] == s.Shape.Count {
			s.EndedAt = t.ended[n]
		}
	}
	return t.steps
}
