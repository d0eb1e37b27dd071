package ui

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// holder is a claim that holds slots.
func holder(claim, run, host string, slots int) pool.HolderStatus {
	return pool.HolderStatus{
		Claim: claim, Holder: pool.Holder{Host: host, Instance: "sidecar", Run: run}, Slots: slots, Pools: map[string]int{"db": slots}, Fence: 7,
	}
}

func TestACancelationSaysWhatWillHappen(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	held := []pool.HolderStatus{holder("a", "r", "one", 2), holder("b", "other", "one", 5), holder("c", "", "two", 1), holder("d", "r", "two", 1)}
	kept := holder("k", "r", "lead", 4)
	kept.Bind = run.BindBridge
	line := []pool.WaiterStatus{{Holder: pool.Holder{Run: "r"}}, {Holder: pool.Holder{Run: "other"}}}
	by := &run.Executor{Host: "one", Instance: "sidecar"}
	for name, c := range map[string]struct {
		rec     run.Record
		steps   []step.Summary
		say     []string
		not     string
		stopped int
	}{
		"queued":      {rec: run.Record{Status: run.Queued}, say: []string{"leaves the queue", "can be retried"}, stopped: 2},
		"not started": {rec: run.Record{Status: run.NotStarted, Claim: "k"}, say: []string{"it will not start", "4 slots are held until it starts", "3 slots by 2 claims", "1 claim of it waits"}, stopped: 2},
		"running": {
			rec: run.Record{Status: run.Running, Executor: by},
			say: []string{"executor on host one", "3 slots by 2 claims", "does not count against the limits"}, stopped: 2,
		},
		"with steps": {
			rec: run.Record{Status: run.Running, Spec: run.Spec{Steps: 2}},
			steps: []step.Summary{
				{Counts: map[step.Status]int{step.Running: 1_200, step.Succeeded: 3}}, {Counts: map[step.Status]int{step.Running: 34}},
			},
			say: []string{"No more of its step instances start", "1,234 step instances run now"}, stopped: 2,
		},
		"with one instance": {
			rec: run.Record{Status: run.Running, Spec: run.Spec{Steps: 1}}, steps: []step.Summary{{Counts: map[step.Status]int{step.Running: 1}}},
			say: []string{"1 step instance runs now"}, stopped: 2,
		},
		"succeeded": {rec: run.Record{Status: run.Succeeded, EndedAt: at}, not: "it has succeeded at 2026-03-01 12:00:00 UTC"},
		"canceled":  {rec: run.Record{Status: run.Canceled, EndedAt: at}, not: "it was canceled at"},
	} {
		got := &confirmation{}
		cancelRunOf(got, &run.Run{ID: "r", Record: c.rec}, c.steps, append(held, kept), line)
		if c.not != "" {
			if !strings.Contains(got.Not, c.not) || got.Effects != nil {
				t.Errorf("%s: %q %q", name, got.Not, got.Effects)
			}
			continue
		}
		all := strings.Join(got.Effects, " ")
		for _, say := range c.say {
			if !strings.Contains(all, say) {
				t.Errorf("%s: %q does not say %q", name, all, say)
			}
		}
		if got.Not != "" || got.StoppedAll != c.stopped || len(got.Stopped) != c.stopped {
			t.Errorf("%s: %+v", name, got)
		}
	}
	var many []pool.HolderStatus
	for i := range 120 {
		many = append(many, holder(fmt.Sprint(i), "r", "one", 1))
	}
	got := &confirmation{}
	if cancelRunOf(got, &run.Run{ID: "r", Record: run.Record{Status: run.Queued}}, nil, many, nil); len(got.Stopped) != maxStopped || got.Left() != 70 {
		t.Errorf("%d claims are listed and %d are not", len(got.Stopped), got.Left())
	}
}

// poolWith is a pool with so many slots held, and claims of so many slots each that wait.
func poolWith(limit, held int, line ...int) pool.Detail {
	d := pool.Detail{Status: pool.Status{Name: "db", Spec: pool.Spec{Limit: limit}, Claimed: held}}
	if held > 0 {
		d.Holders = []pool.HolderStatus{holder("a", "", "one", held)}
	}
	for _, n := range line {
		d.Waiters = append(d.Waiters, pool.WaiterStatus{Slots: n})
	}
	return d
}

