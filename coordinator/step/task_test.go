package step

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/registry"
)

// ofTask is a step of a task with a limit; below -1 it declares none.
func ofTask(name, task string, limit int) Spec {
	s := Spec{Name: name, Command: []string{"true"}, Task: Task{Name: task}}
	if limit >= pool.Unlimited {
		s.Task.Limit = &limit
	}
	return s
}

// try submits a run that may be refused.
func (s *shelf) try(id string, steps ...Spec) (created bool, err error) {
	g, err := NewGraph(steps)
	if err != nil {
		return false, err
	}
	_, created, err = s.Submit(s.t.Context(), s.runs, id, run.Spec{}, g)
	return created, err
}

// limits are those of the pools that there are.
func (s *shelf) limits() string {
	all, err := list.Read(s.t.Context(), s.Backend, s.Keys)
	if err != nil {
		s.t.Fatal(err)
	}
	var texts []string
	for _, p := range all.Pools() {
		texts = append(texts, fmt.Sprint(p.Name, "=", p.Limit))
	}
	return strings.Join(texts, " ")
}

// keysOf is how many keys there are of a run.
func (s *shelf) keysOf(id string) (n int) {
	s.etcd().Do(func(e *storetest.Etcd) {
		for kv := range e.All(s.Keys.Prefix()) {
			if strings.Contains(string(kv.Key), "/"+id) {
				n++
			}
		}
	})
	return n
}

func TestATaskThatDeclaresItsLimitHasItsPoolCreatedOrChecked(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		if created, err := s.try("first", ofTask("a", "resize", 4), ofTask("b", "resize", 4), ofTask("c", "mail", 0), ofTask("d", "free", -2)); err != nil || !created {
			t.Fatal(created, err)
		}
		if got := s.limits(); got != "task.mail=0 task.resize=4" {
			t.Errorf("the pools are %q", got)
		}
		if _, err := s.try("same", ofTask("a", "resize", 4), ofTask("plain", "resize", -2)); err != nil {
			t.Error(err)
		}
		_, err := s.try("other", ofTask("new", "fresh", 1), ofTask("x", "resize", 5))
		const want = `steps.x.task.limit: it declares 5 for task "resize", and pool 'task.resize' has the limit 4: declare 4, leave the limit out, or change it with 'berth pools set task.resize 5'`
		if problem.CodeOf(err) != problem.Invalid || err.Error() != want {
			t.Errorf("another limit: %v", err)
		}
		// What is refused leaves neither a pool nor a part of the run.
		if got := s.limits(); got != "task.mail=0 task.resize=4" || s.keysOf("other") > 0 {
			t.Errorf("after a refusal the pools are %q, and %d keys are of the run", got, s.keysOf("other"))
		}
		if _, err := s.try("first", ofTask("y", "fresh", 1)); problem.CodeOf(err) != problem.IDInUse || strings.Contains(s.limits(), "fresh") {
			t.Errorf("the id of another run: %v; the pools are %q", err, s.limits())
		}
		// The operator's word is the last, and what was submitted before is found again.
		five := 5
		if _, err := (registry.Registry{Backend: s.Backend, Keys: s.Keys}).Set(t.Context(), "task.resize", pool.Change{Limit: &five}); err != nil {
			t.Fatal(err)
		}
		if created, err := s.try("first", ofTask("a", "resize", 4), ofTask("b", "resize", 4), ofTask("c", "mail", 0), ofTask("d", "free", -2)); err != nil || created {
			t.Errorf("the same again: %v, %v", created, err)
		}
		if _, err := s.try("first", ofTask("a", "resize", 5), ofTask("b", "resize", 5), ofTask("c", "mail", 0), ofTask("d", "free", -2)); problem.CodeOf(err) != problem.IDInUse {
			t.Errorf("the same with another limit: %v", err)
		}
		if _, err := s.try("fifth", ofTask("a", "resize", 5)); err != nil {
			t.Error(err)
		}
	})
}

