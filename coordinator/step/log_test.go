package step

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

func FuzzDecodeLog(f *testing.F) {
	l := Log{Attempt: 2, Fence: 9, At: noon, Ended: true, Before: 7, Host: "one", File: "/var/lib/x.log", Text: []byte("so\nit goes\xff")}
	f.Add(l.Encode())
	f.Add([]byte(`{"v":1,"attempt":1,"fence":3,"at":"1999-12-31T12:00:00Z"}` + "\n"))
	f.Add([]byte("what older versions have written\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := DecodeLog(&mvccpb.KeyValue{Key: []byte("k"), Value: data, ModRevision: 5})
		if err != nil {
			wantCorrupt(t, "k", err)
			return
		}
		again, err := DecodeLog(&mvccpb.KeyValue{Key: []byte("k"), Value: l.Encode(), ModRevision: 5})
		if err != nil || !bytes.Equal(again.Text, l.Text) || again.Before != l.Before || again.Fence != l.Fence {
			t.Errorf("reads back as %+v, %v", again, err)
		}
	})
}

func TestALogReadsBack(t *testing.T) {
	want := &Log{Attempt: 2, Fence: 9, At: noon, Ended: true, Before: 7, Host: "one", File: "/var/lib/x.log", Text: []byte("so\nit goes\xff"), Revision: 5}
	got, err := DecodeLog(&mvccpb.KeyValue{Key: []byte("k"), Value: want.Encode(), ModRevision: 5})
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
}

// A reader that polls what an attempt writes gets all of it, or knows what is missing and
// where.
func TestWhatIsNewOfALog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var written, read []byte
		const keep = 8
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			written = append(written, rapid.SliceOfN(rapid.Byte(), 0, 2*keep).Draw(t, "more")...)
			from := max(0, len(written)-keep)
			l := Log{Before: int64(from), Text: written[from:]}
			text, missing := l.Since(int64(len(read)))
			read = append(append(read, written[len(read):len(read)+int(missing)]...), text...)
			if !bytes.Equal(read, written) || missing > 0 && len(text) != keep {
				t.Fatalf("%q was read of %q: %d are missing before %q", read, written, missing, text)
			}
			if again, missing := l.Since(int64(len(read))); len(again) > 0 || missing > 0 {
				t.Fatalf("%q is new, and %d are missing", again, missing)
			}
		}
	})
}

