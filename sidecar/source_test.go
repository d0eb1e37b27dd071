package sidecar_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar/api"
	sources "github.com/berthhq/berth/sidecar/source"
)

// lister is a source that is run by a process of its own, and only polls when it is woken.
type lister struct {
	listed atomic.Value // what there is
	stop   func()
}

func (d *dock) source(host, listed string) *lister {
	d.t.Helper()
	l := &lister{}
	l.listed.Store(listed)
	s := sources.New(sources.Config{
		Backend: embedtest.Client(d.t, d.etcd), Keys: d.store.Keys, Host: host, Version: "v1",
		Spec: sources.Spec{
			Name: "inbox", List: []string{"ls"}, ID: sources.DefaultID, Run: run.Spec{Name: "load {{.item}}"},
			Interval: sources.MaxInterval, Timeout: sources.DefaultTimeout, Forget: sources.DefaultForget,
		},
		List: func(context.Context) ([]byte, error) {
			text := l.listed.Load().(string)
			if text == "" {
				return nil, errors.New("there is no inbox")
			}
			return []byte(text), nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx) // it is ctx that ends it
	}()
	l.stop = func() { cancel(); <-done }
	d.t.Cleanup(l.stop)
	return l
}

func (d *dock) wake(body string) answer {
	d.t.Helper()
	return d.post("/v1/sources/inbox/wake", body)
}

func TestASourceIsWokenThroughAnySidecar(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	if got := d.get("/v1/sources"); string(got.body) != "{\"items\":[]}\n" {
		t.Errorf("there is none: %d %s", got.status, got.body)
	}
	d.wantRefused(d.get("/v1/sources/inbox"), problem.NotFound)
	d.wantRefused(d.wake(""), problem.NotFound)

	l := d.source("far", "a\nnot ok\n")
	var list api.List[api.Source]
	eventually(t, "it has polled", func() bool {
		decode(t, d.get("/v1/sources"), &list)
		return len(list.Items) == 1 && list.Items[0].LastPoll != nil && len(list.Items[0].Candidates) == 1
	})
	got, first := list.Items[0], list.Items[0].LastPoll
	want := api.Source{
		Name: "inbox", Known: 1,
		Candidates: []api.SourceCandidate{{Host: "far", Instance: got.Candidates[0].Instance, Version: "v1", Since: got.Candidates[0].Since}},
		LastPoll: &api.SourcePoll{
			By: "far", Interval: api.Duration(sources.MaxInterval), At: first.At, Took: first.Took,
			Listed: 2, Submitted: 1, Refused: 1, Refusal: first.Refusal, LastGood: first.At,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" || !strings.HasPrefix(first.Refusal, `line 2: "not ok" is not an item id`) {
		t.Errorf("refused: %s, listed (-want +got): %s", first.Refusal, diff)
	}
	var one api.Source
	if decode(t, d.get("/v1/sources/inbox"), &one); !cmp.Equal(one, got) {
		t.Errorf("by itself: %s", cmp.Diff(got, one))
	}

	// Its own host has no sidecar, and needs none.
	two := d.another("two")
	l.listed.Store("a\nb\nc\n")
	look, err := two.client.WakeSource(t.Context(), "inbox", patience)
	if err != nil || look == nil || look.Listed != 3 || look.Submitted != 2 || look.By != "far" || look.Error != "" {
		t.Errorf("%+v, %v", look, err)
	}
	if r, err := d.client.Run(t.Context(), "inbox.c"); err != nil || r.Name != "load c" {
		t.Errorf("%+v, %v", r, err)
	}
	// Nobody waits, unless that is asked for.
	l.listed.Store("")
	if got := d.wake(""); string(got.body) != "{\"poll\":null}\n" {
		t.Errorf("%d %s", got.status, got.body)
	}
	eventually(t, "the poll has failed", func() bool {
		s, err := d.client.Source(t.Context(), "inbox")
		return err == nil && s.LastPoll.Error == "there is no inbox" && s.LastPoll.Failures == 1
	})
	var woken api.SourceWoken
	if decode(t, d.wake(`{"wait": "1m"}`), &woken); woken.Poll == nil || woken.Poll.Failures < 2 {
		t.Errorf("%+v", woken)
	}

	// A source that no process runs can't be woken, and is still listed.
	l.stop()
	d.wantRefused(d.wake(""), problem.Precondition)
	d.wantRefused(d.wake(`{"wait": "1m"}`), problem.Precondition)
	_, err = two.client.WakeSource(t.Context(), "inbox", 0)
	wantCode(t, err, problem.Precondition)
	all, err := two.client.Sources(t.Context())
	if err != nil || len(all) != 1 || all[0].Known != 3 || len(all[0].Candidates) > 0 || all[0].Problem != "" {
		t.Errorf("%+v, %v", all, err)
	}
	d.put(d.store.Keys.SourcePoll("inbox"), `{"v":9}`)
	s, err := d.client.Source(t.Context(), "inbox")
	if err != nil || s.LastPoll != nil || !strings.Contains(s.Problem, d.store.Keys.SourcePoll("inbox")) {
		t.Errorf("%+v, %v", s, err)
	}
	decode(t, d.get("/v1/sources"), &list)
	for _, op := range []string{"list-sources 200 OK", "get-source 200 OK", "wake-source 200 OK"} {
		if !d.doc.checked[op] {
			t.Errorf("%s was not checked against the document", op)
		}
	}
}

func TestBadInputAboutSourcesIsRefusedByField(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	d.source("far", "a")
	eventually(t, "it stands", func() bool { _, err := d.client.WakeSource(t.Context(), "inbox", 0); return err == nil })
	for body, want := range map[string]struct {
		code  problem.Code
		field string
	}{
		`{"wait": "61m"}`:              {problem.Invalid, "wait"},
		`{"wait": "-1"}`:               {problem.Invalid, "wait"},
		`{"wait": "soon"}`:             {problem.Invalid, "wait"},
		`{"wait": 5}`:                  {problem.Invalid, "wait"},
		`{"await": "1s"}`:              {problem.Invalid, "await"},
		`{"wait": "1s", "wait": "1s"}`: {problem.Invalid, "wait"},
	} {
		t.Log(body)
		d.wantRefused(d.wake(body), want.code, want.field)
	}
	d.wantRefused(d.wake("{"), problem.Malformed)
	d.wantRefused(d.get("/v1/sources/In.Box"), problem.Invalid, "name")
	d.wantRefused(d.post("/v1/sources/In.Box/wake", ""), problem.Invalid, "name")
	d.wantRefused(d.post("/v1/sources/In.Box/wake", `{"wait": "1s"}`), problem.Invalid, "name")
	_, err := d.client.WakeSource(t.Context(), "inbox", -time.Second)
	wantCode(t, err, problem.Invalid)
	if !strings.Contains(err.Error(), "use 0s to 1h") {
		t.Error(err)
	}
}
