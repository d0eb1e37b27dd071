package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

// allowed is a context of a user with all roles.
func allowed(ctx context.Context, name string) context.Context {
	return access.With(ctx, func() access.Identity {
		return access.Identity{Kind: access.User, Name: name, Grants: access.AllGrants}
	})
}

// put stores values, a hundred in each transaction.
func (b *bubble) put(ops []*pb.RequestOp) {
	b.t.Helper()
	b.backend.Do(func(e *storetest.Etcd) {
		for len(ops) > 0 {
			n := min(100, len(ops))
			if _, err := e.Txn(&pb.TxnRequest{Success: ops[:n]}); err != nil {
				b.t.Fatal(err)
			}
			ops = ops[n:]
		}
	})
}

// asked counts the keys that are asked for until count is called: in total, and at once at most.
func (b *bubble) asked() (count func() (total, most int64)) {
	var total, most int64
	b.backend.Inject(func(c storetest.Call) storetest.Fault {
		if c.Range != nil && len(c.Range.RangeEnd) > 0 {
			n := c.Range.Limit
			if n == 0 {
				n = 1 << 30 // whatever there is
			}
			total, most = total+n, max(most, n)
		}
		return storetest.Fault{}
	})
	return func() (int64, int64) {
		b.backend.Inject(nil)
		return total, most
	}
}

// queueOf returns the writes of so many entries of the queue "q", of which executors can take the
// last ones.
func queueOf(keys store.Keys, n, external int) (ops []*pb.RequestOp) {
	for i := range n {
		r := step.Ready{Run: "big", Step: "x", Index: i, Number: i, External: i >= n-external}
		p := step.Published{Ready: r, Queue: "q", Order: step.OrderOf(0, 1, 0, i, "big")}
		ops = append(ops, store.Put(p.Key(keys), p.Encode(), 0))
	}
	return ops
}

func TestAReadOfOneReadyStepDoesNotReadTheQueue(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.put(queueOf(b.steps.Keys, 5000, 5000))
		count := b.asked()
		out, err := b.listReady(allowed(b.t.Context(), "alice"), b.session, &readyInput{Queue: "q", Limit: 1})
		if err != nil || len(out.Body.Items) != 1 || out.Body.Items[0].Index != 0 {
			t.Fatalf("%+v, %v", out, err)
		}
		if total, _ := count(); total > 10 {
			t.Errorf("limit=1 has asked for %d of 5000 entries", total)
		}
	})
}

func TestAQueueOfWorkersIsReadInPages(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.put(queueOf(b.steps.Keys, 5000, 2))
		count := b.asked()
		out, err := b.listReady(allowed(b.t.Context(), "alice"), b.session, &readyInput{Queue: "q", Limit: 100})
		if err != nil || len(out.Body.Items) != 2 || out.Body.Items[0].Index != 4998 {
			t.Fatalf("%+v, %v", out, err)
		}
		if _, most := count(); most > 1000 {
			t.Errorf("a page has up to %d entries, want 1000 at most", most)
		}
	})
}

func TestAWaitForAQueueOfWorkersDoesNotReadIt(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.put(queueOf(b.steps.Keys, 5000, 0))
		var total int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			out, err := b.listReady(allowed(b.t.Context(), "alice"), b.session, &readyInput{Queue: "q", Limit: 1, Wait: "1m"})
			if err != nil || len(out.Body.Items) != 1 {
				t.Errorf("%+v, %v", out, err)
			}
		}()
		synctest.Wait()
		count := b.asked()
		time.Sleep(10 * time.Second)
		total, _ = count()
		if total != 0 {
			t.Errorf("a wait has asked for %d entries of the queue", total)
		}
		p := step.Published{Ready: step.Ready{Run: "a", Step: "x", External: true}, Queue: "q", Order: step.OrderOf(9, 1, 0, 0, "a")}
		b.put([]*pb.RequestOp{store.Put(p.Key(b.steps.Keys), p.Encode(), 0)})
		<-done
	})
}

