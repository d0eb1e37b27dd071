//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/html"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// record is a record of package inspect as JSON.
type record map[string]any

// states is a sidecar and an etcd with something in every state. No coordinator runs, so
// that all stays as it is.
type states struct {
	t      *testing.T
	etcd   string
	base   string
	client *client.Client
	store  run.Store
	steps  step.Store
}

func newStates(t *testing.T) *states {
	t.Helper()
	etcd := embedtest.New(t)
	s := &states{t: t, etcd: etcd.Endpoint()}
	s.base, s.client = serveOn(t, s.etcd)
	s.store = run.Store{Backend: embedtest.Client(t, etcd), Keys: store.NewKeys(store.DefaultPrefix)}
	s.store.Journal = run.NewJournal(s.store.Backend, s.store.Keys, "test/test", 0)
	s.steps = step.Store{Backend: s.store.Backend, Keys: s.store.Keys, Journal: s.store.Journal, Group: &store.Group{}}
	s.pools()
	s.runs()
	s.hosts()
	return s
}

func (s *states) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *states) put(ops ...*pb.RequestOp) {
	s.t.Helper()
	_, err := store.Commit(s.t.Context(), s.store.Backend, nil, ops...)
	s.ok(err)
}

// pools makes a pool in each state, and claims that hold and wait.
func (s *states) pools() {
	set := func(name string, limit int) {
		_, err := s.client.SetPool(s.t.Context(), name, api.PoolChange{Limit: &limit})
		s.ok(err)
	}
	hold := func(id, name string, slots int) {
		_, err := s.client.Claim(s.t.Context(), api.ClaimRequest{ID: id, Pools: api.Slots{name: slots}, RunID: "r", StepKey: "load[0]", Labels: map[string]string{"team": "ml"}})
		s.ok(err)
	}
	for name, limit := range map[string]int{"half": 2, "full": 2, "over": 3, "closed": 0, "paused": 2, "deleted": 2, "unreadable": 2, "unlimited": -1} {
		set(name, limit)
	}
	for name, slots := range map[string]int{"half": 1, "full": 2, "over": 3, "deleted": 1, "unlimited": 4} {
		hold("holds-"+name, name, slots)
	}
	set("over", 2)
	_, err := s.client.PausePool(s.t.Context(), "paused")
	s.ok(err)
	s.ok(s.client.DeletePool(s.t.Context(), "deleted"))
	for _, name := range []string{"full", "paused"} {
		go func() {
			_, _ = s.client.Claim(s.t.Context(), api.ClaimRequest{ID: "waits-" + name, Pools: api.Slots{name: 1}, Wait: new(inspect.Duration(time.Hour))})
		}()
	}
	s.put(store.Put(s.store.Keys.Spec("unreadable"), []byte("?"), 0))
}

// runs makes a run in each state, and one whose steps are in each state.
func (s *states) runs() {
	now := time.Now().Add(-time.Minute)
	by := &run.Executor{Host: "two", Instance: "worker"}
	spec := run.Spec{Name: "load", Priority: 3}
	block := func(b run.Block) *run.Block { return &b }
	for id, r := range map[string]run.Record{
		"storing":    {Status: run.Storing, Spec: run.Spec{Steps: 2}},
		"unchecked":  {Status: run.Queued},
		"run-limit":  {Status: run.Queued, Block: block(run.RunLimitBlock(3, 3))},
		"tag-limit":  {Status: run.Queued, Block: block(run.Block{Kind: run.BlockTagLimit, Text: "tag limit: env=prod (2/2)", Tag: "env=prod"})},
		"pool":       {Status: run.Queued, Block: block(run.PoolBlock("pool 'full' full (2/2 slots)")), Spec: run.Spec{Pools: map[string]int{"full": 1}}},
		"not-before": {Status: run.Queued, Spec: run.Spec{NotBefore: run.InstantOf(now.Add(24 * time.Hour))}},
		"admitted":   {Status: run.NotStarted, AdmittedAt: now},
		"executed":   {Status: run.Running, AdmittedAt: now, StartedAt: now, Attempt: 2, Executor: by},
		"succeeded":  {Status: run.Succeeded, StartedAt: now, EndedAt: now.Add(time.Second), Attempt: 1, Executor: by},
		"failed":     {Status: run.Failed, StartedAt: now, EndedAt: now.Add(time.Second), Attempt: 1, Executor: by, Error: "exit code 3"},
		"canceled":   {Status: run.Canceled, EndedAt: now, Error: "canceled by ann"},
	} {
		r.QueuedAt, r.Name, r.Priority = now, spec.Name, spec.Priority
		s.put(store.Put(s.store.Keys.Run(id), r.Encode(), 0))
	}

	one := []string{"true"}
	_, err := s.client.SubmitRun(s.t.Context(), api.RunRequest{ID: "steps", Steps: api.RunSteps{
		{Name: "done", Command: one}, {Name: "broken", Command: one, OnFailure: "finish"}, {Name: "stopped", Command: one, OnFailure: "finish"},
		{Name: "works", Command: one, Items: &step.Items{List: []json.RawMessage{[]byte("1"), []byte("2")}}}, {Name: "later", Command: one, Needs: []string{"works"}}, {Name: "never", Command: one, Needs: []string{"broken"}},
		{Name: "slots", Command: one, Pools: api.Slots{"full": 1}}, {Name: "unserved", Command: one, Queue: "gpu"}, {Name: "busy", Command: one, Queue: "small"},
	}})
	s.ok(err)
	_, err = s.client.SubmitRun(s.t.Context(), api.RunRequest{ID: "about", Steps: api.RunSteps{{Name: "load", Command: one}}})
	s.ok(err)
	about, err := s.store.Get(s.t.Context(), "about")
	s.ok(err)
	about.Record, _ = about.Admit("claim-of-about", now)
	s.put(store.Put(s.store.Keys.Run("about"), about.Encode(), 0))
	r, err := s.store.Get(s.t.Context(), "steps")
	s.ok(err)
	r.Record, _ = r.Admit("claim-of-steps", now)
	r.Record, _ = r.Begin(now)
	s.put(store.Put(s.store.Keys.Run("steps"), r.Encode(), 0))
	lease, _, err := s.store.Backend.Grant(s.t.Context(), time.Hour)
	s.ok(err)
	for name, rec := range map[string]step.Record{
		"done": {Status: step.Succeeded, EndedAt: now.Add(time.Second)}, "broken": {Status: step.Failed, EndedAt: now.Add(time.Second), Error: "exit code 3"}, "stopped": {Status: step.Canceled, EndedAt: now.Add(time.Second)},
		"works": {Status: step.Running}, "slots": {Status: step.Scheduled}, "unserved": {Status: step.Scheduled}, "busy": {Status: step.Scheduled},
	} {
		id := store.StepID{Run: "steps", Step: name}
		rec.ScheduledAt = now
		if rec.Status != step.Scheduled {
			rec.StartedAt, rec.Attempt, rec.Executor = now, 1, &run.Executor{Host: "small", Instance: "worker"}
			s.put(store.Put(s.store.Keys.ActiveStep("small", id), []byte("{}"), lease))
		}
		s.put(store.Put(s.store.Keys.Step(id), rec.Encode(), 0))
	}
	// An instance that is gone, and still has work.
	gone := store.StepID{Run: "steps", Step: "works", Index: 1}
	s.put(store.Put(s.store.Keys.Step(gone), step.Record{Status: step.Running, StartedAt: now, Attempt: 1, Executor: &run.Executor{Host: "gone", Instance: "worker"}}.Encode(), 0),
		store.Put(s.store.Keys.ActiveStep("gone", gone), []byte("{}"), lease))
}

