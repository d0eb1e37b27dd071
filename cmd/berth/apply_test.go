package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/manifest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func TestDecodeDeclared_ReadsPoolsWithTheirDefaults(t *testing.T) {
	d, err := manifest.ReadDeclaration("f", []byte(`
pools:
  db:
    limit: 3
  gpu: {limit: -1, lease_duration: 1h30m, reserve_after: -1, paused: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	db, gpu := d.Pools["db"], d.Pools["gpu"]
	if want := (pool.Spec{Limit: 3, LeaseDuration: 5 * time.Minute, ReserveAfter: time.Minute}); db.Spec != want || db.Paused != nil {
		t.Errorf("db is %+v", db)
	}
	if want := (pool.Spec{Limit: -1, LeaseDuration: 90 * time.Minute, ReserveAfter: pool.NeverReserve}); gpu.Spec != want || gpu.Paused == nil || !*gpu.Paused {
		t.Errorf("gpu is %+v", gpu)
	}
}

func TestDecodeDeclared_TellsAllThatIsWrongByLine(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", []string{"1: the file is empty: it needs pools or limits"}},
		{"no mapping", "- a", []string{`1:1: the file must be a mapping: write "pools: VALUE", with a space behind the colon`}},
		{"no pools", "{}", []string{"1:1: pools and limits are missing"}},
		{"no YAML", "pools:\n  a: [\n", []string{"2:3: did not find expected node content"}},
		{"two documents", "pools: {}\n---\npools: {}", []string{"2:1: the file must be one YAML document: another one begins here"}},
		{"unknown key", "pools: {}\nhosts: {}", []string{`2:1: the file: there is no "hosts", only pools, limits`}},
		{"alias", "pools:\n  a: &x {limit: 1}\n  b: *x", []string{"3:6: pools.b: aliases are not allowed"}},
		{"JSON", "{\n\t\"pools\": {\"a\": {\"limit\": 1, \"colour\": 1}}, \"pools\": 1\n}", []string{
			`2:30: pools.a: there is no "colour", only limit, lease_duration, reserve_after, paused`,
			`2:45: the file: "pools" is given twice, first on line 2`,
		}},
		{"a setting that was removed", "pools:\n  a: {limit: 1, retain: 0s}", []string{
			"2:17: pools.a.retain: this setting was removed, because hosts no longer retain released slots: leave it out; to claim less often, hold a claim for many requests",
		}},
		{"limits", strings.Join([]string{
			"limits:",
			"  max_concurrent_runs: -2",
			"  tags:",
			"    env=prod: many",
			"    env=: 1",
			"    tenant=*: 1000001",
			"    '=x': 1",
			"    a=b=c: 3",
			"    team: 5",
			"    team: 6",
			"    other: '7'",
			"  labels: {}",
		}, "\n"), []string{
			"2:24: limits.max_concurrent_runs: -2 is out of range: use 0 to 1000000, and -1 (unlimited)",
			"4:15: limits.tags.env=prod must be a whole number",
			`5:5: limits.tags: "env=" is not a tag: write KEY=VALUE, KEY for all values together, or KEY=* for each value separately`,
			"6:15: limits.tags.tenant=*: 1000001 is out of range: use 0 to 1000000, and -1 (unlimited)",
			"7:5: limits.tags: a tag has no key",
			`10:5: limits.tags: "team" is given twice, first on line 9`,
			"11:12: limits.tags.other must be a whole number",
			`12:3: limits: there is no "labels", only max_concurrent_runs, tags`,
		}},
		{"many", strings.Join([]string{
			"pools:",
			"  a:",
			"    limit: three",
			"    lease: 5m",
			"    paused: maybe",
			"  B: {limit: 1}",
			"  c: {}",
			"  d:",
			"    limit: 1",
			"    limit: 2",
			"  e: {limit: 1, lease_duration: 1s}",
			"  f:",
			"    limit: 1",
			"    reserve_after: [1m]",
			"  a: {limit: 1}",
			"  g: 3",
			"  H: {limit: -7, frob: 1, lease_duration: 2s}",
		}, "\n"), []string{
			`3:12: pools.a.limit can't be "three": it must be a number of slots, 0 (closed) or -1 (unlimited)`,
			`4:5: pools.a: there is no "lease", only limit, lease_duration, reserve_after, paused`,
			`5:13: pools.a.paused can't be "maybe": it must be true or false`,
			`6:3: invalid pool name "B": use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit`,
			"7:3: pools.c needs a limit",
			`10:5: pools.d: "limit" is given twice, first on line 9`,
			"11:33: pools.e.lease_duration: 1s is out of range: use 5s to 24h0m0s",
			"14:20: pools.f.reserve_after must be a single value",
			`15:3: pools: "a" is given twice, first on line 2`,
			`16:6: pools.g must be a mapping: write "g: {limit: 3}"`,
			`17:3: invalid pool name "H": use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit`,
			`17:18: pools.H: there is no "frob", only limit, lease_duration, reserve_after, paused`,
			"17:14: pools.H.limit: -7 is out of range: use 1 to 1000000, 0 (closed) and -1 (unlimited)",
			"17:43: pools.H.lease_duration: 2s is out of range: use 5s to 24h0m0s",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := manifest.ReadDeclaration("f", []byte(tc.text))
			var p *manifest.Problems
			if !errors.As(err, &p) || problem.CodeOf(err) != problem.Invalid {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(tc.want, p.Lines); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func anyStatus(t *rapid.T, name string) pool.Status {
	return pool.Status{Name: name, Spec: pool.Spec{
		Limit:         rapid.IntRange(-1, 5).Draw(t, "limit"),
		LeaseDuration: time.Duration(rapid.IntRange(5, 3600).Draw(t, "lease")) * time.Second,
		ReserveAfter:  time.Duration(rapid.IntRange(-1, 3600).Draw(t, "reserve")) * time.Second,
		Paused:        rapid.Bool().Draw(t, "paused"),
	}}
}

func anyPools(t *rapid.T) []pool.Status {
	var all []pool.Status
	for _, name := range []string{"a", "b", "c", "1", "null", "true"} {
		if rapid.Bool().Draw(t, name) {
			p := anyStatus(t, name)
			if p.ReserveAfter < 0 {
				p.ReserveAfter = pool.NeverReserve
			}
			all = append(all, p)
		}
	}
	return all
}

func exportOf(t *rapid.T, pools []pool.Status) manifest.Declaration {
	all, err := exportPools(pools)
	if err != nil {
		t.Fatal(err)
	}
	text, err := exportText(exported{Pools: all})
	if err != nil {
		t.Fatal(err)
	}
	d, err := manifest.ReadDeclaration("export", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return d
}

func TestDecodeDeclared_RefusesNumbersThatCanBeReadInSeveralWays(t *testing.T) {
	for _, odd := range []string{"010", "-010", "0o10", "0x10", "1_000", "00"} {
		for path, text := range map[string]string{
			"limits.max_concurrent_runs: ": "limits: {max_concurrent_runs: %s}",
			"limits.tags.env=prod: ":       "limits: {tags: {env=prod: %s}}",
			"limits.tags: ":                "limits: {tags: {%s: 1}}",
			"pools.db.limit: ":             "pools: {db: {limit: %s}}",
			"pools.db.lease_duration: ":    "pools: {db: {limit: 1, lease_duration: %s}}",
			"pools.db.reserve_after: ":     "pools: {db: {limit: 1, reserve_after: %s}}",
		} {
			text = strings.Replace(text, "%s", odd, 1)
			_, err := manifest.ReadDeclaration("f", []byte(text))
			want := path + odd + " can be read in several ways: write "
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "problems") {
				t.Errorf("%s\n%v, want %q", text, err, want)
			}
		}
	}
}

func TestPlanPools_AnExportChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pools := anyPools(t)
		for _, p := range planPools(pools, exportOf(t, pools), true) {
			if p.Action != keeps {
				t.Fatalf("plan %+v for %+v", p, pools)
			}
		}
	})
}

func TestPlanPools_MakesWhatIsWhatIsDeclared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		is, want := anyPools(t), anyPools(t)
		d := exportOf(t, want)
		after := map[string]pool.Spec{}
		for _, p := range is {
			after[p.Name] = p.Spec
		}
		for _, p := range planPools(is, d, true) {
			switch p.Action {
			case creates, changes:
				spec := after[p.Name]
				spec.Limit, spec.LeaseDuration, spec.ReserveAfter = *p.change.Limit, *p.change.LeaseDuration, *p.change.ReserveAfter
				if p.change.Paused != nil {
					spec.Paused = *p.change.Paused
				}
				after[p.Name] = spec
			case deletes:
				delete(after, p.Name)
			}
		}
		wanted := map[string]pool.Spec{}
		for _, p := range want {
			wanted[p.Name] = p.Spec
			if !p.Paused { // then a pause that is there stays
				spec := p.Spec
				spec.Paused = after[p.Name].Paused
				wanted[p.Name] = spec
			}
		}
		if diff := cmp.Diff(wanted, after); diff != "" {
			t.Fatalf("-want +got\n%s", diff)
		}
	})
}

