package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

func newLogger(w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: w})
}

func TestEachItemBecomesOneRunOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.lists("b\na\n", nil)
		s := r.source("x")
		r.wantRuns("inbox.b", "inbox.a")
		r.wait(time.Minute)
		r.lists("a\nc\nb\n", nil)
		r.wait(time.Minute)
		r.wantRuns("inbox.b", "inbox.a", "inbox.c")
		r.wantPolls("x0s", "x30s", "x1m0s", "x1m30s", "x2m0s")
		got, err := r.runs.Get(t.Context(), "inbox.c")
		if err != nil || got.Spec.Labels["source"] != "inbox" || got.Spec.Labels["item"] != "c" || got.Spec.Steps != 1 || got.SubmittedBy != "unauthenticated" {
			t.Errorf("%+v, %v", got, err)
		}
		// What was forgotten is not submitted again for as long as it is listed.
		r.forgetRun("inbox.a")
		r.wait(50 * time.Hour)
		r.wantRuns("inbox.b", "inbox.c")
		if l := r.last(); l.Listed != 3 || l.Submitted != 0 || l.By != "x" || l.Interval != 30*time.Second || l.LastGood.IsZero() {
			t.Errorf("%+v", l)
		}
		// Nor by the next process.
		s.stop()
		r.source("y")
		r.wantRuns("inbox.b", "inbox.c")
		if n := s.metric("berth_source_items_submitted_total"); n != 3 {
			t.Errorf("%v were counted", n)
		}
	})
}

// An item that is listed no more is remembered for a while, and for as long as its run
// is; when it comes back after that it is a new one.
func TestAnItemThatComesBack(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.lists("a\nb\nc\n", nil)
		r.source("x")
		r.lists("c", nil)
		r.wait(23 * time.Hour)
		r.forgetRun("inbox.a")
		r.lists("a", nil)
		r.wait(time.Minute)
		r.wantRuns("inbox.b", "inbox.c") // a was away for less than the time
		r.lists("", nil)
		r.wait(25 * time.Hour)
		if got := r.marked(); !slices.Equal(got, []string{"b", "c"}) { // their runs are there
			t.Errorf("marked are %q", got)
		}
		r.lists("a\nb", nil)
		r.wait(time.Minute)
		r.wantRuns("inbox.b", "inbox.c", "inbox.a")
		r.forgetRun("inbox.c")
		r.wait(time.Minute)
		if got := r.marked(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("marked are %q", got)
		}
	})
}

// A failed poll has no effect; consecutive failures are reported once, and retried at
// increasing intervals.
func TestLooksThatFail(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.lists("a", nil)
		s := r.source("x")
		r.lists("b", errors.New("the list command ended with exit status 3"))
		r.wait(4 * time.Minute)
		r.wantPolls("x0s", "x30s", "x1m0s", "x2m0s", "x4m0s")
		r.wantRuns("inbox.a")
		if l := r.last(); l.Failures != 4 || l.Error != "the list command ended with exit status 3" || !l.LastGood.Equal(r.begun) {
			t.Errorf("%+v", l)
		}
		r.lists("<html>\n", nil) // garbage
		r.wait(4 * time.Minute)
		r.wantPolls("x8m0s")
		if n := len(r.log.Lines("the poll failed")); n != 1 {
			t.Errorf("it was reported %d times: %q", n, r.log.Lines())
		}
		if n := s.metric("berth_source_polls_total failed"); n != 5 {
			t.Errorf("%v were counted", n)
		}
		// A wish does not wait.
		r.lists("b", nil)
		rev, err := r.Wake(t.Context(), "inbox")
		if err != nil {
			t.Fatal(err)
		}
		l, err := r.Await(t.Context(), "inbox", rev)
		if err != nil || l.Error != "" || l.Failures != 0 || l.Submitted != 1 {
			t.Errorf("%+v, %v", l, err)
		}
		r.wait(time.Minute)
		r.wantPolls("x8m1s", "x8m31s", "x9m1s")
		r.wantRuns("inbox.a", "inbox.b")
		if len(r.log.Lines("polls succeed again")) != 1 {
			t.Errorf("%q", r.log.Lines())
		}
		r.lists("b", errors.New("again"))
		r.wait(time.Minute)
		if n := len(r.log.Lines("the poll failed")); n != 2 {
			t.Errorf("it was reported %d times: %q", n, r.log.Lines())
		}
	})
}

