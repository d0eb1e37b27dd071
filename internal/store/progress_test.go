package store_test

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// etcd keeps quiet about the progress of a stream while one of its watches
// begins at a revision that is yet to come. That must not hold up the others.
func TestAWatchOfTheFutureDoesNotHoldUpTheProgressOfOthers(t *testing.T) {
	c := embedtest.Client(t, embedtest.New(t))
	first, err := c.Txn(long(t), putReq("/b/p/1", "", 0))
	if err != nil {
		t.Fatal(err)
	}
	now := first.Header.Revision
	future := c.Watch(t.Context(), store.Prefix("/b/future/"), now+1)
	defer future.Abandon()
	present := c.Watch(t.Context(), store.Prefix("/b/p/"), now)
	defer present.Abandon()
	watched(t, present)
	ask := time.NewTicker(5 * time.Millisecond)
	defer ask.Stop()
	for late := long(t).Done(); ; {
		select {
		case m := <-present.Messages():
			if m.Err != nil {
				t.Fatal(m.Err)
			}
			if m.Revision >= now {
				return
			}
		case <-ask.C:
			future.RequestProgress() // so that its stream is surely there
			present.RequestProgress()
		case <-late:
			t.Fatal("no progress is delivered")
		}
	}
}
