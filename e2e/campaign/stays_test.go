//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// began is a job that begins, with one slot of a pool unless it says otherwise.
func began(at int64, job, pool string, rev int64) record {
	return record{At: at, What: "begin", Job: job, Via: "go", Fence: store.FenceAt(rev), Slots: map[string]int{pool: 1}, Asked: at - 1}
}

func beats(at int64, job string) record { return record{At: at, What: "beat", Job: job} }
func ends(at int64, job string) record  { return record{At: at, What: "end", Job: job} }

func TestJobsAreJudgedByWhatTheyReport(t *testing.T) {
	two := func(s *stays) { s.limit("db", 0, 2) }
	one := func(s *stays) { s.limit("db", 0, 1) }
	for name, c := range map[string]struct {
		limits  func(*stays)
		records []record
		want    []string // the rules that are broken, in order
	}{
		"as many as the limit": {two, []record{
			began(10, "a", "db", 1), began(20, "b", "db", 2), ends(30, "a"), began(40, "c", "db", 3), ends(50, "b"), ends(60, "c"),
		}, nil},
		"one too many": {two, []record{
			began(10, "a", "db", 1), began(20, "b", "db", 2), began(30, "c", "db", 3), ends(40, "a"), ends(50, "b"), ends(60, "c"),
		}, []string{"overlap"}},
		"one too many, with beats": {two, []record{
			began(10, "a", "db", 1), began(20, "b", "db", 2), began(30, "c", "db", 3), beats(35, "a"), beats(36, "b"),
			beats(37, "c"), ends(40, "a"), ends(50, "b"), ends(60, "c"),
		}, []string{"overlap"}},
		"reports that come late": {one, []record{
			began(10, "a", "db", 1), began(30, "b", "db", 2), ends(40, "b"), ends(35, "a"),
		}, []string{"overlap"}},
		"reports that come late, of what was in time": {one, []record{
			began(10, "a", "db", 1), began(30, "b", "db", 2), ends(40, "b"), ends(25, "a"),
		}, nil},
		"who died is not there any longer": {one, []record{
			began(10, "a", "db", 1), beats(20, "a"), began(30, "b", "db", 2), beats(40, "b"), ends(50, "b"),
		}, nil},
		"a fencing token that does not grow": {one, []record{
			began(10, "a", "db", 7), ends(20, "a"), began(30, "b", "db", 7), ends(40, "b"),
		}, []string{"fence"}},
		"tokens of different slots are not compared": {two, []record{
			began(10, "a", "db", 7), ends(20, "a"), began(30, "b", "db", 6), ends(40, "b"),
		}, nil},
		"a lower limit stops no job": {
			func(s *stays) { two(s); s.limit("db", 25, 1) },
			[]record{began(10, "a", "db", 1), began(20, "b", "db", 2), beats(50, "a"), beats(50, "b"), ends(60, "a"), ends(60, "b")},
			nil,
		},
		"a lower limit counts for who comes after": {
			func(s *stays) { two(s); s.limit("db", 5, 1) },
			[]record{began(10, "a", "db", 1), began(20, "b", "db", 2), ends(30, "a"), ends(30, "b")},
			[]string{"overlap"},
		},
		"two attempts of one step instance": {two, []record{
			{At: 10, What: "begin", Job: "r/s/0#5", Item: "r/s/0", Fence: store.FenceAt(5)}, {At: 20, What: "begin", Job: "r/s/0#9", Item: "r/s/0", Fence: store.FenceAt(9)},
			ends(30, "r/s/0#5"), ends(40, "r/s/0#9"),
		}, []string{"overlap"}},
		"one that begins twice": {two, []record{began(10, "a", "db", 1), began(20, "a", "db", 1)}, []string{"begin"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			s := newStays(func(rule, text string) { t.Log(text); got = append(got, rule) })
			c.limits(s)
			for _, r := range c.records {
				s.take(r)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("found %v, want %v", got, c.want)
			}
		})
	}
}

