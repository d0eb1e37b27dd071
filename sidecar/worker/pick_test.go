package worker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/store"
)

var pickKeys = store.NewKeys("/b/")

// queueOf is a queue with what is published in it: RUN, or RUN:POOL with a slot, or
// RUN!PRIORITY.
func queueOf(t interface{ Fatal(...any) }, name string, texts ...string) *queue {
	q := newQueue(pickKeys, name, access.Patterns{access.Everything})
	for i, text := range texts {
		text, priority := cutNumber(text)
		id, pool, _ := strings.Cut(text, ":")
		r := step.Ready{Run: id, Step: "m", Index: i, Priority: priority}
		if pool != "" {
			r.Pools = map[string]int{pool: 1}
		}
		order := step.OrderOf(priority, int64(id[0]), 0, i, id)
		if err := q.put(&mvccpb.KeyValue{Key: []byte(pickKeys.Ready(name) + order), Value: r.Encode(), ModRevision: int64(i + 1)}, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

func cutNumber(text string) (rest string, n int) {
	rest, number, ok := strings.Cut(text, "!")
	if ok {
		_, _ = fmt.Sscan(number, &n)
	}
	return rest, n
}

// asked is a choice of a worker that knows of all pools but those named none.
func asked(free int, queues ...*queue) choice {
	return choice{
		queues: queues, peers: newPeers(pickKeys, "h", Role, hclog.NewNullLogger()), free: free, help: newHelp(), waiters: map[string][]waiting{},
		skip: func(*offer) bool { return false },
		slots: func(c *requirement) map[string]int {
			if c.pools["none"] > 0 {
				return nil
			}
			return c.pools
		},
		rests: func(*requirement) bool { return false },
	}
}

// whatIsPicked tells what was picked: those without slots, then a |, then those with some.
func whatIsPicked(c choice) string {
	picked := pick(c)
	var all []string
	for _, p := range picked.plain {
		all = append(all, p.Run)
	}
	all = append(all, "|")
	for _, w := range picked.slotted {
		all = append(all, w.Run)
	}
	return strings.Join(all, " ")
}

func TestWhatAWorkerPicks(t *testing.T) {
	for name, c := range map[string]struct {
		choice choice
		want   string
	}{
		"no capacity":                       {asked(0, queueOf(t, "q", "a", "b:db")), "|"},
		"less than no capacity":             {asked(-1, queueOf(t, "q", "a")), "|"},
		"nothing there":                     {asked(3, queueOf(t, "q")), "|"},
		"as many as there is capacity for":  {asked(2, queueOf(t, "q", "a", "b", "c")), "a b |"},
		"the oldest run first":              {asked(2, queueOf(t, "q", "c", "b", "a")), "a b |"},
		"a higher priority first":           {asked(2, queueOf(t, "q", "a", "b!5", "c!9")), "c b |"},
		"of all queues in one order":        {asked(3, queueOf(t, "q", "a", "d"), queueOf(t, "p", "b", "c!1")), "c a b |"},
		"what needs slots besides":          {asked(3, queueOf(t, "q", "a:db", "b", "c")), "b c | a"},
		"a full pool holds up no other":     {asked(2, queueOf(t, "q", "a:db", "b:db", "c:db", "d:gpu", "e")), "e | a b d"},
		"not what comes behind the last":    {asked(2, queueOf(t, "q", "a", "b", "c:db")), "a b |"},
		"but what comes before it":          {asked(2, queueOf(t, "q", "a", "b:db", "c", "d")), "a c | b"},
		"a task without a limit is plain":   {asked(2, queueOf(t, "q", "a:none", "b:none", "c:none")), "a b |"},
		"of two pools each by itself":       {asked(1, queueOf(t, "q", "a:db", "b:gpu", "c:db")), "| a b"},
		"external ones are for an executor": {asked(2, external(t, queueOf(t, "q", "a"))), "a |"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := whatIsPicked(c.choice); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// external adds one that is for an executor over HTTP.
func external(t *testing.T, q *queue) *queue {
	r := step.Ready{Run: "x", Step: "m", External: true}
	if err := q.put(&mvccpb.KeyValue{Key: []byte(pickKeys.Ready(q.name) + "0"), Value: r.Encode(), ModRevision: 9}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	return q
}

func TestWhatAWorkerLeavesOut(t *testing.T) {
	c := asked(2, queueOf(t, "q", "a", "b", "c", "d:db", "e:gpu"))
	c.skip = func(p *offer) bool { return p.Run == "a" || p.Run == "d" }
	if got := whatIsPicked(c); got != "b c |" {
		t.Errorf("skipped ones: %q", got)
	}
	c = asked(3, queueOf(t, "q", "a", "b:db", "c:gpu"))
	c.rests = func(cl *requirement) bool { return cl.pools["db"] > 0 }
	if got := whatIsPicked(c); got != "a | c" {
		t.Errorf("a class that rests: %q", got)
	}
	c = asked(2, queueOf(t, "q", "a:db", "b:db", "c:db"))
	c.waiters = map[string][]waiting{"/db=1": {{}}} // one is in the wait queue already
	c.skip = func(p *offer) bool { return p.Run == "a" }
	if got := whatIsPicked(c); got != "| b" {
		t.Errorf("with one in the wait queue: %q", got)
	}
}

// A more urgent instance takes the place of a less urgent one in the wait queue.
func TestWhatIsMoreUrgentStandsInLineFirst(t *testing.T) {
	low, high := store.StepID{Run: "low"}, store.StepID{Run: "high"}
	line := []waiting{{id: low}, {id: high, priority: 5}}
	for name, c := range map[string]struct {
		queue []string
		free  int
		want  string
		yield []store.StepID
	}{
		"of one that is less so":          {[]string{"a:db!3", "b:db"}, 2, "| a", []store.StepID{low}},
		"of all that are less so":         {[]string{"a:db!9", "b:db!8", "c:db!7"}, 2, "| a b", []store.StepID{low, high}},
		"of none that is as urgent":       {[]string{"a:db"}, 2, "|", nil},
		"of none while there is capacity": {[]string{"a:db!9"}, 3, "| a", nil},
		"and in the free capacity":        {[]string{"a:db!9", "b:db!3", "c:db"}, 3, "| a b", []store.StepID{low}},
	} {
		t.Run(name, func(t *testing.T) {
			choice := asked(c.free, queueOf(t, "q", c.queue...))
			choice.waiters = map[string][]waiting{"/db=1": line}
			if got := whatIsPicked(choice); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if got := pick(choice).yields; !slices.Equal(got, c.yield) {
				t.Errorf("%v yield, want %v", got, c.yield)
			}
		})
	}
}

// Whatever is published, no worker picks more than it has capacity for, nothing twice and
// nothing that is to be skipped; a worker that is alone keeps the order.
func TestEveryPickKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var queues []*queue
		for q := range rapid.IntRange(1, 3).Draw(t, "queues") {
			var texts []string
			for range rapid.IntRange(0, 12).Draw(t, "published") {
				texts = append(texts, fmt.Sprintf("%c%s!%d", 'a'+rapid.IntRange(0, 5).Draw(t, "run"),
					rapid.SampledFrom([]string{"", "", ":db", ":gpu", ":none"}).Draw(t, "pool"), rapid.IntRange(-1, 1).Draw(t, "priority")))
			}
			queues = append(queues, queueOf(t, fmt.Sprint("q", q), texts...))
		}
		c := asked(rapid.IntRange(0, 5).Draw(t, "free"), queues...)
		gone := rapid.SampledFrom([]string{"", "a", "c"}).Draw(t, "gone")
		c.skip = func(p *offer) bool { return p.Run == gone }
		for range rapid.IntRange(0, 2).Draw(t, "waiters") {
			c.waiters["/db=1"] = append(c.waiters["/db=1"], waiting{priority: rapid.IntRange(-1, 1).Draw(t, "its priority")})
		}
		slices.SortFunc(c.waiters["/db=1"], func(a, b waiting) int { return cmp.Compare(a.priority, b.priority) })
		picked := pick(c)
		plain, slotted := picked.plain, picked.slotted
		if len(plain) > max(0, c.free) {
			t.Fatalf("%d for %d places", len(plain), c.free)
		}
		seen, perClass := map[*offer]bool{}, map[string]int{}
		for _, p := range plain {
			if seen[p] || c.skip(p) || p.Pools["db"]+p.Pools["gpu"] > 0 {
				t.Fatalf("%+v is not to be picked so", p)
			}
			seen[p] = true
		}
		for _, w := range slotted {
			perClass[w.Queue+w.requirement]++
			if seen[w.offer] || c.skip(w.offer) || len(w.slots) == 0 || perClass[w.Queue+w.requirement] > c.free {
				t.Fatalf("%+v is not to be picked so", w)
			}
			seen[w.offer] = true
		}
		// The wait queue has no more than there is capacity for, or than it had before.
		for _, q := range queues {
			stand := len(c.waiters["/db=1"])
			if n := stand + perClass[q.name+"/db=1"] - len(picked.yields); n > max(c.free, stand) && len(queues) == 1 {
				t.Fatalf("%d would be in the wait queue for %d places", n, c.free)
			}
		}
		// None that needs no slots is passed.
		var all []*offer
		for _, q := range queues {
			for _, cl := range q.requirements {
				if len(c.slots(cl)) == 0 {
					all = append(all, cl.all...)
				}
			}
		}
		all = slices.DeleteFunc(all, c.skip)
		slices.SortStableFunc(all, func(a, b *offer) int { return strings.Compare(a.Order, b.Order) })
		for i, p := range all[:min(len(all), max(0, c.free))] {
			if plain[i].Order != p.Order {
				t.Fatalf("place %d is %s, want %s", i, plain[i].Order, p.Order)
			}
		}
	})
}