func TestHowALogStandsToItsInstance(t *testing.T) {
	running := func(revision int64) *Instance {
		return &Instance{Record: Record{Status: Running, Attempt: 2, EndFence: store.FenceAt(5)}, Revision: revision}
	}
	ended := func(last int64) *Instance {
		return &Instance{Record: Record{Status: Failed, Attempt: 2, EndFence: store.FenceAt(last)}, Revision: last + 1}
	}
	for name, c := range map[string]struct {
		log  Log
		of   *Instance
		want Standing
	}{
		"of the attempt that runs":                {Log{Fence: store.FenceAt(9)}, running(9), SoFar},
		"of the one before":                       {Log{Fence: store.FenceAt(5), Ended: true}, running(9), OfEarlier},
		"the one before had written nothing":      {Log{Fence: store.FenceAt(5)}, running(9), OfEarlier},
		"the one before was lost":                 {Log{Fence: store.FenceAt(7)}, running(9), OfLost},
		"of the last":                             {Log{Fence: store.FenceAt(9), Ended: true}, ended(9), OfLast},
		"the last has written nothing to its end": {Log{Fence: store.FenceAt(9)}, ended(9), OfLast},
		"the last has written nothing":            {Log{Fence: store.FenceAt(5), Ended: true}, ended(9), OfEarlier},
		"the last was lost":                       {Log{Fence: store.FenceAt(9)}, ended(5), OfLost},
		"the last was lost unseen":                {Log{Fence: store.FenceAt(5), Ended: true}, ended(5), OfLast}, // no better is known
	} {
		if got := c.log.Standing(c.of); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// starts puts an instance into the hands of a worker, and returns the attempt.
func (s *shelf) starts(id store.StepID) *Taken {
	s.t.Helper()
	s.is(id.String(), Record{Status: Running, Attempt: 1, StartedAt: time.Now(), Executor: by("one")})
	s.commit(store.Put(s.Keys.ActiveStep("one", id), activeValue, 0))
	d, err := s.Detail(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return d.Taken()
}

// commands is a step of commands, with so many items.
func commands(name string, items int64) Spec {
	s := external(name, items)
	s.External, s.Command = false, []string{"true"}
	return s
}

func TestOutputThatIsCutSaysSo(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", commands("x", 1))
		id := store.StepID{Run: "a", Step: "x"}
		taken := s.starts(id)
		text := []byte(strings.Repeat("x", 100) + strings.Repeat("y", MaxOutput))
		if _, err := s.Finish(t.Context(), taken, Outcome{Status: Succeeded, Output: text, Before: 1000, File: "/kept"}, nil); err != nil {
			t.Fatal(err)
		}
		l, err := s.Log(t.Context(), id)
		if err != nil || l.Before != 1100 || string(l.Text) != strings.Repeat("y", MaxOutput) || !l.Ended || l.Host != "one" || l.File != "/kept" || l.Fence != taken.Fence() {
			t.Errorf("%v, %d bytes before, ended %t, host %s, file %s", err, l.Before, l.Ended, l.Host, l.File)
		}
	})
}

// An instance that ended while its end could not be reported has ended when its command
// has; the event of it has both times. A time of a clock that was set is not used.
func TestTheEndIsThatOfTheCommand(t *testing.T) {
	for name, c := range map[string]struct{ reported, want, late time.Duration }{
		"reported late":         {8 * time.Second, 8 * time.Second, 22 * time.Second},
		"reported at once":      {30 * time.Second, 30 * time.Second, 0},
		"not known":             {-1, 30 * time.Second, 0},
		"before the start":      {-time.Minute, 30 * time.Second, 0},
		"after it was reported": {time.Minute, 30 * time.Second, 0},
		"the very start":        {0, 0, 30 * time.Second},
		"a bit before reported": {29500 * time.Millisecond, 29500 * time.Millisecond, 0},
		"more than that":        {28 * time.Second, 28 * time.Second, 2 * time.Second},
		"a moment too late":     {30*time.Second + 1, 30 * time.Second, 0},
		"a moment too early":    {-2, 30 * time.Second, 0},
		"a second after that":   {time.Second, time.Second, 29 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			onShelf(t, func(t *testing.T, s *shelf) {
				s.submit("a", commands("x", 1))
				taken := s.starts(store.StepID{Run: "a", Step: "x"})
				o := Outcome{Status: Succeeded, EndedAt: taken.StartedAt.Add(c.reported)}
				if c.reported == -1 {
					o.EndedAt = time.Time{}
				}
				time.Sleep(30 * time.Second)
				i, err := s.Finish(t.Context(), taken, o, nil)
				if err != nil || !i.EndedAt.Equal(taken.StartedAt.Add(c.want)) {
					t.Errorf("it took %s, want %s, %v", i.EndedAt.Sub(i.StartedAt), c.want, err)
				}
				events, err := s.runs.Events(t.Context(), "a")
				if err != nil || len(events) == 0 {
					t.Fatalf("%+v, %v", events, err)
				}
				last := events[len(events)-1]
				want := ""
				if c.late > 0 {
					want = i.EndedAt.Format(time.RFC3339Nano)
				}
				if got := last.Metadata["ended_at"]; got != want || !last.At.Equal(taken.StartedAt.Add(30*time.Second)) {
					t.Errorf("the event of %s says %q, want %q", last.At, got, want)
				}
			})
		})
	}
}

func TestALogThatCantBeReadIsNamed(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", commands("x", 1))
		id := store.StepID{Run: "a", Step: "x"}
		s.commit(store.Put(s.Keys.Log(id), []byte("so it goes\n"), 0))
		if _, err := s.Log(t.Context(), id); problem.CodeOf(err) != problem.CorruptValue || !strings.Contains(err.Error(), s.Keys.Log(id)) {
			t.Error(err)
		}
	})
}

