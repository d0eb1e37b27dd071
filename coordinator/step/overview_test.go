package step

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// shelf is a store of runs and steps on a stand-in for etcd, on a fake clock.
type shelf struct {
	t *testing.T
	Store
	runs run.Store
}

func onShelf(t *testing.T, f func(*testing.T, *shelf)) {
	synctest.Test(t, func(t *testing.T) {
		root := storetest.NewBackend(storetest.New(storetest.Options{}))
		t.Cleanup(root.Close)
		keys := store.NewKeys("/b/")
		journal := run.NewJournal(root, keys, "test/test", 0)
		f(t, &shelf{
			t: t, Store: Store{Backend: root, Keys: keys, Journal: journal, Group: &store.Group{}},
			runs: run.Store{Backend: root, Keys: keys, Journal: journal},
		})
	})
}

// submit puts a run with steps into the queue.
func (s *shelf) submit(id string, specs ...Spec) {
	s.t.Helper()
	if _, _, err := s.Submit(s.t.Context(), s.runs, id, run.Spec{}, mustGraph(s.t, specs...)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shelf) commit(ops ...*pb.RequestOp) {
	s.t.Helper()
	if _, err := store.Commit(s.t.Context(), s.Backend, nil, ops...); err != nil {
		s.t.Fatal(err)
	}
}

// is writes the state of an instance.
func (s *shelf) is(text string, rec Record) {
	s.t.Helper()
	id, err := store.ParseStepID(text)
	if err != nil {
		s.t.Fatal(err)
	}
	s.commit(store.Put(s.Keys.Step(id), rec.Encode(), 0))
}

func (s *shelf) cancel(id string) {
	s.t.Helper()
	if _, err := s.runs.Cancel(s.t.Context(), id, "", false); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shelf) overview(id string) *Overview {
	s.t.Helper()
	o, err := s.Overview(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

// indexes are the instances of a page, as INDEX:STATUS.
func (s *shelf) indexes(id, name string, p Page) (text string, next int) {
	s.t.Helper()
	list, err := s.Instances(s.t.Context(), id, name, p)
	if err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for _, i := range list.Items {
		all = append(all, fmt.Sprintf("%d:%s", i.Index, i.Status))
	}
	return strings.Join(all, " "), list.Next
}

func external(name string, items int64) Spec {
	s := Spec{Name: name, External: true}
	if items > 0 {
		s.Items = &Items{Range: &Range{From: 1, To: items, By: 1}}
	}
	return s
}

func by(host string) *run.Executor { return &run.Executor{Host: host, Instance: "worker"} }

var noon = time.Date(1999, 12, 31, 12, 0, 0, 0, time.UTC) // the fake clock begins at midnight

func at(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }

// three is a step with an instance in each of some states, and one that needs it.
func (s *shelf) three() {
	after := external("load", 0)
	after.Needs = []string{"extract"}
	s.submit("a", external("extract", 6), after)
	s.submit("a-1", external("extract", 6)) // its keys are close by
	s.is("a-1/extract/000000", Record{Status: Failed})
	s.is("a/extract/000001", Record{Status: Succeeded, Attempt: 1, StartedAt: at(2), EndedAt: at(5)})
	s.is("a/extract/000002", Record{Status: Running, Attempt: 1, StartedAt: at(1), Executor: by("one")})
	s.is("a/extract/000003", Record{Status: Scheduled})
	s.is("a/extract/000005", Record{Status: Failed, Attempt: 1, StartedAt: at(3), EndedAt: at(4)})
}

func TestAnOverviewCountsWhatHasNoStateAsRequested(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.three()
		o := s.overview("a")
		if len(o.Steps) != 2 || len(o.Bad) != 0 || o.Run.ID != "a" {
			t.Fatalf("%+v", o)
		}
		want := map[Status]int{Requested: 2, Scheduled: 1, Running: 1, Succeeded: 1, Failed: 1}
		got := o.Steps[0]
		if d := cmp.Diff(want, got.Counts); d != "" || !got.StartedAt.Equal(at(1)) || !got.EndedAt.IsZero() || len(got.Needs) != 0 {
			t.Errorf("%+v\n%s", got, d)
		}
		next := o.Steps[1]
		if d := cmp.Diff(map[Status]int{Requested: 1}, next.Counts); d != "" || cmp.Diff([]string{"extract"}, next.Needs) != "" {
			t.Errorf("%+v\n%s", next, d)
		}
	})
}

func TestWhatHasNotEndedWhenItsRunHasIsCanceled(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.three()
		s.cancel("a")
		o := s.overview("a")
		if d := cmp.Diff(map[Status]int{Canceled: 4, Succeeded: 1, Failed: 1}, o.Steps[0].Counts); d != "" {
			t.Error(d)
		}
		if got := o.Steps[0].EndedAt; !got.Equal(o.Run.EndedAt) {
			t.Errorf("ended at %s, and the run at %s", got, o.Run.EndedAt)
		}
		text, _ := s.indexes("a", "extract", Page{Limit: 10})
		if want := "0:canceled 1:succeeded 2:canceled 3:canceled 4:canceled 5:failed"; text != want {
			t.Errorf("%s, want %s", text, want)
		}
		d, err := s.Detail(t.Context(), store.StepID{Run: "a", Step: "extract", Index: 2})
		if err != nil || d.Status != Canceled || d.Taken() != nil {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

func TestAStepHasEndedWithTheLastOfItsInstances(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", external("x", 2))
		s.is("a/x/000000", Record{Status: Succeeded, StartedAt: at(1), EndedAt: at(9)})
		if got := s.overview("a").Steps[0].EndedAt; !got.IsZero() {
			t.Errorf("ended at %s, and one has not", got)
		}
		s.is("a/x/000001", Record{Status: Failed, StartedAt: at(2), EndedAt: at(3)})
		if got := s.overview("a").Steps[0].EndedAt; !got.Equal(at(9)) {
			t.Errorf("ended at %s", got)
		}
	})
}

func TestInstancesAreListedInPages(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.three()
		for _, c := range []struct {
			page Page
			want string
			next int
		}{
			{Page{Limit: 3}, "0:requested 1:succeeded 2:running", 3},
			{Page{From: 3, Limit: 3}, "3:scheduled 4:requested 5:failed", 0},
			{Page{From: 4, Limit: 1}, "4:requested", 5},
			{Page{From: 6, Limit: 3}, "", 0},
			{Page{Limit: 1, Statuses: []Status{Requested}}, "0:requested", 4},
			{Page{From: 4, Limit: 1, Statuses: []Status{Requested}}, "4:requested", 0},
			{Page{Limit: 9, Statuses: []Status{Failed, Running}}, "2:running 5:failed", 0},
			{Page{Limit: 1, Statuses: []Status{Failed, Running}}, "2:running", 5},
		} {
			if text, next := s.indexes("a", "extract", c.page); text != c.want || next != c.next {
				t.Errorf("%+v: %s, then %d; want %s, then %d", c.page, text, next, c.want, c.next)
			}
		}
		if text, next := s.indexes("a", "load", Page{Limit: 1}); text != "0:requested" || next != 0 {
			t.Errorf("%s, then %d", text, next)
		}
	})
}