func TestPlanPools_LeavesOthersAloneUnlessItPrunes(t *testing.T) {
	is := []pool.Status{
		{Name: "kept", Spec: pool.Spec{Limit: 1, LeaseDuration: 5 * time.Minute, ReserveAfter: time.Minute}},
		{Name: "other", Claimed: 2, Spec: pool.DefaultSpec()},
		{Name: "gone", Deleted: true, Claimed: 1},
	}
	want := manifest.Declaration{Pools: map[string]manifest.Pool{
		"kept": {Spec: pool.Spec{Limit: 4, LeaseDuration: 5 * time.Minute, ReserveAfter: 0}},
		"new":  {Spec: pool.Spec{Limit: 1, LeaseDuration: 5 * time.Minute, ReserveAfter: time.Minute}, Paused: new(true)},
	}}
	for prune, last := range map[bool]string{false: "", true: "- other (2 slots still held)"} {
		var lines []string
		for _, p := range planPools(is, want, prune) {
			lines = append(lines, p.line())
		}
		wanted := []string{"~ kept: limit 1 → 4, reserve after 1m → at once", "+ new: limit 1, lease 5m, reserve after 1m, paused", last}
		if diff := cmp.Diff(wanted, lines); diff != "" {
			t.Errorf("prune %v: -want +got\n%s", prune, diff)
		}
	}
}

