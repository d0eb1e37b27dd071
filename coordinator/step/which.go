package step

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Every is the index of a [Which] that names all instances of a step.
const Every = -1

// Which names one instance of a step, or all of them.
type Which struct {
	Step string
	// Index is [Every] for all.
	Index int
}

// ParseWhich reads STEP or STEP[INDEX].
func ParseWhich(text string) (Which, error) {
	name, rest, indexed := strings.Cut(text, "[")
	if name != "" && !indexed {
		return Which{name, Every}, nil
	}
	number, end, closed := strings.Cut(rest, "]")
	index, err := strconv.Atoi(number)
	if name == "" || !closed || end != "" || err != nil || index < 0 || strconv.Itoa(index) != number {
		return Which{}, fmt.Errorf("%q names no step instance: it is STEP or STEP[INDEX], as in 'extract[3]'", problem.Clip(text))
	}
	return Which{name, index}, nil
}

// String writes what [ParseWhich] reads.
func (w Which) String() string {
	if w.Index == Every {
		return w.Step
	}
	return store.StepID{Step: w.Step, Index: w.Index}.Text()
}

// One returns the instance that is named, which a step without an index is if it has no
// other. The run and the step have to be there.
func (s Store) One(ctx context.Context, id string, w Which) (store.StepID, error) {
	v, err := s.view(ctx, id)
	if err != nil {
		return store.StepID{}, err
	}
	n, err := v.step(w.Step)
	if err != nil {
		return store.StepID{}, err
	}
	sh, one := v.graph.Shapes()[n], store.StepID{Run: id, Step: w.Step, Index: w.Index}
	switch {
	case w.Index == Every && sh.Count > 1:
		return store.StepID{}, problem.Field("step", "step '%s' has %d instances: name one of them, as in %s[0]", w.Step, sh.Count, w.Step)
	case w.Index == Every:
		one.Index = 0
	case w.Index < 0 || w.Index >= sh.Count:
		return store.StepID{}, noInstance(id, &sh, w.Index)
	}
	return one, nil
}

// noInstance tells that a step has none of that index.
func noInstance(run string, sh *Shape, index int) error {
	return problem.New(problem.StepNotFound, "step %q of run %q has no instance %d: it has %d, from 0 on", sh.Name, run, index, sh.Count)
}
