package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// founders returns the foundings of n servers that know each other.
func founders(t *testing.T, n int) []*Founding {
	t.Helper()
	var members []Member
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		members = append(members, Member{Name: fmt.Sprintf("m%d", i), PeerURL: fmt.Sprintf("http://127.0.0.1:%d", i+1), ClientURL: "http://" + l.Addr().String()})
	}
	all := make([]*Founding, n)
	for i, m := range members {
		all[i] = &Founding{
			Self: m, Others: slices.Delete(slices.Clone(members), i, i+1), Listen: hostOf(m.ClientURL), Log: hclog.NewNullLogger(),
		}
	}
	return all
}

// begun is what a founding has returned.
type begun struct {
	start Start
	err   error
}

func begin(ctx context.Context, f *Founding) <-chan begun {
	done := make(chan begun, 1)
	go func() {
		s, err := f.Run(ctx)
		done <- begun{s, err}
	}()
	return done
}

func TestServersWithoutDataFoundOneClusterWhenAllRun(t *testing.T) {
	t.Parallel()
	all := founders(t, 3)
	ctx := t.Context()
	first, second := begin(ctx, all[0]), begin(ctx, all[1])
	select {
	case b := <-first:
		t.Fatalf("two of three found %v, %v", b.start, b.err)
	case b := <-second:
		t.Fatalf("two of three found %v, %v", b.start, b.err)
	case <-awaitMet(t, all[2].Others):
	}
	third := begin(ctx, all[2])
	want := map[string]string{"m0": "127.0.0.1:1", "m1": "127.0.0.1:2", "m2": "127.0.0.1:3"}
	for _, done := range []<-chan begun{first, second, third} {
		if b := <-done; b.err != nil || b.start.Joins || !maps.Equal(b.start.Members, want) {
			t.Errorf("a server begins as %v, %v", b.start, b.err)
		}
	}
}

// awaitMet is closed when two founders have met each other.
func awaitMet(t *testing.T, both []Member) <-chan struct{} {
	met := make(chan struct{})
	go func() {
		defer close(met)
		probe := newAttempt(&Founding{Self: Member{Name: "probe"}})
		for seen := 0; seen < len(both) && t.Context().Err() == nil; {
			seen = 0
			for _, m := range both {
				if s, err := probe.get(t.Context(), m); err == nil && len(s.Empty) == 1 {
					seen++
				}
			}
		}
	}()
	return met
}

func TestAServerWithoutDataDoesNotFoundAClusterWithAnotherConfiguration(t *testing.T) {
	t.Parallel()
	all := founders(t, 2)
	other := *all[1]
	other.Others = append(slices.Clone(other.Others), Member{Name: "m9", PeerURL: "http://127.0.0.1:9", ClientURL: "http://127.0.0.1:9"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := begin(ctx, &other)
	p := newAttempt(all[0])
	for {
		err := p.ask(ctx, all[0].Others[0])
		if err == nil {
			t.Fatal("it takes part")
		}
		if strings.Contains(err.Error(), "its setting cluster differs") {
			break
		}
	}
	cancel()
	if b := <-done; !errors.Is(b.err, context.Canceled) {
		t.Errorf("it ends with %v", b.err)
	}
}

func TestWhatAServerHasAnsweredDoesNotCountWhenItHasGone(t *testing.T) {
	t.Parallel()
	all := founders(t, 3)
	p := newAttempt(all[0])
	ctx, cancel := context.WithCancel(t.Context())
	done := begin(ctx, all[1])
	for p.ask(t.Context(), all[0].Others[0]) != nil {
	}
	if len(p.empty) != 1 {
		t.Fatal("it was not met")
	}
	cancel()
	<-done
	if err := p.ask(t.Context(), all[0].Others[0]); err == nil || len(p.empty) != 0 {
		t.Errorf("a server that was restored meanwhile still counts as one without data: %v", err)
	}
}

func TestServersFoundTheClusterWhenTheOthersKnowEnough(t *testing.T) {
	p := newAttempt(founders(t, 3)[0])
	gone := errors.New("connection refused")
	for _, c := range []struct {
		ready, all []string
		last       map[string]error
		want       bool
	}{
		{nil, nil, nil, false},
		{[]string{"m1"}, []string{"m1"}, nil, false},
		{[]string{"m1", "m2"}, nil, nil, false},
		{[]string{"m1", "m2"}, []string{"m1"}, nil, false},
		{[]string{"m1", "m2"}, []string{"m1", "m2"}, nil, true},
		{[]string{"m1", "m2"}, []string{"m1"}, map[string]error{"m2": gone}, true},
		{[]string{"m1"}, []string{"m1"}, map[string]error{"m2": gone}, false}, // it may have been restored
	} {
		clear(p.ready)
		clear(p.all)
		for _, name := range c.ready {
			p.ready[name] = true
		}
		for _, name := range c.all {
			p.all[name] = true
		}
		if got := p.complete(c.last); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestAFirstStartThatWasInterruptedGoesOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		want   bool
	}{
		"founded":         {`[{"name":"m0","peerURLs":["http://127.0.0.1:1"],"clientURLs":[]},{"name":"m1","peerURLs":["%s"]}]`, true},
		"it has run":      {`[{"name":"m0","peerURLs":["http://127.0.0.1:1"]},{"name":"m1","peerURLs":["%s"],"clientURLs":["http://127.0.0.1:9"]}]`, false},
		"another cluster": {`[{"name":"m1","peerURLs":["%s"]}]`, false},
		"no list":         {`{"%s":1}`, false},
	} {
		var srv *httptest.Server
		srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/members" {
				fmt.Fprintf(w, c.answer, srv.URL)
			}
		}))
		f := founders(t, 2)[0]
		f.Others[0].PeerURL = srv.URL
		if s, ok := newAttempt(f).hasFounded(t.Context(), f.Others[0]); ok && slices.Equal(s.Members, f.members()) != c.want || !ok && c.want {
			t.Errorf("%s: %+v, %v", name, s, ok)
		}
		srv.Close()
	}
}

