package ui_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/html"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// queueSite is a site where runs wait, with etcd as others have it.
type queueSite struct {
	*site
	store run.Store
	steps step.Store
}

func newQueueSite(t testing.TB, change ...func(*sidecar.Config)) *queueSite {
	t.Helper()
	s := newSite(t, change...)
	d := &queueSite{site: s, store: run.Store{Backend: embedtest.Client(t, s.etcd), Keys: store.NewKeys(store.DefaultPrefix)}}
	d.store.Journal = run.NewJournal(d.store.Backend, d.store.Keys, "test/test", 0)
	d.steps = step.Store{Backend: d.store.Backend, Keys: d.store.Keys, Journal: d.store.Journal, Group: &store.Group{}}
	return d
}

// leads starts a coordinator on a host, and returns what stops it.
func (d *queueSite) leads(host string) (stop func()) {
	d.t.Helper()
	c := coordinator.New(coordinator.Config{Backend: d.store.Backend, Keys: d.store.Keys, Host: host, CompactInterval: -1})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	d.t.Cleanup(stop)
	return stop
}

func (d *queueSite) submit(req api.RunRequest) {
	d.t.Helper()
	if _, err := d.client.SubmitRun(d.t.Context(), req); err != nil {
		d.t.Fatal(err)
	}
}

// limit sets the limits that runs are admitted under.
func (d *queueSite) limit(most int, tags ...api.TagLimit) {
	d.t.Helper()
	if _, err := d.client.SetLimits(d.t.Context(), api.LimitsChange{MaxConcurrentRuns: &most, Tags: tags}); err != nil {
		d.t.Fatal(err)
	}
}

// put writes keys by hand.
func (d *queueSite) put(ops ...*pb.RequestOp) {
	d.t.Helper()
	if _, err := store.Commit(d.t.Context(), d.store.Backend, nil, ops...); err != nil {
		d.t.Fatal(err)
	}
}

// change writes a run, as the coordinator would or as no process would.
func (d *queueSite) change(id string, f func(*run.Record)) {
	d.t.Helper()
	r, err := d.store.Get(d.t.Context(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	f(&r.Record)
	d.put(store.Put(d.store.Keys.Run(id), r.Record.Encode(), 0))
}

// rows are the cells of a table's rows by the id of their run, and the runs in order.
func (d *document) rows() (cells map[string][]string, order []string) {
	cells = map[string][]string{}
	for _, row := range d.all(func(n *html.Node) bool { return n.Data == "tr" && has(n, "id") }) {
		id := attr(row, "id")[len("run-"):]
		cells[id] = texts(d.within(row).all(func(n *html.Node) bool { return n.Data == "td" || n.Data == "th" }))
		order = append(order, id)
	}
	return cells, order
}

// runs are the runs that a page lists, in its order.
func (d *document) runs() []string {
	_, order := d.rows()
	return order
}

// listing tells whether a page lists just these runs, in this order.
func listing(ids ...string) func(*document) bool {
	return func(d *document) bool { return slices.Equal(d.runs(), ids) }
}

// link returns where a link of some text leads, empty if there is none.
func (d *document) link(name string) string {
	for _, a := range d.tags("a") {
		if text(a) == name {
			return attr(a, "href")
		}
	}
	return ""
}

// queuedRecord is a queued run as it stands in etcd.
func queuedRecord(change ...func(*run.Record)) []byte {
	r := run.Record{Status: run.Queued, QueuedAt: time.Now()}
	for _, f := range change {
		f(&r)
	}
	return r.Encode()
}

// fill puts many runs into etcd, some at a time.
func fill(t testing.TB, b store.Backend, values map[string][]byte) {
	t.Helper()
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(values)), 100) {
		var ops []*pb.RequestOp
		for _, key := range keys {
			ops = append(ops, store.Put(key, values[key], 0))
		}
		if _, err := store.Commit(t.Context(), b, nil, ops...); err != nil {
			t.Fatal(err)
		}
	}
}