func TestWhatIsNotPromisedIsExcused(t *testing.T) {
	for name, excuse := range map[string]func(*stays){
		"a claim that was revoked by force":            func(s *stays) { s.excuse("a") },
		"a claim that a restore of etcd has forgotten": func(s *stays) { s.restored(4, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStays(func(rule, text string) { t.Errorf("%s: %s", rule, text) })
			s.limit("db", 0, 1)
			s.take(began(10, "a", "db", 5))
			excuse(s)
			s.take(began(20, "b", "db", 11))
			s.take(ends(30, "a"))
			s.take(ends(40, "b"))
		})
	}
	t.Run("a claim from before the snapshot is not", func(t *testing.T) {
		var got []string
		s := newStays(func(_, text string) { got = append(got, text) })
		s.limit("db", 0, 1)
		s.take(began(10, "a", "db", 4))
		s.restored(4, 10)
		s.take(began(20, "b", "db", 11))
		s.take(ends(30, "a"))
		s.take(ends(40, "b"))
		if len(got) != 1 || !strings.Contains(got[0], "2 slots of db") {
			t.Errorf("found %q", got)
		}
	})
}

func TestAClaimOutlivesItsClusterByNoMoreThanItsLease(t *testing.T) {
	const lease = int64(10 * time.Second) // of the pool kept
	restore := func(newID bool) func(*stays) {
		return func(s *stays) {
			s.restored(4, 10)
			if newID {
				s.replaced(1000)
			}
		}
	}
	began := func(at int64, job string, rev int64) record { return began(at, job, keptPool, rev) }
	for name, c := range map[string]struct {
		newID         bool
		before, after []record
		want          []string
	}{
		"made after the snapshot, and stopped in time": {true,
			[]record{began(10, "a", 5)}, []record{beats(900, "a"), beats(lease, "a"), ends(1000+lease, "a")}, nil},
		"made after the snapshot, and renewed in the restored cluster": {true,
			[]record{began(10, "a", 5)}, []record{beats(lease, "a"), beats(1001+lease, "a"), beats(2000+lease, "a"), ends(3000+lease, "a")}, []string{"restored"}},
		"reported late": {true,
			nil, []record{began(1001+lease, "a", 5), ends(1002+lease, "a")}, []string{"restored"}},
		"others may have its slots within its lease": {true,
			[]record{began(10, "a", 5)}, []record{began(2000, "b", 11), beats(lease, "a"), ends(lease, "a"), ends(2*lease, "b")}, nil},
		"made before the snapshot, and stopped in time": {true,
			[]record{began(10, "a", 4)}, []record{beats(lease, "a"), ends(1000+lease, "a")}, nil},
		"made before the snapshot, and renewed in the restored cluster": {true,
			[]record{began(10, "a", 4)}, []record{beats(2000+lease, "a"), ends(3000+lease, "a")}, []string{"restored"}},
		"of an earlier cluster": {true,
			nil, []record{began(2000+lease, "a", 1), ends(3000+lease, "a")}, []string{"restored"}},
		"made before the snapshot, and held twice": {true,
			[]record{began(10, "a", 4)}, []record{began(2000, "b", 11), beats(3000, "a"), ends(4000, "a"), ends(4000, "b")}, []string{"overlap"}},
		"made after the restore": {true,
			nil, []record{began(2000, "a", 11), beats(3*lease, "a"), ends(4*lease, "a")}, nil},
		"the cluster has the id that it had": {false,
			[]record{began(10, "a", 5)}, []record{beats(3*lease, "a"), ends(4*lease, "a")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			s := newStays(func(rule, text string) { t.Log(text); got = append(got, rule) })
			s.limit(keptPool, 0, 1)
			for _, r := range c.before {
				s.take(r)
			}
			restore(c.newID)(s)
			for _, r := range c.after {
				s.take(r)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
	t.Run("a claim that was revoked by force is not judged", func(t *testing.T) {
		s := newStays(func(rule, text string) { t.Errorf("%s: %s", rule, text) })
		s.take(began(10, "a", 5))
		s.excuse("a")
		restore(true)(s)
		s.take(ends(3*lease, "a"))
	})
}

// While etcd may end leases before their time, no job is blamed for those that follow it.
func TestJobsWhoseLeasesMayEndEarlyAreExcused(t *testing.T) {
	var wrong []string
	s := newStays(func(rule, text string) { wrong = append(wrong, rule+": "+text) })
	s.limit("one", 0, 1)
	s.take(began(10, "before", "one", 1))
	s.endEarly()
	s.take(began(20, "during", "one", 2))
	s.take(beats(25, "before"))
	s.endOnTime(3)
	s.take(began(30, "reported late", "one", 3))
	s.take(beats(35, "during"))
	if len(wrong) > 0 {
		t.Errorf("found %q", wrong)
	}
	s.take(began(40, "after", "one", 4))
	s.take(began(50, "another", "one", 5))
	s.take(beats(55, "after"))
	if len(wrong) != 1 {
		t.Errorf("found %q, want the overlap of the last two", wrong)
	}
}
