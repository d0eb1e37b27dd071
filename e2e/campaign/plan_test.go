//go:build linux

package main

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func everything(trait) bool { return true }

func TestAPlanIsAFunctionOfItsSeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, n := rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 40).Draw(t, "phases")
		long := plan(seed, n, 4, 3, everything)
		short := plan(seed, (n+1)/2, 4, 3, everything)
		for i := range short {
			if !slices.Equal(short[i], long[i]) {
				t.Fatalf("phase %d depends on how many there are: %v, %v", i, short[i], long[i])
			}
		}
	})
}

func TestAPhaseHasOnlyFaultsThatGoTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		permitted := func(t trait) bool { return t.needs != mounts }
		for i, p := range plan(rapid.Uint64().Draw(t, "seed"), 20, 4, 3, permitted) {
			want := perPhase
			if slices.ContainsFunc(p, func(f fault) bool { return f.Kind.trait().class == aloneClass }) {
				want = 1
			}
			if len(p) != want {
				t.Fatalf("phase %d has %d faults: %+v", i, len(p), p)
			}
			ofEtcd := 0
			for _, f := range p {
				trait := f.Kind.trait()
				if trait.class == etcdClass {
					ofEtcd++
				}
				if f.At < 0 || f.At >= within || f.For < trait.least || f.For > trait.most || f.At+f.For > usualPhase {
					t.Fatalf("phase %d: %+v comes at a wrong time", i, f)
				}
				if !permitted(trait) || f.Host < 0 || f.Host >= 4 || f.Member < 0 || f.Member >= 3 {
					t.Fatalf("phase %d: %+v is not possible", i, f)
				}
				if f.Kind == lostServer && f.Host != f.Member {
					t.Fatalf("phase %d: the host of a lost server is another's: %+v", i, f)
				}
				for _, g := range p {
					if f.Kind == lostServer && g.Kind.trait().class == hostClass && (f.Host == g.Host || g.Kind.ofDispatcher()) {
						t.Fatalf("phase %d: a lost server has another fault: %+v, %+v", i, f, g)
					}
					if f.Kind == "freeze-exec" && g.Kind.trait().sidecar && (f.Host == g.Host || g.Kind.ofDispatcher()) {
						t.Fatalf("phase %d: no process watches the command of a frozen exec: %+v, %+v", i, f, g)
					}
				}
			}
			if ofEtcd > 1 {
				t.Fatalf("phase %d has %d faults of etcd: %+v", i, ofEtcd, p)
			}
		}
	})
}

func TestHalfAnHourHasAllKindsSeveralTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts, sum := map[kind]int{}, 0
		phases := int(30 * time.Minute / (2 * usualPhase)) // if each takes as long again to be served
		for _, p := range plan(rapid.Uint64().Draw(t, "seed"), phases, 4, 3, everything) {
			for _, f := range p {
				counts[f.Kind]++
				sum++
			}
		}
		if sum < 100 || len(counts) != len(traits) {
			t.Fatalf("%d faults of %d of %d kinds", sum, len(counts), len(traits))
		}
		for k, n := range counts {
			if n < 2 {
				t.Fatalf("%s comes %d times", k, n)
			}
		}
	})
}

func TestAPlanOfFewKindsHasThoseThatGoTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SliceOfN(rapid.SampledFrom(traits), 1, 4).Draw(t, "kinds")
		among := func(x trait) bool { return slices.Contains(kinds, x) }
		for i, p := range plan(rapid.Uint64().Draw(t, "seed"), 5, 4, 3, among) {
			if len(p) == 0 || len(p) > len(kinds) || slices.ContainsFunc(p, func(f fault) bool { return !among(f.Kind.trait()) }) {
				t.Fatalf("phase %d of %v has %+v", i, kinds, p)
			}
		}
	})
}
