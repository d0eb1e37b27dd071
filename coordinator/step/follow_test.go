package step

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

func FuzzDecodeLook(f *testing.F) {
	f.Add([]byte(`{"v":1,"fresh":true}`))
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := DecodeFollower(&mvccpb.KeyValue{Key: []byte("k"), Value: data}); err != nil {
			wantCorrupt(t, "k", err)
		}
	})
}

// looks are the marks that there are, with whether they ask for what there is now.
func (s *shelf) looks() map[string]bool {
	s.t.Helper()
	all, err := store.ReadAll(s.t.Context(), s.Backend, s.Keys.Followers())
	if err != nil {
		s.t.Fatal(err)
	}
	found := map[string]bool{}
	for _, kv := range all.KVs {
		if found[string(kv.Key[len(s.Keys.Followers()):])], err = DecodeFollower(kv); err != nil {
			s.t.Fatal(err)
		}
	}
	return found
}

// Nothing is left of a viewing that no viewer continues.
func TestALookEndsByItself(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		id := store.StepID{Run: "a", Step: "x"}
		if _, err := s.Follow(t.Context(), true, id); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(s.looks()); got != "map[a/x/000000:true]" {
			t.Error(got)
		}
		time.Sleep(FollowAgain)
		if _, err := s.Follow(t.Context(), false, id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(FollowFor - time.Second) // the lease of the first is over
		if got := fmt.Sprint(s.looks()); got != "map[a/x/000000:false]" {
			t.Error(got)
		}
		time.Sleep(FollowFor)
		if got := s.looks(); len(got) > 0 {
			t.Errorf("%v are left", got)
		}
	})
}

// What an attempt has written is shown as long as it is its executor's, and never over
// what it had written at its end.
func TestOnlyTheAttemptThatRunsIsShown(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", commands("x", 1))
		id := store.StepID{Run: "a", Step: "x"}
		taken := s.starts(id)
		if err := s.Show(t.Context(), taken, Shown{Text: []byte("one\n"), Before: 3, File: "/running"}); err != nil {
			t.Fatal(err)
		}
		seen, err := s.See(t.Context(), id)
		if l := seen.Log; err != nil || l.Standing(&seen.Instance) != SoFar || l.Ended || string(l.Text) != "one\n" || l.Before != 3 || l.File != "/running" || l.Host != "one" {
			t.Errorf("%+v, %v", l, err)
		}
		if _, err := s.Finish(t.Context(), taken, Outcome{Status: Succeeded, Output: []byte("one\ntwo\n")}, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Show(t.Context(), taken, Shown{Text: []byte("late\n")}); problem.CodeOf(err) != problem.StepLost {
			t.Error(err)
		}
		if l, err := s.Log(t.Context(), id); err != nil || string(l.Text) != "one\ntwo\n" || !l.Ended || l.File != "" || l.Host != "" {
			t.Errorf("%+v, %v", l, err)
		}
	})
}

// worker shows what an attempt has written whenever it sees a mark, as a worker does.
func (s *shelf) worker(ctx context.Context, t *Taken, text func() string) (asked *int) {
	asked = new(int)
	watch := s.Backend.Watch(ctx, store.Prefix(s.Keys.Followers()), 1)
	go func() {
		for m := range watch.Messages() {
			for _, ev := range m.Events {
				if ev.Type == mvccpb.Event_PUT {
					*asked++
					_ = s.Show(ctx, t, Shown{Text: []byte(text())})
				}
			}
		}
	}()
	return asked
}