func TestPlanLimits_ChangesWhatIsDeclaredAndNoMore(t *testing.T) {
	is := run.Limits{MaxConcurrentRuns: 10, Tags: []run.TagLimit{
		{Key: "env", Value: "prod", Limit: 2}, {Key: "team", Limit: 5}, {Key: "tenant", PerUniqueValue: true, Limit: 1},
	}}
	for _, tc := range []struct {
		name, file      string
		prune           bool
		changes, others []string
	}{
		{"nothing said", "limits: {}", true, nil, nil},
		{"the same", "limits: {max_concurrent_runs: 10, tags: {env=prod: 2, team: 5, tenant=*: 1}}", true, nil, nil},
		{"a number", "limits: {max_concurrent_runs: -1}", true, []string{"max_concurrent_runs 10 → unlimited"}, nil},
		{
			"tags", "limits: {tags: {env=prod: 3, team: -1, x: -1, y: 0}}", false,
			[]string{"env=prod 2 → 3", "team 5 → none", "y none → 0"}, []string{"tenant=*"},
		},
		{
			"pruned tags", "limits: {tags: {env=prod: 2}}", true,
			[]string{"team 5 → none", "tenant=* 1 → none"}, nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := manifest.ReadDeclaration("f", []byte(tc.file))
			if err != nil {
				t.Fatal(err)
			}
			plan := planLimits(is, *d.Limits, tc.prune)
			if diff := cmp.Diff([][]string{tc.changes, tc.others}, [][]string{plan.Changes, plan.Others}); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if (plan.Action == keeps) != (len(tc.changes) == 0) {
				t.Errorf("the action is %s", plan.Action)
			}
			if len(limitsChanges(is, run.Limits{MaxConcurrentRuns: plan.then.MaxConcurrentRuns, Tags: plan.then.Tags})) != len(tc.changes) {
				t.Errorf("then the limits are %+v", plan.then)
			}
		})
	}
}

// Whatever the file: it is refused with lines, or what it says can be exported
// and read again.
func FuzzDecodeDeclared(f *testing.F) {
	f.Add([]byte("pools:\n  a:\n    limit: 3\n    lease_duration: 5m\n    reserve_after: -1\n    paused: true\n"))
	f.Add([]byte("pools: {a: {limit: 1}, a: {limit: 2}}"))
	f.Add([]byte("pools: &x\n  a: *x"))
	f.Add([]byte("%YAML 1.2\n---\npools: !!map {? [a] : b}"))
	f.Add([]byte("limits:\n  max_concurrent_runs: -1\n  tags: {env=prod: 2, team: 5, tenant=*: 1, a: -1}\n"))
	f.Add([]byte(`{"limits": {"tags": {"a\u002fb=c\ud83d\ude00": 1}}, "pools": {}}`))
	f.Add([]byte("pools:\n  a: {limit: !!binary aGk=, Paused: ~}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := manifest.ReadDeclaration("f", data)
		if err != nil {
			var p *manifest.Problems
			if !errors.As(err, &p) || len(p.Lines) == 0 {
				t.Fatalf("error %v", err)
			}
			return
		}
		var pools []pool.Status
		for name, p := range d.Pools {
			spec := p.Spec
			spec.Paused = p.Paused != nil && *p.Paused
			pools = append(pools, pool.Status{Name: name, Spec: spec})
		}
		limits := planLimits(run.DefaultLimits(), orNone(d.Limits), true).then
		if err := limits.Validate(); err != nil {
			t.Fatal(err)
		}
		all, err := exportPools(pools)
		if err != nil {
			t.Fatal(err)
		}
		text, err := exportText(exported{Pools: all, Limits: exportLimits(limits)})
		if err != nil {
			t.Fatal(err)
		}
		again, err := manifest.ReadDeclaration("export", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for name, p := range d.Pools {
			if again.Pools[name].Spec != p.Spec {
				t.Errorf("%s is %+v, and %+v when it is read again", name, p.Spec, again.Pools[name].Spec)
			}
		}
		if plan := planLimits(limits, *again.Limits, true); plan.Action != keeps {
			t.Errorf("the limits are %+v, and an export of them changes %v", limits, plan.Changes)
		}
	})
}

func orNone(l *manifest.Limits) manifest.Limits {
	if l == nil {
		return manifest.Limits{}
	}
	return *l
}