func TestItemsThatAreRefusedDoNotHoldUpTheRest(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.specs.Steps[0].Command[1] = "{{.item.day}}"
		if _, _, err := r.runs.Submit(t.Context(), "inbox.taken", run.Spec{Name: "of another user"}); err != nil {
			t.Fatal(err)
		}
		good := func(id string) string { return fmt.Sprintf(`{"id": %q, "day": "mon"}`+"\n", id) }
		r.lists(good("a")+good("a")+`{"id": "b"}`+"\nx y\n"+good("taken")+good("c"), nil)
		r.source("x")
		r.wantRuns("inbox.taken", "inbox.a", "inbox.c")
		r.wait(time.Minute)
		want := Poll{
			By: "x", Interval: 30 * time.Second, Listed: 6, Refused: 4, LastGood: r.last().At, At: r.last().At,
			Refusal: `line 2: "a" is listed twice, first at line 1`,
		}
		if l := r.last(); l != want {
			t.Errorf("%+v", l)
		}
		for _, text := range []string{
			`at="line 2"`, `at="line 4"`, `steps.load.command[1]: instance 0: {{.item.day}}: .item has no field 'day': it has `, `run id \"inbox.taken\" is used by another run`,
		} {
			if n := len(r.log.Lines(text)); n != 1 {
				t.Errorf("%s was reported %d times in %q", text, n, r.log.Lines())
			}
		}
		if got := r.marked(); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("marked are %q", got)
		}
		// An item is mended where it comes from.
		r.lists(good("b"), nil)
		r.wait(time.Minute)
		r.wantRuns("inbox.taken", "inbox.a", "inbox.c", "inbox.b")
	})
}

// A pool that is missing is the fault of no item.
func TestARunThatCantBeHad(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.specs.Steps[0].Pools = map[string]int{"db": 1}
		r.lists("a\nb", nil)
		r.source("x")
		if l := r.last(); l.Failures != 1 || l.Refused != 0 || !strings.Contains(l.Error, `there is no pool "db"`) {
			t.Errorf("%+v", l)
		}
	})
}

// However the polling process ends, the next one continues, and no item becomes two runs.
func TestTheNextTakesOver(t *testing.T) {
	for name, end := range map[string]func(*process){
		"stopped": func(p *process) { p.stop() },
		"cut off": func(p *process) { p.by.Down() },
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				r.lists("a", nil)
				one := r.source("one")
				two := r.source("two")
				r.wait(time.Minute)
				r.wantPolls("one0s", "one30s", "one1m0s")
				o, err := r.Get(t.Context(), "inbox")
				if err != nil || len(o.Candidates) != 2 || o.Candidates[0].Host != "one" || o.Known != 1 {
					t.Errorf("%+v, %v", o, err)
				}
				r.lists("a\nb", nil) // before: the next polls immediately
				end(one)
				r.wait(15 * time.Second)
				if looks := r.looked(); !slices.ContainsFunc(looks, func(l string) bool { return strings.HasPrefix(l, "two") }) {
					t.Errorf("looks %q", looks)
				}
				r.wantRuns("inbox.a", "inbox.b")
				one.by.Up()
				r.wait(15 * time.Second)
				if one.metric("berth_source_leading") != 0 || two.metric("berth_source_leading") != 1 {
					t.Error("it is not the turn of exactly one")
				}
				r.looked()
				r.wait(time.Minute)
				if looks := r.looked(); len(looks) != 2 || !strings.HasPrefix(looks[0], "two") || !strings.HasPrefix(looks[1], "two") {
					t.Errorf("looks %q", looks)
				}
			})
		})
	}
}

// Two processes of one host can be candidates for one source.
func TestTwoOfOneHost(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		one := r.source("x")
		r.source("x")
		r.wait(20 * time.Second)
		r.looked()
		one.stop()
		r.wait(time.Second)
		if looks := r.looked(); len(looks) != 1 {
			t.Errorf("looks %q", looks)
		}
	})
}

func TestAStopEndsTheLook(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.hang = make(chan struct{})
		r.lists("a", nil)
		s := r.source("x")
		r.wantPolls("x0s")
		begun := time.Now()
		s.stop()
		if took := time.Since(begun); took > 0 {
			t.Errorf("it took %s", took)
		}
		r.wantRuns()
		if o, err := r.Get(t.Context(), "inbox"); err != nil || o.exists() {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

// A wake-up that is requested during a poll is served by another poll.
func TestAWishDuringALook(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.hang = make(chan struct{})
		r.lists("a", nil)
		s := r.source("x")
		rev, err := r.Wake(t.Context(), "inbox")
		if err != nil {
			t.Fatal(err)
		}
		r.wait(time.Second)
		close(r.hang)
		if _, err := r.Await(t.Context(), "inbox", rev); err != nil {
			t.Error(err)
		}
		r.wait(time.Second)
		r.wantPolls("x0s", "x2s")
		if n := s.metric("berth_source_wakes_total"); n != 1 {
			t.Errorf("%v were counted", n)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := r.Await(short, "inbox", rev+1000); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wake-up that was not requested: %v", err)
		}
	})
}

// A process that died between a submission and its mark makes no second run, also if the
// file of the source was changed meanwhile.
func TestASubmissionThatWasNotMarked(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.lists("a\nb", nil)
		s := r.source("x")
		s.stop()
		r.txn(store.DeleteAll(r.keys.DedupRecords("inbox")))
		r.specs.Run.Priority = 7
		r.source("y")
		r.wantRuns("inbox.a", "inbox.b")
		if l := r.last(); l.Refused != 0 || l.Submitted != 0 || l.Error != "" {
			t.Errorf("%+v", l)
		}
		if got := r.marked(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("marked are %q", got)
		}
	})
}