func TestAListOfRunsKeepsNoMoreThanItsPage(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var ops []*pb.RequestOp
		labels := map[string]string{}
		for i := range 31 {
			labels[fmt.Sprint("note", i)] = strings.Repeat("x", 128)
		}
		for i := range 3000 {
			r := run.Record{Status: run.Queued, QueuedAt: time.Now(), Spec: run.Spec{Priority: i % 5, Labels: labels}}
			ops = append(ops, store.Put(b.runs.Keys.Run(fmt.Sprintf("r%04d", i)), r.Encode(), 0))
		}
		b.put(ops)
		for _, status := range []string{"", "queued"} {
			seen := map[string]bool{}
			in := &api.RunListInput{Limit: 10_000}
			if status != "" {
				in.Status = []string{status}
			}
			pages := 0
			for more := true; more; pages++ {
				count := b.asked()
				filter, err := in.Filter()
				if err != nil {
					b.t.Fatal(err)
				}
				page := filter.NewPage()
				if _, err := b.runs.Each(b.t.Context(), filter.After(), page.Take); err != nil {
					b.t.Fatal(err)
				}
				list := page.List()
				if len(list.Unreadable) > 0 {
					b.t.Fatalf("%+v", list.Unreadable[0])
				}
				size := 0
				for _, r := range list.Items {
					if seen[r.ID] {
						b.t.Fatalf("status %q: run %s is on two pages", status, r.ID)
					}
					seen[r.ID] = true
					size += 31 * len(r.Labels["note0"])
				}
				if _, most := count(); most > 1000 || size > 4<<20 {
					b.t.Errorf("status %q: a page of %d bytes, read %d records at a time", status, size, most)
				}
				in.Cursor, more = list.Next, list.Next != ""
			}
			if len(seen) != 3000 || pages < 4 {
				b.t.Errorf("status %q: %d runs on %d pages", status, len(seen), pages)
			}
		}
	})
}

// reading serves an operation whose reads last until they are released.
type reading struct {
	a       *apiServer
	mux     *http.ServeMux
	begun   chan string // by whom
	release chan struct{}
}

func newReading(op string) *reading {
	r := &reading{mux: http.NewServeMux(), begun: make(chan string, 100), release: make(chan struct{})}
	r.a = &apiServer{log: hclog.NewNullLogger(), reads: newReads(nil), mux: newEndpoints()}
	r.a.session.Store(&session{})
	h := humago.New(r.mux, api.Config("test"))
	handle(r.a, h, operation(h, op, http.MethodGet, "/v1/large", "test", "Read"), func(ctx context.Context, _ *session, _ *struct{}) (*output[string], error) {
		r.begun <- server.KeyOf(ctx)
		<-r.release
		return outputOf("", nil)
	})
	return r
}

func (r *reading) get(ctx context.Context, name string) int {
	w := httptest.NewRecorder()
	r.mux.ServeHTTP(w, httptest.NewRequestWithContext(allowed(ctx, name), http.MethodGet, "/v1/large", nil))
	return w.Code
}

func TestParallelReadsOfOneIdentityDoNotHoldUpThoseOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReading("list-steps")
		var reads sync.WaitGroup
		codes := make(chan int, 200)
		for range 64 {
			reads.Go(func() { codes <- r.get(t.Context(), "alice") })
		}
		synctest.Wait()
		if n := len(r.begun); n != 4 {
			t.Errorf("%d of 64 reads of one identity are under way, want 4", n)
		}
		reads.Go(func() { codes <- r.get(t.Context(), "bob") })
		synctest.Wait()
		if n := len(r.begun); n != 5 || r.a.reads.Of("user:bob") != 1 {
			t.Errorf("%d reads are under way, of bob %d: another identity waits for those of alice", n, r.a.reads.Of("user:bob"))
		}
		close(r.release)
		reads.Wait()
		close(codes)
		for code := range codes {
			if code != http.StatusOK {
				t.Errorf("a read was answered with %d", code)
			}
		}
	})
}

// small are the reads that take no turn, with why.
var small = map[string]string{
	"get-claim":       "it reads one claim that this server knows",
	"get-run":         "it reads one record",
	"get-step-log":    "it reads one output of 16 KiB at most, and waits",
	"list-ready":      "it takes a turn while it reads, and waits without",
	"list-run-events": "a list takes a turn itself, a stream is bounded by the watches",
	"events":          "it is served from memory, and bounded by the streams",
	"health":          "it reads nothing", "ready": "all of them read one key, once a second", "whoami": "it reads nothing",
}

func TestEveryReadIsBoundedForEachIdentity(t *testing.T) {
	a, err := newAPI(&Config{}, newMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	text, err := a.json()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			known[op.OperationID] = true
			if _, is := small[op.OperationID]; method == "get" && is == large[op.OperationID] {
				t.Errorf("GET %s (%s) must be one of the large operations, or of the small", path, op.OperationID)
			}
		}
	}
	for op := range large {
		if !known[op] {
			t.Errorf("there is no operation %s", op)
		}
	}
}
