package bench

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEachTargetHasItsCase(t *testing.T) {
	names := map[string]bool{}
	for _, suite := range []Suite{Claims, Queue, Steps} {
		c := Config{Suite: suite, Sidecars: fakeSidecars{}, History: minHistory}
		if err := c.fill(); err != nil {
			t.Fatal(err)
		}
		for _, cs := range c.cases() {
			if names[cs.Name] {
				t.Errorf("two cases are named %s", cs.Name)
			}
			names[cs.Name] = true
		}
	}
	for _, target := range targets() {
		if !names[target.of] {
			t.Errorf("%s: there is no case %s", target.name, target.of)
		}
	}
}

func TestATargetIsJudgedByItsBound(t *testing.T) {
	row := func(ratio float64) *Row {
		return &Row{
			Case: newCase(uncontended, DoorGo, 64, 1, 1, ampleLimit), PerSecond: 100 * ratio,
			Reference: &Reference{PerSecond: 100}, Ratio: &Spread{Median: ratio, Low: ratio, High: ratio},
		}
	}
	limit := &Row{
		Case: newCase(bigLimit, DoorGo, 64, 1, 1, hugeLimit), PerSecond: 50,
		Reference: &Reference{PerSecond: 100}, Ratio: &Spread{Median: 0.5, Low: 0.5, High: 0.5},
	}
	submissions := &Row{
		Case: Case{Name: "submit/64c"}, Submissions: &Submissions{PerSecond: 80},
		Reference: &Reference{PerSecond: 100}, Ratio: &Spread{Median: 0.8, Low: 0.8, High: 0.8},
	}
	admission := &Row{
		Case: Case{Name: "admit/1c"}, Admissions: &Admissions{Seen: &Latency{P50: 4}, SeenToPut: &Spread{Median: 4}},
		Reference: &Reference{Put: &Latency{P50: 1}, Delete: &Latency{P50: 2}},
	}
	plan := &Row{Case: Case{Name: "plan/idle/100000q"}, Plan: &Latency{Count: 9, P50: 20, P99: 50}}
	tests := map[string]struct {
		row     *Row
		got     float64
		reached bool
		wanted  string
	}{
		"at least, reached": {row(2.2), 2.2, true, "≥ 2.2 × the floor"},
		"at least, missed":  {row(2.1), 2.1, false, "≥ 2.2 × the floor"},
		"at most, missed":   {limit, 2, false, "≤ 1.5 × the time per claim"},
		"submissions":       {submissions, 0.8, true, "≥ 0.8 × the floor"},
		"admission":         {admission, 4, false, "≤ 3 × a plain put"},
		"plan":              {plan, 20, true, "≤ 20 ms"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := judge([]*Row{test.row})
			if len(got) != 1 {
				t.Fatalf("verdicts: %+v", got)
			}
			if got[0].Got != test.got || got[0].Reached != test.reached || got[0].Wanted != test.wanted {
				t.Errorf("verdict: %+v", got[0])
			}
		})
	}
}

func TestACaseThatFailedHasNoVerdict(t *testing.T) {
	row := &Row{Case: newCase(uncontended, DoorGo, 64, 1, 1, ampleLimit), Error: "etcd went away"}
	if got := judge([]*Row{row}); len(got) != 0 {
		t.Errorf("verdicts: %+v", got)
	}
}

func TestCasesAreChosen(t *testing.T) {
	tests := map[string]struct {
		config Config
		want   []string
	}{
		"by name": {
			Config{Cases: regexp.MustCompile(`^contended/go/16c`)},
			[]string{"contended/go/16c/1h/1p", "contended/go/16c/1h/2p", "contended/go/16c/4h/1p", "contended/go/16c/4h/2p"},
		},
		"no more hosts than clients, and a slot at least": {
			Config{Clients: []int{2}, Hosts: []int{1, 2, 3}, Cases: regexp.MustCompile(`contended/.*/1p`)},
			[]string{"uncontended/go/2c/1h/1p", "uncontended/go/2c/2h/1p"},
		},
		"of the queue": {
			Config{Suite: Queue, Queued: 7},
			[]string{"submit/1c", "submit/16c", "submit/64c", "admit/1c", "plan/idle/7q", "plan/last/7q", "plan/many/7q", "leader/7q"},
		},
		"of the queue, those with a target": {
			Config{Suite: Queue, TargetsOnly: true},
			[]string{"submit/64c", "admit/1c", "plan/idle/100000q", "plan/last/100000q", "plan/many/100000q"},
		},
		"those with a target": {
			Config{TargetsOnly: true, Cases: regexp.MustCompile(`256c`)},
			[]string{"uncontended/go/256c/1h/1p", "uncontended/go/256c/4h/1p", "contended/go/256c/1h/1p", "contended/go/256c/4h/1p", "full/go/256c/1h/1p"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := test.config
			if err := c.fill(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, cs := range c.cases() {
				got = append(got, cs.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