func TestALimitSaysWhatComesOfIt(t *testing.T) {
	paused := poolWith(3, 1)
	paused.Paused = true
	for _, c := range []struct {
		pool pool.Detail
		to   string
		say  []string
	}{
		{poolWith(3, 3, 1, 1), "5", []string{"from 3 to 5", "No holder is stopped", "2 slots are free: 2 claims wait"}},
		{poolWith(3, 3, 1, 4, 5), "1", []string{"keep 3 slots", "until 2 slots are released", "2 waiting claims ask for more"}},
		{poolWith(3, 3, 1), "0", []string{"until 3 slots are released"}},
		{poolWith(3, 0, 1), "0", []string{"keep their position"}},
		{poolWith(3, 3), "-1", []string{"no limit: 0 claims wait"}},
		{poolWith(-1, 3, 1), "3", []string{"from unlimited to 3", "no free slots: 1 claim waits"}},
		{poolWith(3, 1), "2", []string{"1 slot is free"}},
		{paused, "4", []string{"stays paused"}},
		{poolWith(3, 1), " 1000000 ", []string{"999,999 slots are free"}},
	} {
		got := limitOf(c.pool, url.Values{"limit": {c.to}})
		all := strings.Join(got.Effects, " ")
		for _, say := range c.say {
			if !strings.Contains(all, say) {
				t.Errorf("%d to %s: %q does not say %q", c.pool.Limit, c.to, all, say)
			}
		}
		want := []pair{{"pool", "db"}, {"limit", strings.TrimSpace(c.to)}, {"from", fmt.Sprint(c.pool.Limit)}}
		if d := cmp.Diff(want, got.Hidden); d != "" || got.Limit != nil {
			t.Errorf("%d to %s: fields (-want +got):\n%s", c.pool.Limit, c.to, d)
		}
	}
	for to, want := range map[string]string{
		"": "", "3": "it is already the limit", "-2": "must be a number from -1 to 1,000,000", "1000001": "must be a number", "x": `"x" is not one: it must be a number`, "1.5": "must be a number", "<b>": `"<b>" is not one`, "+1": "to raise by one, write the new limit",
	} {
		got := limitOf(poolWith(3, 1), url.Values{"limit": {to}})
		if got.Limit == nil || got.Effects != nil || (want == "") != (got.Limit.Problem == "") || !strings.Contains(got.Limit.Problem, want) {
			t.Errorf("%q: %+v", to, got.Limit)
		}
	}
	if got := limitOf(poolWith(3, 1), url.Values{"limit": {""}}).Limit.Value; got != "3" {
		t.Errorf("it begins with %q", got)
	}
}

func TestAPauseAndItsEndSayWhatComesOfThem(t *testing.T) {
	d := poolWith(3, 2, 1)
	if got := strings.Join(pauseOf(d, nil).Effects, " "); !strings.Contains(got, "keep 2 slots") || !strings.Contains(got, "1 claim now") {
		t.Errorf("%q", got)
	}
	if got := resumeOf(d, nil); got.Not == "" {
		t.Errorf("%+v", got)
	}
	d.Paused = true
	if got := strings.Join(resumeOf(d, nil).Effects, " "); !strings.Contains(got, "1 slot is free: 1 claim waits") {
		t.Errorf("%q", got)
	}
	if got := pauseOf(d, nil); got.Not == "" {
		t.Errorf("%+v", got)
	}
}

func TestAReleaseSaysWhoIsStopped(t *testing.T) {
	h := holder("c1", "r1", "one", 2)
	h.PID, h.Step = 4711, "load"
	soft := revokeOf(pool.Why{Claim: "c1", Held: &h}, false)
	if all := strings.Join(soft.Effects, " "); !strings.Contains(all, "Host one") || !strings.Contains(all, "process 4711 gets TERM") || !strings.Contains(all, "2 slots are free when") {
		t.Errorf("%q", all)
	}
	if soft.Sure != "" || soft.Warning != "" || soft.Other.Encode() != "claim=c1&force=yes" || soft.StoppedAll != 1 {
		t.Errorf("%+v", soft)
	}
	force := revokeOf(pool.Why{Claim: "c1", Held: &h}, true)
	if !strings.Contains(force.Warning, "may still run") || !strings.Contains(force.Warning, "fencing token is 7") || force.Sure == "" || force.StoppedAll != 0 || !strings.Contains(strings.Join(force.Effects, " "), "Its 2 slots are free at once") {
		t.Errorf("%+v", force)
	}
	h.Bind = run.BindExecutor
	if all := strings.Join(revokeOf(pool.Why{Claim: "c1", Held: &h}, false).Effects, " "); !strings.Contains(all, "executor of run r1 loses the run") {
		t.Errorf("%q", all)
	}
	kept := h
	kept.Bind = run.BindBridge
	for _, w := range []pool.Why{{Claim: "c1"}, {Claim: "c1", Held: &kept}, {Claim: "c1", Waiter: &pool.WaiterStatus{Holder: pool.Holder{Host: "two"}}}} {
		if got := revokeOf(w, false); got.Not == "" || got.Other != nil || got.Effects != nil {
			t.Errorf("%+v", got)
		}
	}
	if got := revokeOf(pool.Why{Claim: "c1", Waiter: &pool.WaiterStatus{Holder: pool.Holder{Host: "two"}}}, true); !strings.Contains(got.Not, "host two") {
		t.Errorf("%q", got.Not)
	}
}