func TestOfTwoThatDeclareDifferentLimitsAtOnceOneIsRefused(t *testing.T) {
	for range 20 {
		onShelf(t, func(t *testing.T, s *shelf) {
			errs := make([]error, 2)
			var both sync.WaitGroup
			for n := range errs {
				both.Go(func() {
					_, errs[n] = s.try(fmt.Sprint("r", n), ofTask("a", "resize", n+1), ofTask("b", fmt.Sprint("own", n), 1))
				})
			}
			both.Wait()
			if (errs[0] == nil) == (errs[1] == nil) {
				t.Fatalf("both get the same result: %v, %v", errs[0], errs[1])
			}
			won := 0
			if errs[0] != nil {
				won = 1
			}
			lost := 1 - won
			if got, want := s.limits(), fmt.Sprintf("task.own%d=1 task.resize=%d", won, won+1); got != want || s.keysOf(fmt.Sprint("r", lost)) > 0 {
				t.Errorf("the pools are %q, want %q; %d keys are of the run that was refused: %v", got, want, s.keysOf(fmt.Sprint("r", lost)), errs[lost])
			}
		})
	}
}

func TestWhatATaskCantDeclareIsRefused(t *testing.T) {
	many := make([]Spec, maxDeclared+1)
	for i := range many {
		many[i] = ofTask(fmt.Sprint("s", i), fmt.Sprint("t", i), 1)
	}
	for want, steps := range map[string][]Spec{
		`steps.b.task.limit: it declares 5 for task "t", and step 'a' declares 4: a task has one limit`: {ofTask("a", "t", 4), ofTask("b", "t", 5)},
		"steps.a.task.limit: 1000001 is out of range: use 1 to 1000000, 0 (closed) and -1 (unlimited)":  {ofTask("a", "t", 1000001)},
		"steps.a.task.name: it is missing: a limit needs the name of its task":                          {ofTask("a", "", 1)},
		"steps.s50.task: 51 tasks that declare a limit are too many for one run: use at most 50":        many,
		"steps.a.pools.task.t: it is the pool of task \"t\", which takes its slot already: one of the two has to go": {
			{Name: "a", Shell: "x", Task: ofTask("", "t", 1).Task, Pools: map[string]int{"task.t": 1}},
		},
	} {
		if _, err := NewGraph(steps); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := NewGraph(many[:maxDeclared]); err != nil {
		t.Error(err)
	}
}

func TestTasksAreReadAsTheyAreWritten(t *testing.T) {
	for text, ok := range map[string]bool{
		`"resize"`: true, `{"name":"resize","limit":4}`: true, `{"name":"resize","limit":-1}`: true, `""`: true,
		`{"name":"resize"}`: false, `{"limit":4}`: false, `{"name":"resize","limit":4,"max":1}`: false,
		`{"name":"resize","limit":"4"}`: false, `{"name":"resize","limit":4.5}`: false, `["resize"]`: false, `4`: false, `{"name":"resize","limit":null}`: false,
	} {
		var got Task
		err := json.Unmarshal([]byte(text), &got)
		if (err == nil) != ok {
			t.Errorf("%s is read as %+v, %v", text, got, err)
		}
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			if wrong.Field != "limit" {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), "task: ") || !strings.Contains(err.Error(), `use a name, and {"name": "resize", "limit": 4}`) {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		if again, err := json.Marshal(got); err != nil || string(again) != text {
			t.Errorf("%s is written as %s, %v", text, again, err)
		}
	}
}

// A restore of etcd can take a run while its work is written, or before it is queued. What is
// answered lets the client submit it again.
func TestARunThatGoesWhileItIsSubmittedCanBeSubmittedAgain(t *testing.T) {
	for _, at := range []int{2, 3} {
		onShelf(t, func(t *testing.T, s *shelf) {
			faulty := s.etcd().Peer()
			defer faulty.Close()
			txns := 0
			faulty.Inject(func(c storetest.Call) storetest.Fault {
				if c.Op == storetest.OpTxn {
					if txns++; txns == at {
						s.commit(store.Delete(s.Keys.Run("r")))
					}
				}
				return storetest.Fault{}
			})
			by := *s
			by.Backend, by.runs.Backend = faulty, faulty
			_, _, err := by.Submit(t.Context(), by.runs, "r", run.Spec{}, mustGraph(t, wide("a", 2)))
			if problem.CodeOf(err) != problem.EtcdUnavailable {
				t.Errorf("when transaction %d is sent: %v", at, err)
			}
			if _, _, err := s.Submit(t.Context(), s.runs, "r", run.Spec{}, mustGraph(t, wide("a", 2))); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}
