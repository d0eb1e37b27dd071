package step

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// at writes the record of a run with another status, as the leader would.
func (s *shelf) at(id string, status run.Status) {
	s.t.Helper()
	r, err := s.runs.Get(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	rec := r.Record
	rec.Status = status
	ops := []*pb.RequestOp{store.Put(s.Keys.Run(id), rec.Encode(), 0)}
	if status == run.Failed || status == run.Canceled {
		ops = append(ops, store.Put(s.Keys.Canceled(id), run.CanceledValue, 0))
	}
	s.commit(ops...)
}

// are writes the states of instances of a run, as in a[0]:failed.
func (s *shelf) are(id, states string) {
	s.t.Helper()
	for _, text := range strings.Fields(states) {
		which, status, _ := strings.Cut(text, ":")
		w, err := ParseWhich(which)
		if err != nil {
			s.t.Fatal(err)
		}
		s.is(store.StepID{Run: id, Step: w.Step, Index: w.Index}.String(), Record{
			Status: Status(status), Attempt: 1, Executor: &run.Executor{Host: "x"}, EndFence: 7,
		})
	}
}

// states are those that instances have, as in a[0]:failed.
func (s *shelf) states(id string) string {
	s.t.Helper()
	read, err := store.ReadAll(s.t.Context(), s.Backend, s.Keys.Steps(id))
	if err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for _, kv := range read.KVs {
		i, err := Decode(s.Keys, kv)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, i.Text()+":"+string(i.Status))
	}
	return strings.Join(all, " ")
}

// retry retries what is named.
func (s *shelf) retry(id string, names ...string) (*Retried, error) {
	s.t.Helper()
	var which []Which
	for _, name := range names {
		w, err := ParseWhich(name)
		if err != nil {
			s.t.Fatal(err)
		}
		which = append(which, w)
	}
	return s.Retry(s.t.Context(), s.runs, id, "by hand", which...)
}