func TestMoreStatesThanOneReadIsOf(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		const n = 2*statePage + 7
		s.submit("a", external("x", n))
		for i := range n {
			s.is(store.StepID{Run: "a", Step: "x", Index: i}.String(), Record{Status: Succeeded, EndedAt: at(1)})
		}
		if got := s.overview("a").Steps[0].Counts[Succeeded]; got != n {
			t.Errorf("%d have succeeded, want %d", got, n)
		}
		text, next := s.indexes("a", "x", Page{From: n - 2, Limit: 10})
		if want := fmt.Sprintf("%d:succeeded %d:succeeded", n-2, n-1); text != want || next != 0 {
			t.Errorf("%s, then %d", text, next)
		}
	})
}

func TestAStateThatCantBeReadHidesNoOther(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", external("x", 3))
		key := s.Keys.Step(store.StepID{Run: "a", Step: "x", Index: 1})
		s.commit(store.Put(key, []byte("?"), 0), store.Put(s.Keys.Steps("a")+"x/000009", Record{Status: Failed}.Encode(), 0))
		o := s.overview("a")
		if d := cmp.Diff(map[Status]int{Requested: 2}, o.Steps[0].Counts); d != "" || len(o.Bad) != 2 || !strings.Contains(o.Bad[0].Error(), key) {
			t.Errorf("%+v\n%s", o, d)
		}
		list, err := s.Instances(t.Context(), "a", "x", Page{Limit: 5})
		if err != nil || len(list.Items) != 2 || list.Items[1].Index != 2 || len(list.Bad) != 2 {
			t.Errorf("%+v, %v", list, err)
		}
	})
}