// While answers are lost, come late or are refused, every item still becomes one run.
func TestFaultsMakeNoSecondRun(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		queued := map[string]int{}
		r.root.Do(func(e *storetest.Etcd) { e.OnCommit(countRuns(r.keys, queued)) })
		r.lists(numbers(250), nil)
		one, two := r.source("one"), r.source("two")
		var calls atomic.Int64
		faults := func(storetest.Call) storetest.Fault {
			if n := calls.Add(1); n%7 == 0 {
				return storetest.Fault{Err: store.ErrUnavailable, Drop: n%2 == 0, LoseAnswer: n%2 == 1}
			}
			return storetest.Fault{}
		}
		one.by.Inject(faults)
		two.by.Inject(faults)
		for i := range 10 {
			r.lists(numbers(250+50*i), nil)
			r.wait(time.Minute)
			if i == 5 {
				one.stop()
			}
		}
		two.by.Inject(nil)
		r.wait(10 * time.Minute)
		if len(queued) != 700 || len(r.marked()) != 700 {
			t.Errorf("%d runs, %d marks", len(queued), len(r.marked()))
		}
		for id, times := range queued {
			if times != 1 {
				t.Errorf("%s was made %d times", id, times)
			}
		}
	})
}

// Marks that can't be read are not guessed.
func TestAMarkThatCantBeRead(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.txn(store.Put(r.keys.DedupRecord("inbox", "a"), []byte(`{"v":9}`), 0))
		r.lists("a\nb", nil)
		r.source("x")
		r.wantRuns()
		if l := r.last(); !strings.Contains(l.Error, "/b/sources/inbox/dedup/a") {
			t.Errorf("%+v", l)
		}
	})
}

// A candidate of another version polls in its turn; a key that is no candidate blocks none.
func TestACandidateOfAnotherVersion(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		other, _, err := r.root.Grant(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		r.txn(store.Put(r.keys.SourceCandidate("inbox", other), []byte(`{"v":2}`), other))
		r.txn(store.Put(r.keys.SourceCandidate("inbox", 99), []byte(`{"v":1}`), 0))
		r.source("x")
		r.wait(time.Minute)
		r.wantPolls()
		if err := r.root.Revoke(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		r.wait(time.Second)
		if looks := r.looked(); len(looks) != 1 {
			t.Errorf("looks %q", looks)
		}
	})
}

func TestSourcesAreListedAndDeleted(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		for _, name := range []string{"zeta", "inbox", "inbox-2"} {
			r.specs.Name = name
			r.lists("a\nb", nil)
			s := r.source("x")
			if err := r.Delete(t.Context(), name); problem.CodeOf(err) != problem.Precondition {
				t.Errorf("a source that runs: %v", err)
			}
			s.stop()
			if _, err := r.Wake(t.Context(), name); problem.CodeOf(err) != problem.Precondition {
				t.Errorf("wake a source that no process runs: %v", err)
			}
			r.root.Do(func(e *storetest.Etcd) {
				for kv := range e.All(r.keys.SourceWake(name)) {
					t.Errorf("it was woken all the same: %s", kv.Key)
				}
			})
		}
		all, err := r.All(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, o := range all {
			names = append(names, o.Name)
			if o.Known != 2 || o.Last == nil || len(o.Candidates) > 0 || len(o.Bad) > 0 {
				t.Errorf("%+v", o)
			}
		}
		if want := []string{"inbox-2", "inbox", "zeta"}; !slices.Equal(names, want) {
			t.Errorf("sources %q, want %q", names, want)
		}
		if err := r.Delete(t.Context(), "inbox"); err != nil {
			t.Error(err)
		}
		if all, err := r.All(t.Context()); err != nil || len(all) != 2 {
			t.Errorf("%+v, %v", all, err)
		}
		for name, code := range map[string]problem.Code{"inbox": problem.NotFound, "A": problem.Invalid} {
			if err := r.Delete(t.Context(), name); problem.CodeOf(err) != code {
				t.Errorf("delete %s: %v", name, err)
			}
			if _, err := r.Wake(t.Context(), name); problem.CodeOf(err) != code {
				t.Errorf("wake %s: %v", name, err)
			}
		}
	})
}

// Who has lost its place and does not know it yet submits, which does no harm, and marks
// nothing.
func TestWhoHasLostItsPlaceMarksNothing(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.hang = make(chan struct{})
		r.lists("a", nil)
		p := r.source("x")
		p.by.Freeze()
		r.txn(store.DeleteAll(r.keys.SourceCandidates("inbox")))
		close(r.hang)
		synctest.Wait()
		r.wantRuns("inbox.a")
		if got := r.marked(); len(got) > 0 {
			t.Errorf("marked are %q", got)
		}
		p.by.Thaw()
		r.wait(5 * time.Second)
		if got := r.marked(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("marked are %q", got)
		}
		r.wantRuns("inbox.a")
	})
}
