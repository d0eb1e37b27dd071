package sidecar_test

import (
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// dock is a sidecar, and etcd as the coordinator has it.
type dock struct {
	*running
	etcd  *embed.Server
	store run.Store
}

func newDock(t *testing.T, change ...func(*sidecar.Config)) *dock {
	t.Helper()
	etcd := embedtest.New(t)
	cfg := config(t, etcd.Endpoint())
	for _, f := range change {
		f(&cfg)
	}
	d := &dock{running: start(t, cfg), etcd: etcd}
	d.store = run.Store{Backend: embedtest.Client(t, etcd), Keys: store.NewKeys(store.DefaultPrefix)}
	d.store.Journal = run.NewJournal(d.store.Backend, d.store.Keys, "test/coordinator", 0)
	return d
}

// another starts a sidecar on another host.
func (d *dock) another(host string) *running {
	d.t.Helper()
	cfg := config(d.t, d.etcd.Endpoint())
	cfg.Options.Host = host
	return start(d.t, cfg)
}

func (d *dock) submit(req api.RunRequest) *api.Run {
	d.t.Helper()
	r, err := d.client.SubmitRun(d.t.Context(), req)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

// change writes a run as the coordinator would.
func (d *dock) change(id string, f func(run.Record) run.Record) {
	d.t.Helper()
	r, err := d.store.Get(d.t.Context(), id)
	if err == nil {
		_, err = store.Commit(d.t.Context(), d.store.Backend, []*pb.Compare{store.ModEquals(d.store.Keys.Run(id), r.Revision)},
			store.Put(d.store.Keys.Run(id), f(r.Record).Encode(), 0))
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// admit lets a queued run go.
func (d *dock) admit(id string) {
	d.t.Helper()
	d.change(id, func(r run.Record) run.Record {
		r, _ = r.Admit("", time.Now())
		return r
	})
}

// lose takes a run from its executor, whose key is gone.
func (d *dock) lose(id string) {
	d.t.Helper()
	d.change(id, func(r run.Record) run.Record {
		r, _ = r.Lose(time.Now())
		return r
	})
}

// put writes a key by hand.
func (d *dock) put(key, value string) {
	d.t.Helper()
	if _, err := store.Commit(d.t.Context(), d.store.Backend, nil, store.Put(key, []byte(value), 0)); err != nil {
		d.t.Fatal(err)
	}
}

// started submits a run, admits and starts it.
func (d *dock) started(id string, req api.RunStart) *api.StartedRun {
	d.t.Helper()
	d.submit(api.RunRequest{ID: id, Retries: 1})
	d.admit(id)
	r, err := d.client.StartRun(d.t.Context(), id, req)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

// alive reports whether the key of a run's executor exists.
func (d *dock) alive(host, id string) bool {
	d.t.Helper()
	resp, err := d.store.Backend.Range(d.t.Context(), &pb.RangeRequest{Key: []byte(d.store.Keys.ActiveRun(host, id))})
	if err != nil {
		d.t.Fatal(err)
	}
	return len(resp.Kvs) == 1
}

func (d *dock) post(path, body string) answer {
	d.t.Helper()
	return d.raw(request{method: "POST", path: path, body: body})
}

func (d *dock) get(path string) answer {
	d.t.Helper()
	return d.raw(request{method: "GET", path: path})
}

func (d *dock) wantRefused(a answer, code problem.Code, fields ...string) {
	d.t.Helper()
	p := a.problem(d.t)
	var got []string
	for _, f := range p.Errors {
		got = append(got, f.Field)
	}
	if p.Code != string(code) || p.Status != code.Status() || !slices.Equal(got, fields) {
		d.t.Errorf("%s, want %s of %q", a.body, code, fields)
	}
}

// drains begins a drain, in which an admitted run is not started. Stop returns before the
// drain has begun, and /readyz reports when it has: until then a start is rightly accepted.
func (d *dock) drains(id string) {
	d.t.Helper()
	d.server.Stop(sidecar.Drain)
	eventually(d.t, "the drain has begun", func() bool { return problem.CodeOf(d.client.Ready(d.t.Context())) == problem.Stopping })
	_, err := d.client.StartRun(d.t.Context(), id, api.RunStart{})
	wantCode(d.t, err, problem.Stopping)
}