// events are those of a run of some types, as TYPE: REASON METADATA.
func (s *shelf) events(id string, types ...run.EventType) (all []string) {
	s.t.Helper()
	found, err := s.runs.Events(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range found {
		if slices.Contains(types, e.Type) && e.Reason != "" {
			all = append(all, fmt.Sprintf("%s by %s: %s %v", e.Type, e.By, e.Reason, e.Metadata))
		}
	}
	return all
}

func wide(name string, count int, change ...func(*Spec)) Spec {
	s := Spec{Name: name, Command: []string{"true"}, Items: &Items{Range: &Range{From: 1, To: int64(count), By: 1}}}
	for _, f := range change {
		f(&s)
	}
	return s
}

func needing(names ...string) func(*Spec) { return func(s *Spec) { s.Needs = names } }
func finishing(s *Spec)                   { s.OnFailure = Finish }

func TestWhatIsTriedAgain(t *testing.T) {
	fails := []Spec{wide("a", 5), wide("b", 1, needing("a"))}
	goesOn := []Spec{wide("a", 3, finishing), wide("b", 1, needing("a")), wide("c", 2, finishing)}
	for name, tc := range map[string]struct {
		steps      []Spec
		states     string
		status     run.Status
		after      string // states that came after that status
		which      string
		want       string // states then
		wantStatus run.Status
		requested  int
		code       problem.Code
		message    string // a part of it
	}{
		"one, with what was stopped and not begun": {
			steps: fails, states: "a[0]:succeeded a[1]:failed a[2]:running", status: run.Failed, after: "a[2]:canceled a[3]:canceled",
			which: "a[1]", want: "a[0]:succeeded a[1]:requested a[2]:requested a[3]:requested", wantStatus: run.Queued, requested: 1,
		},
		"one that was stopped": {
			steps: fails, states: "a[0]:running", status: run.Canceled, after: "a[0]:canceled a[1]:canceled",
			which: "a[0]", want: "a[0]:requested a[1]:requested", wantStatus: run.Queued, requested: 1,
		},
		"all of a step": {
			steps: fails, states: "a[0]:failed a[1]:failed a[2]:succeeded", status: run.Failed, after: "a[3]:failed",
			which: "a", want: "a[0]:requested a[1]:requested a[2]:succeeded a[3]:requested", wantStatus: run.Queued, requested: 3,
		},
		"the whole run": {
			steps: goesOn, states: "a[0]:failed a[1]:canceled a[2]:succeeded c[0]:failed", status: run.Failed,
			want: "a[0]:requested a[1]:requested a[2]:succeeded c[0]:requested", wantStatus: run.Queued, requested: 3,
		},
		"what else has failed stays so": {
			steps: goesOn, states: "a[0]:failed a[1]:failed c[0]:failed c[1]:canceled", status: run.Failed,
			which: "c[0]", want: "a[0]:failed a[1]:failed c[0]:requested c[1]:canceled", wantStatus: run.Queued, requested: 1,
		},
		"while the run goes on": {
			steps: goesOn, states: "a[0]:failed a[1]:canceled a[2]:running", status: run.Running,
			which: "a", want: "a[0]:requested a[1]:requested a[2]:running", wantStatus: run.Running, requested: 2,
		},
		"before the run has begun": {
			steps: goesOn, states: "c[1]:canceled", status: run.NotStarted,
			which: "c[1]", want: "c[1]:requested", wantStatus: run.NotStarted, requested: 1,
		},
		"what was never begun": {
			steps: fails, status: run.Canceled, which: "b", wantStatus: run.Queued,
		},
		"what is on its way": {
			steps: goesOn, states: "a[0]:requested a[1]:scheduled a[2]:running", status: run.Running,
			which: "a[1]", want: "a[0]:requested a[1]:scheduled a[2]:running", wantStatus: run.Running,
		},
		"a run that is on its way": {
			steps: goesOn, states: "a[0]:failed", status: run.Running, want: "a[0]:failed", wantStatus: run.Running,
		},
		"several, of which one waits for the other": {
			steps: goesOn, states: "a[0]:failed a[1]:succeeded a[2]:succeeded b[0]:canceled", status: run.Failed,
			which: "b a", want: "a[0]:requested a[1]:succeeded a[2]:succeeded b[0]:requested", wantStatus: run.Queued, requested: 2,
		},

		"another one would fail the run": {
			steps: fails, states: "a[0]:failed a[3]:failed", status: run.Failed, which: "a[0]",
			code: problem.StepEnded, message: `run "r" would fail at once all the same: a[3] has failed, and on_failure of step 'a' is fail: name that as well, or retry the whole run`,
		},
		"one that was canceled by itself would": {
			steps: fails, states: "a[0]:canceled a[3]:failed", status: run.Failed, which: "a[3]",
			code: problem.StepEnded, message: "a[0] was canceled, and on_failure",
		},
		"others would": {
			steps: fails, states: "a[0]:failed a[2]:canceled a[3]:failed", status: run.Failed, which: "a[0]",
			code: problem.StepEnded, message: "2 other instances of step 'a' have failed or were canceled",
		},
		"it would wait for ever": {
			steps: goesOn, states: "a[1]:failed", status: run.Failed, which: "b",
			code: problem.StepEnded, message: `step 'b' of run "r" would not go: it waits for step 'a', and a[1] has failed: name that as well`,
		},
		"it would wait for ever, in a run that goes on": {
			steps: goesOn, states: "a[1]:failed b[0]:canceled", status: run.Running, which: "b[0]",
			code: problem.StepEnded, message: "a[1] has failed: name that as well",
		},
		"one that has succeeded": {
			steps: fails, states: "a[0]:succeeded a[1]:failed", status: run.Failed, which: "a[0]",
			code: problem.StepEnded, message: "a[0] of run \"r\" has succeeded",
		},
		"a step that has succeeded": {
			steps: goesOn, states: "c[0]:succeeded c[1]:succeeded a[0]:failed", status: run.Failed, which: "c",
			code: problem.StepEnded, message: "step 'c' of run \"r\" has succeeded",
		},
		"a run that has succeeded": {
			steps: fails, status: run.Succeeded, which: "a", code: problem.RunEnded, message: "under another id",
		},
		"something is being stopped": {
			steps: fails, states: "a[0]:failed a[1]:running", status: run.Failed, which: "a[0]",
			code: problem.RunNotEnded, message: "a[1] of run \"r\" is still being stopped",
		},
		"a run that is being stored": {
			steps: fails, status: run.Storing, which: "a", code: problem.RunNotEnded, message: "stored",
		},
		"no such step":     {steps: fails, status: run.Failed, which: "x", code: problem.StepNotFound, message: `no step "x"`},
		"no such instance": {steps: fails, status: run.Failed, which: "a[5]", code: problem.StepNotFound, message: "it has 5, from 0 on"},
	} {
		t.Run(name, func(t *testing.T) {
			onShelf(t, func(t *testing.T, s *shelf) {
				s.submit("r", tc.steps...)
				s.are("r", tc.states)
				s.at("r", tc.status)
				s.are("r", tc.after)
				before := s.states("r")
				done, err := s.retry("r", strings.Fields(tc.which)...)
				if tc.code != "" {
					if problem.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.message) {
						t.Errorf("%s: %v, want %s: …%s…", problem.CodeOf(err), err, tc.code, tc.message)
					}
					if got := s.states("r"); got != before {
						t.Errorf("the states are %s, were %s", got, before)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				queued := tc.wantStatus == run.Queued
				if done.Run.Status != tc.wantStatus || done.Queued != queued || done.Requested != tc.requested {
					t.Errorf("%s, %v, %d", done.Run.Status, done.Queued, done.Requested)
				}
				if got := s.states("r"); got != tc.want {
					t.Errorf("the states are %s, want %s", got, tc.want)
				}
				if r, err := s.runs.Get(t.Context(), "r"); err != nil || r.Revision != done.Run.Revision || r.Status != done.Run.Status {
					t.Errorf("the run is %+v, %v; the result was %+v", r, err, done.Run)
				}
				var want []string
				if tc.which != "" && tc.requested > 0 {
					of := strings.Join(strings.Fields(tc.which), ", ")
					want = append(want, fmt.Sprintf("StepRetried by test/test: by hand map[instances:%d step:%s]", tc.requested, of))
				}
				if queued {
					want = append(want, "RunQueued by test/test: by hand map[priority:0]")
				}
				if diff := cmp.Diff(want, s.events("r", run.StepRetried, run.RunQueued)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// What its last executor needs to ask for its end once more is kept; its attempts begin
// again, and no mark is left that would stop the next.
func TestARequestedInstanceBeginsAgain(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("r", wide("a", 2, finishing))
		s.are("r", "a[0]:failed")
		s.at("r", run.Running)
		id := store.StepID{Run: "r", Step: "a"}
		s.commit(store.Put(s.Keys.CanceledStep(id), run.CanceledValue, 0))
		if _, err := s.retry("r", "a[0]"); err != nil {
			t.Fatal(err)
		}
		i, err := s.Get(t.Context(), id)
		if want := (Record{V: store.Now, Status: Requested, EndFence: 7}); err != nil || i.Record != want {
			t.Errorf("%+v, %v", i, err)
		}
		if resp, err := s.Backend.Range(t.Context(), &pb.RangeRequest{Key: []byte(s.Keys.CanceledStep(id))}); err != nil || len(resp.Kvs) > 0 {
			t.Errorf("its mark is left: %v", err)
		}
	})
}

// etcd is the stand-in itself.
func (s *shelf) etcd() *storetest.Backend { return s.Backend.(*storetest.Backend) }

// puts counts how often an instance came to have a status, and a run.
func (s *shelf) puts(key string, is func(value []byte) bool) (n int) {
	s.etcd().Do(func(e *storetest.Etcd) {
		for _, rev := range e.History() {
			for _, ev := range rev.Events {
				if string(ev.Kv.Key) == key && is(ev.Kv.Value) {
					n++
				}
			}
		}
	})
	return n
}

func has(status string) func([]byte) bool {
	return func(value []byte) bool { return strings.Contains(string(value), `"status":"`+status+`"`) }
}

// However many answers are lost, each instance is requested once, and the run queued
// once, even if the instance has failed again before the next read.
func TestARetryWhoseAnswersAreLostIsMadeOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		status run.Status
		which  []string
		again  func(s *shelf) // what happens after a lost answer
	}{
		"of a run that goes on": {run.Running, []string{"a"}, nil},
		"it has failed again at once": {run.Running, []string{"a[0]"}, func(s *shelf) {
			if s.states("r") == "a[0]:requested a[1]:failed" {
				s.are("r", "a[0]:failed")
			}
		}},
		"it has succeeded at once": {run.Running, []string{"a[0]"}, func(s *shelf) {
			if s.states("r") == "a[0]:requested a[1]:failed" {
				s.are("r", "a[0]:succeeded")
			}
		}},
		"of one that has ended": {run.Failed, []string{"a"}, nil},
		"it runs again at once": {run.Failed, []string{"a"}, func(s *shelf) {
			if r, err := s.runs.Get(s.t.Context(), "r"); err == nil && r.Status == run.Queued {
				s.at("r", run.Running)
			}
		}},
		"it has ended again at once": {run.Failed, []string{"a"}, func(s *shelf) {
			if r, err := s.runs.Get(s.t.Context(), "r"); err == nil && r.Status == run.Queued {
				s.are("r", "a[0]:failed")
				s.at("r", run.Failed)
			}
		}},
		"the whole run, and it has succeeded at once": {run.Failed, nil, func(s *shelf) {
			if r, err := s.runs.Get(s.t.Context(), "r"); err == nil && r.Status == run.Queued {
				s.are("r", "a[0]:succeeded a[1]:succeeded")
				s.at("r", run.Succeeded)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			onShelf(t, func(t *testing.T, s *shelf) {
				s.submit("r", wide("a", 2, finishing))
				s.are("r", "a[0]:failed a[1]:failed")
				s.at("r", tc.status)
				queued := s.puts(s.Keys.Run("r"), has("queued"))
				other := *s
				faulty := s.etcd().Peer()
				defer faulty.Close()
				lost := map[string]bool{} // the answers to writes, by what they write first
				faulty.Inject(func(c storetest.Call) storetest.Fault {
					switch {
					case c.Op == storetest.OpTxn:
						if key := string(c.Txn.Success[0].GetRequestPut().GetKey()); !lost[key] {
							lost[key] = true
							return storetest.Fault{LoseAnswer: true, Err: store.ErrUnavailable}
						}
					case c.Op == storetest.OpRange && len(lost) > 0 && tc.again != nil:
						tc.again(&other)
					}
					return storetest.Fault{}
				})
				s.Backend, s.runs.Backend = faulty, faulty
				done, err := s.retry("r", tc.which...)
				if err != nil {
					t.Fatal(err)
				}
				s.Backend, s.runs.Backend = other.Backend, other.runs.Backend
				if !lost[s.Keys.Step(store.StepID{Run: "r", Step: "a"})] || lost[s.Keys.Run("r")] != tc.status.Ended() {
					t.Errorf("the answers that were lost are those to %v", lost)
				}
				if done.Queued != tc.status.Ended() || done.Requested == 0 {
					t.Errorf("%+v", done)
				}
				for index := range done.Requested {
					if n := s.puts(s.Keys.Step(store.StepID{Run: "r", Step: "a", Index: index}), has("requested")); n != 1 {
						t.Errorf("a[%d] was requested %d times", index, n)
					}
				}
				if n := s.puts(s.Keys.Run("r"), has("queued")) - queued; n != 1 && tc.status.Ended() || n != 0 && !tc.status.Ended() {
					t.Errorf("the run was queued %d times", n)
				}
				if n := len(s.events("r", run.StepRetried)); n != min(1, len(tc.which)) {
					t.Errorf("%d events report it", n)
				}
			})
		})
	}
}

// Either the retry comes first, and what was decided on before is refused; or the end
// does, and the run is queued again.
func TestARetryRacesWithTheEndOfItsRun(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("r", wide("a", 2, finishing))
		s.are("r", "a[0]:failed a[1]:succeeded")
		s.at("r", run.Running)
		before, err := s.runs.Get(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.retry("r", "a[0]"); err != nil {
			t.Fatal(err)
		}
		ended, _ := before.End(run.Failed, "late", time.Now())
		_, err = store.Commit(t.Context(), s.Backend, []*pb.Compare{store.ModEquals(s.Keys.Run("r"), before.Revision)},
			store.Put(s.Keys.Run("r"), ended.Encode(), 0))
		if err != store.ErrChanged {
			t.Errorf("the end came after: %v", err)
		}

		s.are("r", "a[0]:failed")
		first := true
		faulty := s.etcd().Peer()
		defer faulty.Close()
		faulty.Inject(func(c storetest.Call) storetest.Fault {
			if c.Op == storetest.OpTxn && first {
				first = false
				s.at("r", run.Failed)
			}
			return storetest.Fault{}
		})
		by := *s
		by.Backend, by.runs.Backend = faulty, faulty
		done, err := by.retry("r", "a[0]")
		if err != nil || !done.Queued || s.states("r") != "a[0]:requested a[1]:succeeded" {
			t.Errorf("%+v, %v: %s", done, err, s.states("r"))
		}
	})
}

// A step of many instances is requested again in portions, each under the run as the one
// before has left it.
func TestManyAreTriedAgain(t *testing.T) {
	for _, status := range []run.Status{run.Running, run.Failed} {
		t.Run(string(status), func(t *testing.T) {
			onShelf(t, func(t *testing.T, s *shelf) {
				const count = 3*retryPuts + 7
				s.submit("r", wide("a", count, finishing))
				var all []string
				for index := range count {
					all = append(all, "a["+strconv.Itoa(index)+"]:failed")
				}
				s.are("r", strings.Join(all, " "))
				s.at("r", status)
				done, err := s.retry("r", "a")
				if err != nil || done.Requested != count {
					t.Fatalf("%+v, %v", done, err)
				}
				if got := s.overview("r").Steps[0].Counts[Requested]; got != count {
					t.Errorf("%d are requested", got)
				}
				if n := len(s.events("r", run.StepRetried)); n != 1 {
					t.Errorf("%d events", n)
				}
			})
		})
	}
}

func TestARetryIsBounded(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("r", wide("a", 2))
		_, err := s.Retry(t.Context(), s.runs, "r", strings.Repeat("x", run.MaxWhy+1))
		wantField(t, err, "reason", "")
		_, err = s.Retry(t.Context(), s.runs, "r", "", make([]Which, MaxWhich+1)...)
		wantField(t, err, "steps", "")
		if _, err := s.retry("no", "a"); problem.CodeOf(err) != problem.RunNotFound {
			t.Error(err)
		}
		s.commit(store.Put(s.Keys.Step(store.StepID{Run: "r", Step: "a"}), []byte("?"), 0))
		s.at("r", run.Failed)
		if _, err := s.retry("r"); problem.CodeOf(err) != problem.CorruptValue {
			t.Error(err)
		}
	})
}
