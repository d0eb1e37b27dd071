package ui

import (
	"context"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

const (
	// chipsShown is how many steps of a run the queue names.
	chipsShown = 6
	// chipReads is how many graphs are read at a time: one can be of half a megabyte.
	chipReads = 10
	// chipsKept bounds the runs whose steps are kept in memory.
	chipsKept = 2000
)

// stepChips is the steps of a run, as the queue shows them.
type stepChips struct {
	Steps []stepChip
	// More is how many are not named.
	More int
	// Wrong says why they can't be shown.
	Wrong string
}

// stepChip is one step.
type stepChip struct {
	Name  string
	Count int // of its instances
}

// submitted tells a run from one that had its id before.
type submitted struct {
	id      string
	created int64
}

func submittedOf(r *run.Run) submitted { return submitted{r.ID, r.Created} }

// chipNotes keeps the steps of runs for all who look. A run's steps never change, so each
// run's are read once.
type chipNotes struct {
	mu  sync.Mutex
	now map[submitted]stepChips
}

// look returns the steps of those of some runs that have any.
func (c *chipNotes) look(ctx context.Context, s run.Store, runs []*listed) (map[submitted]stepChips, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[submitted]stepChips{}
	var missing []*listed
	for _, l := range runs {
		if l.Steps == 0 {
			continue
		}
		if list, ok := c.now[submittedOf(l.Run)]; ok {
			found[submittedOf(l.Run)] = list
		} else {
			missing = append(missing, l)
		}
	}
	for some := range slices.Chunk(missing, chipReads) {
		if err := readChips(ctx, s, some, found); err != nil {
			return nil, err
		}
	}
	if c.now == nil || len(c.now) > chipsKept {
		c.now = map[submitted]stepChips{}
	}
	for _, l := range missing {
		c.now[submittedOf(l.Run)] = found[submittedOf(l.Run)]
	}
	return found, nil
}

func (c *chipNotes) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = nil
}

// readChips reads the steps of some runs.
func readChips(ctx context.Context, s run.Store, runs []*listed, into map[submitted]stepChips) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aroundTimeout)
	defer cancel()
	reads := make([]*pb.RequestOp, len(runs))
	for i, l := range runs {
		reads[i] = store.Get(s.Keys.Graph(l.ID))
	}
	resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: reads})
	if err != nil {
		return store.Problem("the steps of queued runs could not be read", err)
	}
	for i, l := range runs {
		kvs := resp.Responses[i].GetResponseRange().Kvs
		if len(kvs) == 0 {
			into[submittedOf(l.Run)] = stepChips{Wrong: "they are gone"}
			continue
		}
		into[submittedOf(l.Run)] = stepChipsOf(string(kvs[0].Key), kvs[0].Value)
	}
	return nil
}

// stepChipsOf returns the steps of a graph.
func stepChipsOf(key string, data []byte) stepChips {
	g, err := step.DecodeGraph(key, data)
	if err != nil {
		return stepChips{Wrong: err.Error()}
	}
	shapes := g.Shapes()
	var list stepChips
	for _, sh := range shapes[:min(len(shapes), chipsShown)] {
		list.Steps = append(list.Steps, stepChip{sh.Name, sh.Count})
	}
	list.More = len(shapes) - len(list.Steps)
	return list
}
