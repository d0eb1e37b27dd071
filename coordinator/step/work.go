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

// Ready is a published instance, with all that a worker needs to know to take it, and
// to decide what becomes of it if it fails.
type Ready struct {
	store.V
	Run   string `json:"run"`
	Step  string `json:"step"`
	Index int    `json:"index"`
	// Number of the instance among all of its run, from 0 on.
	Number int `json:"number,omitempty"`
	// Priority is the run's.
	Priority int `json:"priority,omitempty"`
	// Attempt counts the starts before this one.
	Attempt int            `json:"attempt,omitempty"`
	Pools   map[string]int `json:"pools,omitempty"`
	Task    string         `json:"task,omitempty"`
	// External ones are for executors over HTTP, and not for workers.
	External bool          `json:"external,omitempty"`
	Retries  int           `json:"retries,omitempty"`
	Backoff  time.Duration `json:"backoff,omitempty"`
	// Place is as that of its [Record].
	Place int64 `json:"place,omitempty"`
	// Scheduled is when it was published.
	ScheduledAt time.Time `json:"scheduled_at"`
}

// Published is a ready instance with what etcd says of it.
type Published struct {
	Ready
	Queue string
	// Order is its place in the queue: names sort as instances go.
	Order string
	// Revision at which it was published: its record has the same.
	Revision int64
}

// ID names the instance.
func (r *Ready) ID() store.StepID { return store.StepID{Run: r.Run, Step: r.Step, Index: r.Index} }

// OrderIn is the place of an instance of a run in its queue. The place is that of its
// [Record].
func OrderIn(r *run.Run, place int64, step, index int) string {
	return OrderOf(r.Priority, max(place, r.Place()), step, index, r.ID)
}

// OrderOf is the place of an instance in its queue: higher priority first, then the
// run that came first, then the steps of the run in their order, lowest index first.
func OrderOf(priority int, created int64, step, index int, id string) string {
	return fmt.Sprintf("%04d-%016x-%04d-%06d-%s", pool.MaxPriority-priority, created, step, index, id)
}

// DecodeReady reads the instance of a key under [store.Keys.ReadyAll].
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
	if p.Run == "" || p.Step == "" || p.Index < 0 {
		return nil, &store.CorruptError{Key: key, Reason: errors.New("run, step, index: it names no instance")}
	}
	return p, nil
}

// Encode writes a ready instance.
func (r Ready) Encode() []byte {
	r.V = store.Now
	return store.Encode(r)
}

// Key is where a published instance stands.
func (p *Published) Key(keys store.Keys) string { return keys.Ready(p.Queue) + p.Order }
