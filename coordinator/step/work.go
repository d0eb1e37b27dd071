package step

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Work is what one instance is to do, rendered.
type Work struct {
	// Command is a program and its arguments; none if External.
	Command []string `json:"command,omitempty"`
	// External has an executor do it that asks over HTTP.
	External bool              `json:"external,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	// Input is a JSON value, nil if there is none.
	Input json.RawMessage `json:"input,omitempty"`
	// Timeout bounds one attempt; 0 is no bound.
	Timeout Duration `json:"timeout,omitempty"`
}

// About is what templates can say of the run.
type About struct {
	RunID, Name  string
	Tags, Labels map[string]string
}

// Work renders what an instance is to do: of the step with that number, the item of
// that index. An item for which a template can't be rendered is an Invalid problem
// that names the field and the index. Several can be rendered at once.
func (g *Graph) Work(number, index int, about About) (Work, error) {
	switch {
	case g.recipes == nil:
		return Work{}, problem.New(problem.Internal, "a graph that was read from etcd has no items, and renders no work")
	case number < 0 || number >= len(g.shapes) || index < 0 || index >= g.shapes[number].Count:
		return Work{}, problem.New(problem.Internal, "there is no instance %d of step %d", index, number)
	}
	w, err := g.recipes[number].render(index, about)
	if err != nil {
		return Work{}, err
	}
	w.Timeout = g.shapes[number].Timeout
	return w, nil
}

// workValue is how work stands in etcd.
type workValue struct {
	store.V
	Work
}

// Encode writes work as it stands in etcd.
func (w Work) Encode() []byte { return store.Encode(workValue{store.Now, w}) }

// DecodeWork reads the value of the key of an instance's work. Its error is a
// [*store.CorruptError].
func DecodeWork(key string, data []byte) (Work, error) {
	var v workValue
	if err := store.Decode(key, data, &v); err != nil {
		return Work{}, err
	}
	if err := v.Work.check(); err != nil {
		return Work{}, &store.CorruptError{Key: key, Reason: err}
	}
	return v.Work, nil
}

// check refuses what nobody could do.
func (w *Work) check() error {
	switch {
	case w.External == (len(w.Command) > 0):
		return errors.New("command, external: it needs exactly one of the two")
	case !w.External && w.Command[0] == "":
		return errors.New("command[0]: it is empty, and must name a program")
	case w.Timeout < 0 || time.Duration(w.Timeout) > MaxTimeout:
		return errors.New("timeout: it is out of range")
	}
	for _, arg := range w.Command {
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("command: %w", errNUL)
		}
	}
	for name, value := range w.Env {
		if !isVariable(name) || strings.ContainsRune(value, 0) {
			return fmt.Errorf("env: %q can't be set", problem.Clip(name))
		}
	}
	return nil
}