func TestWhatIsConfirmedIsReadStrictly(t *testing.T) {
	for _, c := range []struct {
		name  string
		form  string
		field string // that is refused
	}{
		{"cancel", "run=r", ""},
		{"cancel", "run=", "id"},
		{"cancel", "run=a%2Fb", "id"},
		{"cancel", "run=r&step=load&index=0", ""},
		{"cancel", "run=r&step=load&index=-1", "index"},
		{"retry", "run=r&step=load", ""},
		{"retry", "run=r&index=1", "step"},
		{"cancel", "run=r&reason=" + strings.Repeat("x", maxReason), ""},
		{"cancel", "run=r&reason=" + strings.Repeat("x", maxReason+1), "reason"},
		{"pause", "pool=db", ""},
		{"pause", "pool=DB", "pool"},
		{"resume", "", "pool"},
		{"limit", "pool=db&limit=5&from=3", ""},
		{"limit", "pool=db&limit=5", "from"},
		{"limit", "pool=db&limit=x&from=3", "limit"},
		{"limit", "pool=db&limit=-2&from=3", "limit"},
		{"limit", "pool=../x&limit=5&from=3", "pool"},
		{"revoke", "claim=c&fence=7", ""},
		{"revoke", "claim=c", "fence"},
		{"revoke", "claim=c&fence=0", "fence"},
		{"revoke", "claim=&fence=7", "id"},
		{"revoke", "claim=c&fence=7&force=yes", "sure"},
		{"revoke", "claim=c&fence=7&force=yes&sure=yes", ""},
	} {
		form, err := url.ParseQuery(c.form)
		if err != nil {
			t.Fatal(err)
		}
		_, err = actions[c.name].task("ann", form)
		p, _ := err.(*problem.Error)
		switch {
		case c.field == "" && err != nil:
			t.Errorf("%.60s: %v", c.form, err)
		case c.field != "" && (p == nil || p.Code != problem.Invalid || p.Field != c.field):
			t.Errorf("%.60s: %v, want a refusal of %s", c.form, err, c.field)
		}
	}
}

func TestOneComesBackToAPageOfOurs(t *testing.T) {
	for back, want := range map[string]string{
		"": "/usual", "/queue": "/queue", "/pools?open=db": "/pools?open=db",
		"https://example.com/": home, "//example.com": home, "/\\example.com": home, "javascript:alert(1)": home, "queue": home,
	} {
		if got := backTo(url.Values{backKey: {back}}, "/usual"); got != want {
			t.Errorf("%q: %q, want %q", back, got, want)
		}
	}
}

func TestActionsAreListedInWords(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := at.Add(time.Hour)
	entry := func(id, verb, object string, at time.Time, done bool) audit.Entry {
		e := audit.Entry{ID: id, Action: audit.Action{Who: "ann", At: at, Action: verb, Object: object, Outcome: audit.Asked}}
		if done {
			e.Outcome, e.EndedAt = audit.Done, at
		}
		return e
	}
	l := inspect.ActionList{
		Items: []audit.Entry{
			entry("5", audit.SetPool, "db", now, false),
			entry("4", audit.SetPool, "db", at, false),
			entry("3", audit.CancelRun, "a b", at, true),
			entry("2", audit.CancelRun, "r-1", at, true),
			entry("1", "newer", "x", at, true),
		},
		Next: "1",
	}
	p := actionsOf(l, "", now)
	var got [][]string
	for _, r := range p.Rows {
		got = append(got, []string{r.ID, r.What, r.Link, r.Outcome})
	}
	want := [][]string{
		{"5", "set pool", "/pools?open=db&q=db", "asked"}, {"4", "set pool", "/pools?open=db&q=db", "unknown"},
		{"3", "cancel run", "", "done"}, {"2", "cancel run", "/runs/r-1", "done"}, {"1", "newer", "", "done"},
	}
	if d := cmp.Diff(want, got); d != "" || p.Older != "/actions?before=1" || p.Newest != "" {
		t.Errorf("older %q, newest %q (-want +got):\n%s", p.Older, p.Newest, d)
	}
}
