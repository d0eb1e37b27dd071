package ui

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// reader counts what is read, and takes its time.
type slowReader struct {
	takes time.Duration
	reads int
	err   error
}

func (r *slowReader) read(ctx context.Context) (int, error) {
	select {
	case <-time.After(r.takes):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	r.reads++
	return r.reads, r.err
}

func TestThoseWhoLookTogetherShareAReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g glance[int]
		r := &slowReader{takes: 100 * time.Millisecond}
		got := make(chan int)
		for range 10 {
			go func() {
				n, err := g.get(t.Context(), "a", r.read)
				if err != nil {
					t.Error(err)
				}
				got <- n
			}()
		}
		for range 10 {
			if n := <-got; n != 1 {
				t.Errorf("reading %d", n)
			}
		}
		// It serves nine times as long as it took, of its own key alone.
		look := func(key string, want int) {
			t.Helper()
			if n, err := g.get(t.Context(), key, r.read); n != want || err != nil {
				t.Errorf("%s: reading %d, %v, want %d", key, n, err, want)
			}
		}
		time.Sleep(800 * time.Millisecond)
		look("a", 1)
		look("b", 2)
		time.Sleep(101 * time.Millisecond)
		look("a", 3)
		r.takes = time.Minute
		look("c", 4)
		time.Sleep(glanceMost - 1)
		look("c", 4)
		r.takes = 0
		time.Sleep(time.Nanosecond)
		look("c", 5)
		look("c", 6) // what costs nothing is read each time
	})
}

func TestAnErrorIsNobodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g glance[int]
		r := &slowReader{takes: time.Second, err: errors.New("no")}
		if _, err := g.get(t.Context(), "a", r.read); err == nil {
			t.Error("an error is no reading")
		}
		r.err = nil
		if n, err := g.get(t.Context(), "a", r.read); n != 2 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		// Who goes away while another reads gets the cause, and the reading goes on.
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error)
		go func() {
			_, err := g.get(t.Context(), "b", r.read)
			done <- err
		}()
		synctest.Wait()
		go func() {
			_, err := g.get(ctx, "b", r.read)
			done <- err
		}()
		synctest.Wait()
		cancel(gone)
		if err := <-done; !errors.Is(err, gone) {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestReadingsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g glance[int]
		r := &slowReader{takes: time.Second}
		for i := range 3 * glances {
			if _, err := g.get(t.Context(), fmt.Sprint(i), r.read); err != nil {
				t.Fatal(err)
			}
			if len(g.some) > glances {
				t.Fatalf("%d readings are kept", len(g.some))
			}
		}
		time.Sleep(time.Hour)
		r.takes = 0
		for i := range 2 * glances {
			if _, err := g.get(t.Context(), fmt.Sprint("new", i), r.read); err != nil {
				t.Fatal(err)
			}
		}
		if len(g.some) > glances {
			t.Errorf("%d readings are kept", len(g.some))
		}
	})
}
