package step

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Work is the rendered work of one instance.
type Work struct {
	// Command is a program with its arguments; none if External.
	Command []string `json:"command,omitempty"`
	// External states that an executor over HTTP does it.
	External bool              `json:"external,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	// Input is a JSON value; nil without one.
	Input json.RawMessage `json:"input,omitempty"`
	// Timeout bounds one attempt; 0 is no bound.
	Timeout Duration `json:"timeout,omitempty"`
}

// About is the data of the run for templates.
type About struct {
	RunID, Name  string
	Tags, Labels map[string]string
}

// Work renders the work of an instance, by the number of the step and the index of the item.
// If a template cannot be rendered for the item, that is an Invalid problem that names the
// field and the index. It parses the templates of the step. It is safe for concurrent use.
func (g *Graph) Work(number, index int, about About) (Work, error) {
	switch {
	case g.specs == nil:
		return Work{}, problem.New(problem.Internal, "a graph that was read from etcd has no items, and renders no work")
	case number < 0 || number >= len(g.shapes) || index < 0 || index >= g.shapes[number].Count:
		return Work{}, problem.New(problem.Internal, "there is no instance %d of step %d", index, number)
	}
	r, err := newRecipe(g.specs[number])
	if err != nil {
		return Work{}, err
	}
	w, err := r.render(index, about)
	if err != nil {
		return Work{}, err
	}
	w.Timeout = g.shapes[number].Timeout
	return w, nil
}

// eachWork renders the work of all instances and calls do with each. Templates and input are
// kept parsed for one step at a time: parsed, they can take 50 times the memory of their text.
func (g *Graph) eachWork(id string, spec *run.Spec, do func(id store.StepID, work []byte) error) error {
	about := About{RunID: id, Name: spec.Name, Tags: spec.Tags, Labels: spec.Labels}
	for n := range g.shapes {
		sh := &g.shapes[n]
		r, err := newRecipe(g.specs[n])
		if err != nil {
			return err
		}
		for i := range sh.Count {
			w, err := r.render(i, about)
			if err != nil {
				return err
			}
			w.Timeout = sh.Timeout
			if err := do(store.StepID{Run: id, Step: sh.Name, Index: i}, store.Encode(workValue{store.Now, w, sh.terms()})); err != nil {
				return err
			}
		}
	}
	return nil
}

// workValue is the value of work in etcd.
type workValue struct {
	store.V
	Work
	terms
}

// Encode encodes work for etcd.
func (w Work) Encode() []byte { return store.Encode(workValue{store.Now, w, terms{}}) }

// DecodeWork decodes work. Its error is a [*store.CorruptError].
func DecodeWork(key string, data []byte) (Work, error) {
	w, _, err := decodeWork(key, data)
	return w, err
}

func decodeWork(key string, data []byte) (Work, terms, error) {
	var v workValue
	if err := store.Decode(key, data, &v); err != nil {
		return Work{}, terms{}, err
	}
	if err := v.Work.check(); err != nil {
		return Work{}, terms{}, &store.CorruptError{Key: key, Reason: err}
	}
	return v.Work, v.terms, nil
}

// check returns an error if the work is not valid.
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

// Ready is a published instance, with all that a worker needs to take it.
type Ready struct {
	store.V
	Run   string `json:"run"`
	Step  string `json:"step"`
	Index int    `json:"index"`
	// Number is that among all instances of the run, from 0.
	Number int `json:"number,omitempty"`
	// Priority is that of the run.
	Priority int `json:"priority,omitempty"`
	// Attempt counts the starts before this one.
	Attempt int            `json:"attempt,omitempty"`
	Pools   map[string]int `json:"pools,omitempty"`
	Task    string         `json:"task,omitempty"`
	// External states that it is for executors over HTTP, not for workers.
	External bool          `json:"external,omitempty"`
	Retries  int           `json:"retries,omitempty"`
	Backoff  time.Duration `json:"backoff,omitempty"`
	// Place is that of its [Record].
	Place int64 `json:"place,omitempty"`
	// SubmittedBy is the identity that submitted the run.
	SubmittedBy string `json:"submitted_by,omitempty"`
	// Traceparent and Tracestate are the trace context of the run.
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
	// ScheduledAt is when it was published.
	ScheduledAt time.Time `json:"scheduled_at"`
}

// Published is a ready instance with its queue, order and revision.
type Published struct {
	Ready
	Queue string
	// Order is its place in the queue, which sorts by name.
	Order string
	// Revision is that of the publication, and of its record.
	Revision int64
}

// ID returns the id of the instance.
func (r *Ready) ID() store.StepID { return store.StepID{Run: r.Run, Step: r.Step, Index: r.Index} }

// OrderIn returns the order of an instance of a run in its queue. place is that of its
// [Record].
func OrderIn(r *run.Run, place int64, step, index int) string {
	return OrderOf(r.Priority, max(place, r.Place()), step, index, r.ID)
}

// OrderOf returns the order of an instance in its queue: by descending priority, then by the
// run, the step and the index.
func OrderOf(priority int, created int64, step, index int, id string) string {
	return fmt.Sprintf("%04d-%016x-%04d-%06d-%s", pool.MaxPriority-priority, created, step, index, id)
}

// DecodeReady decodes an instance of a key under [store.Keys.ReadyAll].
func DecodeReady(keys store.Keys, kv *mvccpb.KeyValue) (*Published, error) {
	key := string(kv.Key)
	queue, order, ok := strings.Cut(strings.TrimPrefix(key, keys.ReadyAll()), "/")
	if !ok || queue == "" || order == "" {
		return nil, &store.CorruptError{Key: key, Reason: errors.New("it is no key of a published step instance")}
	}
	p := &Published{Queue: queue, Order: order, Revision: kv.ModRevision}
	if err := store.Decode(key, kv.Value, &p.Ready); err != nil {
		return nil, err
	}
	if run.ValidateID(p.Run) != nil || pool.ValidateName(p.Step) != nil || p.Index < 0 {
		return nil, &store.CorruptError{Key: key, Reason: errors.New("run, step, index: it names no instance")}
	}
	if p.Attempt < 0 || p.Retries < 0 || p.Place < 0 {
		return nil, &store.CorruptError{Key: key, Reason: errors.New("attempt, retries or place is negative")}
	}
	return p, nil
}

// Encode encodes a ready instance.
func (r Ready) Encode() []byte {
	r.V = store.Now
	return store.Encode(r)
}

// Key returns the key of a published instance.
func (p *Published) Key(keys store.Keys) string { return keys.Ready(p.Queue) + p.Order }