func TestReadingWhatThereIsNotIsRefused(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", external("x", 2))
		if _, _, err := s.runs.Submit(t.Context(), "plain", run.Spec{}); err != nil {
			t.Fatal(err)
		}
		if o := s.overview("plain"); len(o.Steps) != 0 {
			t.Errorf("%+v", o)
		}
		for _, c := range []struct {
			id   store.StepID
			want problem.Code
		}{
			{store.StepID{Run: "b", Step: "x"}, problem.RunNotFound},
			{store.StepID{Run: "a/x", Step: "x"}, problem.Invalid},
			{store.StepID{Run: "a", Step: "y"}, problem.StepNotFound},
			{store.StepID{Run: "a", Step: "x/000001"}, problem.StepNotFound},
			{store.StepID{Run: "plain", Step: "x"}, problem.StepNotFound},
			{store.StepID{Run: "a", Step: "x", Index: 2}, problem.StepNotFound},
			{store.StepID{Run: "a", Step: "x", Index: -1}, problem.StepNotFound},
		} {
			if _, err := s.Detail(t.Context(), c.id); problem.CodeOf(err) != c.want {
				t.Errorf("%v: %v, want %s", c.id, err, c.want)
			}
			if _, err := s.Log(t.Context(), c.id); problem.CodeOf(err) != c.want {
				t.Errorf("output of %v: %v, want %s", c.id, err, c.want)
			}
		}
		if _, err := s.Instances(t.Context(), "a", "y", Page{Limit: 1}); problem.CodeOf(err) != problem.StepNotFound {
			t.Error(err)
		}
	})
}

// What is read of an attempt is enough to end it, as its executor would.
func TestAnAttemptThatWasReadCanBeFinished(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		first, second := external("x", 3), external("y", 2)
		second.Retries, second.Backoff = 1, Duration(time.Minute)
		s.submit("a", first, second)
		id := store.StepID{Run: "a", Step: "y", Index: 1}
		s.is(id.String(), Record{Status: Running, Attempt: 1, StartedAt: at(1), Executor: by("one")})
		s.commit(store.Put(s.Keys.ActiveStep("one", id), activeValue, 0))
		d, err := s.Detail(t.Context(), id)
		if err != nil || d.Number != 4 || !d.Work.External {
			t.Fatalf("%+v, %v", d, err)
		}
		if _, err := s.Log(t.Context(), id); problem.CodeOf(err) != problem.NotFound {
			t.Errorf("nothing was written: %v", err)
		}
		i, err := s.Finish(t.Context(), d.Taken(), Outcome{Status: Failed, ExitCode: 3, Error: "no", Output: []byte("so it goes\n")}, nil)
		if err != nil || i.Status != Requested || i.Pause != time.Minute || i.ExitCode != 3 {
			t.Errorf("%+v, %v", i, err)
		}
		if log, err := s.Log(t.Context(), id); err != nil || string(log.Text) != "so it goes\n" || !log.Ended || log.Attempt != 1 || log.Standing(i) != OfLast {
			t.Errorf("%+v, %v", log, err)
		}
	})
}