// An attempt that was lost leaves what was shown of it, and its file ends with its folder.
func TestTheLogOfALostAttemptNamesNoFile(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("a", commands("x", 1))
		id := store.StepID{Run: "a", Step: "x"}
		taken := s.starts(id)
		if err := s.Show(t.Context(), taken, Shown{Text: []byte("one\n"), Before: 900, File: "/as/yet"}); err != nil {
			t.Fatal(err)
		}
		named := func(want string) {
			t.Helper()
			seen, err := s.See(t.Context(), id)
			if err != nil || seen.Log.LeftOut() != want {
				t.Errorf("got %q, want %q, %v", seen.Log.LeftOut(), want, err)
			}
		}
		named("900 bytes before this are left out: all of it is on host 'one' while it runs, in /as/yet")
		s.is(id.String(), Record{Status: Failed, Attempt: 1, Executor: by("one"), EndedAt: time.Now(), Error: "its worker was lost"})
		named("900 bytes before this are left out")
	})
}

func TestNoLogNamesAFileWhoseNameWasDropped(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		lease, _, err := s.Backend.Grant(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		put := func(index int, host, file string) (key string) {
			key = s.Keys.Log(store.StepID{Run: "a", Step: "x", Index: index})
			l := Log{Attempt: 1, Fence: 9, At: time.Now(), Ended: true, Before: 7, Host: host, File: file, Cut: true, Text: []byte("so\n")}
			s.commit(store.Put(key, l.Encode(), lease))
			return key
		}
		removed, later, another, kept := put(0, "one", "/0-1"), put(1, "one", "/1-2"), put(2, "two", "/2-1"), put(3, "one", "/3-1")
		broken := s.Keys.Log(store.StepID{Run: "a", Step: "x", Index: 4})
		s.commit(store.Put(broken, []byte("so it goes\n"), lease))
		files := map[string]store.StepID{"/0-0": {Run: "a", Step: "x"}, "/gone": {Run: "b", Step: "x"}}
		for i := range 5 {
			files[fmt.Sprintf("/%d-1", i)] = store.StepID{Run: "a", Step: "x", Index: i}
		}
		delete(files, "/3-1")
		for range 2 { // the second finds nothing to drop
			if err := s.DropFiles(t.Context(), "one", files); err != nil {
				t.Fatal(err)
			}
		}
		all, err := store.ReadAll(t.Context(), s.Backend, s.Keys.Logs("a"))
		if err != nil {
			t.Fatal(err)
		}
		for n, want := range []struct{ key, host, file string }{{removed, "", ""}, {later, "one", "/1-2"}, {another, "two", "/2-1"}, {kept, "one", "/3-1"}} {
			kv := all.KVs[n]
			l, err := DecodeLog(kv)
			if err != nil || string(kv.Key) != want.key || l.Host != want.host || l.File != want.file || l.Cut != (want.file != "") ||
				store.LeaseID(kv.Lease) != lease || string(l.Text) != "so\n" || l.Before != 7 || !l.Ended {
				t.Errorf("%s: %+v on lease %d, %v", want.key, l, kv.Lease, err)
			}
			if want.file == "" && kv.Version != 2 || want.file != "" && kv.Version != 1 {
				t.Errorf("%s was written %d times", want.key, kv.Version)
			}
		}
	})
}

func TestLeftOutSaysHowMuchAndWhereItIs(t *testing.T) {
	for want, l := range map[string]Log{
		"":                                  {Ended: true, Host: "one", File: "/kept"},
		"28.6 MiB before this are left out": {Before: 29983616, Ended: true},
		"1 KiB before this are left out: all of it is on host 'one' for a day, in /kept":           {Before: 1024, Ended: true, Host: "one", File: "/kept"},
		"900 bytes before this are left out: all of it is on host 'one' while it runs, in /as/yet": {Before: 900, Host: "one", File: "/as/yet"},
	} {
		if got := l.LeftOut(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for n, want := range map[int64]string{
		0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 29983616: "28.6 MiB", 1 << 30: "1 GiB", 5 << 40: "5 TiB",
	} {
		if got := BytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
