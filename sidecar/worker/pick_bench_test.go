package worker

import (
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
)

// What a worker takes of a million instances that are published, if none has a limit, one
// task of a hundred has, or all have; with a thousand for comparison. What it costs must
// not go with how many there are.
func BenchmarkPickOf(b *testing.B) {
	const free, limit, tasks = 10, 10, 100
	for _, n := range []int{1000, 1_000_000} {
		q := newQueue(pickKeys, "q", access.Patterns{access.Everything})
		for i := range n {
			r := step.Ready{Run: fmt.Sprint("run-", i/step.MaxItems), Step: "m", Index: i % step.MaxItems, Task: fmt.Sprint("t", i%tasks)}
			key := pickKeys.Ready("q") + step.OrderOf(0, int64(1+i/step.MaxItems), 0, r.Index, r.Run)
			if err := q.put(&mvccpb.KeyValue{Key: []byte(key), Value: r.Encode(), ModRevision: int64(i + 1)}, time.Unix(1, 0)); err != nil {
				b.Fatal(err)
			}
		}
		peers := crowd("h0", "h1", "h2", "h3")
		for _, tc := range []struct {
			name           string
			limited        func(task string) bool
			plain, slotted int
		}{
			{"no limit", func(string) bool { return false }, free, 0},
			{"one task limited", func(task string) bool { return task == "t7" }, free, 0},
			{"all tasks limited", func(string) bool { return true }, 0, free * tasks},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, tc.name), func(b *testing.B) {
				c := choice{
					now: time.Unix(2, 0), turn: shortTurn, queues: []*queue{q}, peers: peers, capacity: free, free: free, help: newHelp(),
					waiters: map[string][]waiting{}, skip: func(*offer) bool { return false },
					slots: func(cl *requirement) map[string]int {
						if tc.limited(cl.task) {
							return map[string]int{step.TaskPool(cl.task): 1}
						}
						return nil
					},
					rests: func(*requirement) bool { return false },
				}
				b.ReportAllocs()
				for b.Loop() {
					p := pick(c)
					if len(p.plain) != tc.plain || len(p.slotted) > tc.slotted || tc.slotted > 0 && len(p.slotted) == 0 {
						b.Fatalf("%d without slots and %d with some", len(p.plain), len(p.slotted))
					}
				}
			})
		}
	}
}