func TestAServerAloneBeginsAtOnce(t *testing.T) {
	t.Parallel()
	f := founders(t, 1)[0]
	if s, err := f.Run(t.Context()); err != nil || s.Joins || len(s.Members) != 1 {
		t.Errorf("it begins as %v, %v", s, err)
	}
}

func TestWhatIsNoServerOfBerthIsNotMet(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"a page":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"an error":     func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", http.StatusBadGateway) },
		"another name": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"name":"x"}`) },
		"a long answer": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"name":"`, strings.Repeat("x", maxFounding))
		},
		"another cluster": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"name":"m1","members":["x"],"empty":["m0"]}`)
		},
	} {
		srv := httptest.NewServer(answer)
		f := founders(t, 2)[0]
		f.Others[0].ClientURL = srv.URL
		p := newAttempt(f)
		if err := p.ask(t.Context(), f.Others[0]); err == nil || errors.Is(err, errServes) || len(p.empty) > 0 {
			t.Errorf("%s: %v", name, err)
		}
		srv.Close()
	}
}

// joiner returns the founding of a server that knows a cluster.
func joiner(m *embedtest.Members, self Member) *Founding {
	f := &Founding{Self: self, Listen: "127.0.0.1:0", Log: hclog.NewNullLogger()}
	for i, at := range m.Endpoints() {
		f.Others = append(f.Others, Member{Name: fmt.Sprintf("m%d", i), ClientURL: at})
	}
	return f
}

func TestAServerWithoutDataJoinsTheClusterThatThereIs(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	f := joiner(m, Member{Name: "new", PeerURL: "http://127.0.0.1:1"})
	s, err := f.Run(t.Context())
	if err != nil || !s.Joins || len(s.Members) != 4 || s.Members["new"] != "127.0.0.1:1" {
		t.Fatalf("it begins as %v, %v", s, err)
	}
	// It crashed before it had data, and begins again.
	if s, err = f.Run(t.Context()); err != nil || !s.Joins || len(s.Members) != 4 {
		t.Errorf("it begins again as %v, %v", s, err)
	}
	c := dialed(t, m)
	status, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status.Voters != 3 || len(status.Members) != 4 {
		t.Errorf("a server that has not run has a vote: %+v", status)
	}
}

func TestAServerWithoutDataIsNotTakenForOneThatHasRun(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	status, err := dialed(t, m).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old := status.Members[2]
	for field, self := range map[string]Member{
		"data_dir": {Name: old.Name, PeerURL: old.PeerURLs[0]},
		"name":     {Name: old.Name, PeerURL: "http://127.0.0.1:1"},
	} {
		var e *problem.Error
		if _, err := joiner(m, self).Run(t.Context()); !errors.As(err, &e) || e.Field != field || !strings.Contains(e.Message, "member replace") {
			t.Errorf("%+v: %v, want a problem of %s", self, err, field)
		}
	}
}
