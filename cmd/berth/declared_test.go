package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func TestDecodeDeclared_ReadsPoolsWithTheirDefaults(t *testing.T) {
	d, err := decodeDeclared("f", []byte(`
pools:
  db:
    limit: 3
  gpu: {limit: -1, lease_duration: 1h30m, reserve_after: -1, paused: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	db, gpu := d.pools["db"], d.pools["gpu"]
	if want := (pool.Spec{Limit: 3, LeaseDuration: 5 * time.Minute, ReserveAfter: time.Minute}); db.spec != want || db.paused != nil {
		t.Errorf("db is %+v", db)
	}
	if want := (pool.Spec{Limit: -1, LeaseDuration: 90 * time.Minute, ReserveAfter: pool.NeverReserve}); gpu.spec != want || gpu.paused == nil || !*gpu.paused {
		t.Errorf("gpu is %+v", gpu)
	}
}

func TestDecodeDeclared_TellsAllThatIsWrongByLine(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", []string{"1: the file is empty: it needs pools"}},
		{"no mapping", "- a", []string{"1: the file must be a mapping"}},
		{"no pools", "{}", []string{"1: pools is missing"}},
		{"no YAML", "pools:\n  a: [\n", []string{"2: did not find expected node content"}},
		{"two documents", "pools: {}\n---\npools: {}", []string{"1: the file must be one YAML document"}},
		{"unknown key", "pools: {}\nlimits: {}", []string{`2: the file: there is no "limits", only pools`}},
		{"alias", "pools:\n  a: &x {limit: 1}\n  b: *x", []string{"3: pools.b: aliases are not allowed"}},
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
		}, "\n"), []string{
			`3: pools.a.limit can't be "three": it must be a number of slots, 0 (closed) or -1 (unlimited)`,
			`4: pools.a: there is no "lease", only limit, lease_duration, reserve_after, paused`,
			`5: pools.a.paused can't be "maybe": it must be true or false`,
			`6: "B" is no pool name: allowed are 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit`,
			"7: pools.c needs a limit",
			`10: pools.d: "limit" is given twice, first in line 9`,
			"11: pools.e.lease_duration: 1s is out of range: allowed are 5s to 24h0m0s",
			"14: pools.f.reserve_after must be a single value",
			`15: pools: "a" is given twice, first in line 2`,
			"16: pools.g must be a mapping",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := decodeDeclared("f", []byte(tc.text))
			var p *fileProblems
			if !errors.As(err, &p) || problem.CodeOf(err) != problem.Invalid {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(tc.want, p.lines); diff != "" {
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

func exportOf(t *rapid.T, pools []pool.Status) declared {
	out, err := exportPools(pools)
	if err != nil {
		t.Fatal(err)
	}
	text, err := exportText(out)
	if err != nil {
		t.Fatal(err)
	}
	d, err := decodeDeclared("export", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return d
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
	want := declared{pools: map[string]declaredPool{
		"kept": {spec: pool.Spec{Limit: 4, LeaseDuration: 5 * time.Minute, ReserveAfter: 0}},
		"new":  {spec: pool.Spec{Limit: 1, LeaseDuration: 5 * time.Minute, ReserveAfter: time.Minute}, paused: new(true)},
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

// Whatever the file: it is refused with lines, or what it says can be exported
// and read again.
func FuzzDecodeDeclared(f *testing.F) {
	f.Add([]byte("pools:\n  a:\n    limit: 3\n    lease_duration: 5m\n    reserve_after: -1\n    paused: true\n"))
	f.Add([]byte("pools: {a: {limit: 1}, a: {limit: 2}}"))
	f.Add([]byte("pools: &x\n  a: *x"))
	f.Add([]byte("%YAML 1.2\n---\npools: !!map {? [a] : b}"))
	f.Add([]byte("pools:\n  a: {limit: !!binary aGk=, paused: ~}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := decodeDeclared("f", data)
		if err != nil {
			var p *fileProblems
			if !errors.As(err, &p) || len(p.lines) == 0 {
				t.Fatalf("error %v", err)
			}
			return
		}
		var pools []pool.Status
		for name, p := range d.pools {
			spec := p.spec
			spec.Paused = p.paused != nil && *p.paused
			pools = append(pools, pool.Status{Name: name, Spec: spec})
		}
		out, err := exportPools(pools)
		if err != nil {
			t.Fatal(err)
		}
		text, err := exportText(out)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeDeclared("export", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for name, p := range d.pools {
			if again.pools[name].spec != p.spec {
				t.Errorf("%s is %+v, and %+v when it is read again", name, p.spec, again.pools[name].spec)
			}
		}
	})
}