func TestWhatAnAttemptHasWrittenSoFarIsSeen(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", commands("x", 2))
		id := store.StepID{Run: "a", Step: "x"}
		taken := s.starts(id)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		text := "one\n"
		asked := s.worker(ctx, taken, func() string { return text })
		v, begun := &Viewer{}, time.Now()
		see := func() string {
			t.Helper()
			seen, err := v.See(t.Context(), s.Store, id, ShowWithin)
			if err != nil || seen.Unasked != nil || seen.Log == nil {
				t.Fatalf("%+v, %v", seen, err)
			}
			synctest.Wait()
			return string(seen.Log.Text)
		}
		for range 3 {
			if got := see(); got != "one\n" || *asked != 1 || time.Since(begun) > 0 {
				t.Errorf("%q, it was asked %d times, after %s", got, *asked, time.Since(begun))
			}
		}
		// A viewer that keeps polling does not wait, and asks again in time.
		text = "one\ntwo\n"
		time.Sleep(FollowAgain)
		if got := see(); got != "one\n" || *asked != 2 {
			t.Errorf("%q, it was asked %d times", got, *asked)
		}
		if got := see(); got != "one\ntwo\n" {
			t.Errorf("%q", got)
		}
		// After a pause what was shown may be old.
		text = "one\ntwo\nthree\n"
		time.Sleep(2 * FollowFor)
		if got := see(); got != text || *asked != 3 {
			t.Errorf("%q, it was asked %d times", got, *asked)
		}
		// No worker is asked about what no worker runs.
		if seen, err := v.See(t.Context(), s.Store, store.StepID{Run: "a", Step: "x", Index: 1}, time.Minute); err != nil || seen.Log != nil || *asked != 3 {
			t.Errorf("%+v, %v", seen, err)
		}
		cancel()
		synctest.Wait()
	})
}

func TestAWorkerThatDoesNotAnswerIsNotWaitedForLong(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", commands("x", 1))
		id := store.StepID{Run: "a", Step: "x"}
		s.starts(id)
		v, begun := &Viewer{}, time.Now()
		seen, err := v.See(t.Context(), s.Store, id, ShowWithin)
		if err != nil || seen.Log != nil || seen.Unasked != nil || time.Since(begun) != ShowWithin {
			t.Errorf("%+v, %v, after %s", seen, err, time.Since(begun))
		}
		// Nor is it at all, if the viewer does not want to wait.
		if seen, err := v.See(t.Context(), s.Store, id, 0); err != nil || seen.Log != nil || time.Since(begun) != ShowWithin {
			t.Errorf("%+v, %v, after %s", seen, err, time.Since(begun))
		}
	})
}

// refusing is an etcd that takes no writes.
type refusing struct{ store.Backend }

func (refusing) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	return nil, fmt.Errorf("txn: %w", store.ErrDenied)
}

// A viewer that may only read gets what is kept, and the reason why that is all.
func TestWhoMayNotAskSeesWhatIsKept(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", commands("x", 1))
		id := store.StepID{Run: "a", Step: "x"}
		if err := s.Show(t.Context(), s.starts(id), Shown{Text: []byte("one\n")}); err != nil {
			t.Fatal(err)
		}
		reader := s.Store
		reader.Backend = refusing{s.Backend}
		seen, err := (&Viewer{}).See(t.Context(), reader, id, time.Minute)
		if err != nil || seen.Log == nil || problem.CodeOf(seen.Unasked) != problem.EtcdDenied {
			t.Errorf("%+v, %v", seen, err)
		}
	})
}

// One viewer has workers write only so much.
func TestAViewerLooksAtSoManyAtATime(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", commands("x", maxViewed+1))
		v := &Viewer{}
		see := func(n int) error {
			id := store.StepID{Run: "a", Step: "x", Index: n}
			seen, err := v.See(t.Context(), s.Store, id, 0)
			if err != nil {
				t.Fatal(err)
			}
			return seen.Unasked
		}
		for n := range maxViewed + 1 {
			s.starts(store.StepID{Run: "a", Step: "x", Index: n})
		}
		for n := range maxViewed {
			if err := see(n); err != nil {
				t.Fatal(err)
			}
		}
		if err := see(maxViewed); problem.CodeOf(err) != problem.Unavailable {
			t.Error(err)
		}
		if err := see(0); err != nil {
			t.Errorf("one that is followed: %v", err)
		}
		time.Sleep(FollowFor)
		if err := see(maxViewed); err != nil {
			t.Errorf("when the others are no longer followed: %v", err)
		}
	})
}

func TestSomeShownAreNotAll(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", commands("x", 2))
		first, second := store.StepID{Run: "a", Step: "x"}, store.StepID{Run: "a", Step: "x", Index: 1}
		one, two := s.starts(first), s.starts(second)
		rev, err := s.Follow(t.Context(), true, first, second)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.AwaitShown(t.Context(), rev, first, second) }()
		for _, taken := range []*Taken{one, two} {
			synctest.Wait()
			select {
			case err := <-done:
				t.Fatalf("it did not wait for all: %v", err)
			default:
			}
			if err := s.Show(t.Context(), taken, Shown{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
