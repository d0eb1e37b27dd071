package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func TestParseSlots_ReadsPoolsWithAndWithoutANumber(t *testing.T) {
	for _, tc := range []struct {
		texts []string
		want  map[string]int
	}{
		{[]string{"a"}, map[string]int{"a": 1}},
		{[]string{"a=2", "b"}, map[string]int{"a": 2, "b": 1}},
		{[]string{"a=-2"}, map[string]int{"a": -2}}, // read here, refused with its range later
		{[]string{"=3"}, map[string]int{"": 3}},
		{nil, map[string]int{}},
		{[]string{"a="}, nil},
		{[]string{"a=x"}, nil},
		{[]string{"a=1.5"}, nil},
		{[]string{"a=1", "a=2"}, nil},
		{[]string{"a=99999999999999999999"}, nil},
	} {
		got, err := parseSlots(tc.texts)
		if (err != nil) != (tc.want == nil) {
			t.Errorf("%q: error %v", tc.texts, err)
		}
		if diff := cmp.Diff(tc.want, got); err == nil && diff != "" {
			t.Errorf("%q: -want +got\n%s", tc.texts, diff)
		}
	}
}

func TestParseLabels_ReadsKeysAndValues(t *testing.T) {
	got, err := parsePairs("label", []string{"team=a,b", "empty=", "url=x=y"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"team": "a,b", "empty": "", "url": "x=y"}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, bad := range [][]string{{"team"}, {"=x"}, {"a=1", "a=2"}} {
		if _, err := parsePairs("label", bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// awayHolder is a [holder] whose claims fail, each after a second or at the end of its wait.
type awayHolder struct {
	holder
	errs  []error // the last one is that of all later claims, too
	waits []time.Duration
	held  held
}

func (*awayHolder) lease(context.Context, string) (time.Duration, error) { return time.Minute, nil }

func (h *awayHolder) claim(_ context.Context, r pool.Request) (held, error) {
	h.waits = append(h.waits, r.Wait)
	err := h.errs[0]
	if len(h.errs) > 1 {
		h.errs = h.errs[1:]
	}
	if err == nil {
		return h.held, nil
	}
	time.Sleep(min(time.Second, r.Wait))
	return nil, err
}

func TestExecTakes_WaitsForWhatIsAway(t *testing.T) {
	var (
		away     = problem.New(problem.Unavailable, "the sidecar can't be reached")
		stopping = problem.New(problem.Stopping, "berth is shutting down on this host")
		noEtcd   = problem.New(problem.EtcdUnavailable, "etcd does not answer")
		taken    = problem.New(problem.IDInUse, "claim id is held already")
		s, ms    = time.Second, time.Millisecond
	)
	for _, tc := range []struct {
		name  string
		wait  time.Duration
		errs  []error
		want  problem.Code // none if it gets the slots
		waits []time.Duration
	}{
		{"etcd, to the end", 2 * s, []error{noEtcd}, problem.ClaimTimeout, []time.Duration{2 * s, 800 * ms}},
		{"a sidecar, to the end", 2 * s, []error{stopping, away}, problem.ClaimTimeout, []time.Duration{2 * s, 800 * ms}},
		{"a sidecar that comes back", 10 * s, []error{stopping, away, noEtcd, nil}, "", []time.Duration{10 * s, 8800 * ms, 7600 * ms, 6400 * ms}},
		{"a refusal", 10 * s, []error{away, taken}, problem.IDInUse, []time.Duration{10 * s, 8800 * ms}},
		{"no wait", 0, []error{noEtcd}, problem.EtcdUnavailable, []time.Duration{0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &awayHolder{errs: tc.errs, held: &directHeld{}}
				exec := &session{
					request: pool.Request{ID: "job", Slots: map[string]int{"demo": 1}, Wait: tc.wait},
					open:    func(context.Context) (holder, error) { return h, nil },
				}
				err := exec.take(t.Context())
				if (err == nil) != (tc.want == "") || err != nil && problem.CodeOf(err) != tc.want || (exec.held == nil) != (err != nil) {
					t.Errorf("it has %v, and its error is %v", exec.held, err)
				}
				if diff := cmp.Diff(tc.waits, h.waits); diff != "" {
					t.Errorf("its waits, -want +got\n%s", diff)
				}
			})
		})
	}
}