// hosts makes a worker in each state.
func (s *states) hosts() {
	for host, queue := range map[string]string{"idle": step.DefaultQueue, "small": "small", "drained": "default", "stopped": "default"} {
		capacity := 1
		c, err := instance.Open(s.t.Context(), instance.Options{Endpoints: []string{s.etcd}, Host: host, Instance: "worker", Role: "worker", Capacity: capacity, Queues: []string{queue}, Version: "v0.9.0"})
		s.ok(err)
		s.t.Cleanup(func() { _ = c.Leave() })
	}
	for host, mode := range map[string]step.WorkerMode{"drained": step.Drained, "stopped": step.Stopped} {
		_, _, err := s.steps.SetWorkerMode(s.t.Context(), step.WorkerID{host, "worker"}, step.WorkerState{Mode: mode, At: time.Now(), By: "ann", From: "desk", Reason: "new disk"})
		s.ok(err)
	}
}

// cli runs a command and returns what it prints. A command that names what can't be read
// exits with 1 after it has printed the rest.
func (s *states) cli(args ...string) string {
	s.t.Helper()
	var out, errs bytes.Buffer
	if code := perform(s.t.Context(), append([]string{"berth", "--endpoints", s.etcd}, args...), &out, &errs); code != 0 {
		s.t.Fatalf("berth %s: exit code %d: %s", strings.Join(args, " "), code, &errs)
	}
	return out.String()
}

func (s *states) get(path, accept string) string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), "GET", s.base+path, nil)
	s.ok(err)
	req.Header.Set("Accept", accept)
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	s.ok(err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	s.ok(err)
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("GET %s: %d %s", path, resp.StatusCode, data)
	}
	return string(data)
}

// local are members of claims that only the sidecar knows that holds them.
var local = []string{"valid_for", "valid_until", "grace", "lease_duration", "ttl"}

// records reads a list, or one record, by a member.
func (s *states) records(from, text, by string) map[string]record {
	s.t.Helper()
	var list struct{ Items []record }
	text = countdown.ReplaceAllString(text, "(in …)")
	s.ok(json.Unmarshal([]byte(text), &list))
	if list.Items == nil {
		var one record
		s.ok(json.Unmarshal([]byte(text), &one))
		list.Items = []record{one}
	}
	all := map[string]record{}
	for _, r := range list.Items {
		key := ""
		for _, name := range strings.Split(by, "/") {
			if name != "" {
				key += "/" + r.text(name)
			}
		}
		if r["work_left"] != nil {
			r["work_left"] = "some time"
		}
		if r["status"] == "held" && r["claimed_at"] != nil {
			for _, name := range local {
				delete(r, name)
			}
		}
		all[strings.TrimPrefix(key, "/")] = r
	}
	if len(all) == 0 {
		s.t.Fatalf("%s lists nothing", from)
	}
	return all
}

// text returns a member as text; empty if there is none.
func (r record) text(name string) string {
	if r[name] == nil {
		return ""
	}
	return fmt.Sprint(r[name])
}

// elements are the texts of the elements of a page by their id, and of the whole main part.
func (s *states) elements(path string) map[string]string {
	s.t.Helper()
	root, err := html.Parse(strings.NewReader(s.get(path, "text/html")))
	s.ok(err)
	all := map[string]string{}
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			if a.Key == "id" {
				all[a.Val] = nodeText(n)
			}
		}
	}
	return all
}

func nodeText(n *html.Node) string {
	var words []string
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			words = append(words, strings.Fields(d.Data)...)
		}
	}
	return strings.Join(words, " ")
}

// members returns the texts of some members of a record.
func members(names ...string) func(record) []string {
	return func(r record) (all []string) {
		for _, name := range names {
			if s := r.text(name); s != "" {
				all = append(all, s)
			}
		}
		return all
	}
}
