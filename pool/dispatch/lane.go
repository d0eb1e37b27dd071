package dispatch

import (
	"container/heap"
	"strconv"
)

// lane is demands of one owner that need the same, of which only the first can matter: if it does not fit, none of them
// does. So a plan costs as much as there are lanes, and not as there are demands.
type lane struct {
	name  string
	pools []*followed // that count it
	heap  demandHeap
}

// maxLanes is the most lanes of a pool: a plan for them takes 12 ms. Further demands share one, whatever they need, so that one which does
// not fit has those behind it wait. Without a bound, who may write demands of one pool could have all plans take seconds.
const maxLanes = 10_000

// demandHeap is demands, of which the first has the first rank.
type demandHeap struct {
	lane *lane
	all  []*demand
}

func (h *demandHeap) Len() int           { return len(h.all) }
func (h *demandHeap) Less(i, j int) bool { return h.all[i].compare(h.all[j]) < 0 }
func (h *demandHeap) Swap(i, j int) {
	h.all[i], h.all[j] = h.all[j], h.all[i]
	h.all[i].moved(h.lane, i)
	h.all[j].moved(h.lane, j)
}
func (h *demandHeap) Push(x any) {
	h.all = append(h.all, x.(*demand))
	x.(*demand).moved(h.lane, len(h.all)-1)
}
func (h *demandHeap) Pop() any {
	x := h.all[len(h.all)-1]
	x.moved(nil, 0)
	h.all = h.all[:len(h.all)-1]
	return x
}

// order is the demands that have no open offer.
type order struct {
	lanes map[string]*lane
	count counts[*followed] // lanes, by pool
}

// add adds a demand, unless it is there.
func (o *order) add(x *demand) {
	if x.lane != nil {
		return
	}
	name, full := x.laneName(), o.full(x)
	if o.lanes[name] == nil && full != nil {
		name = full.name
	}
	l := o.lanes[name]
	if l == nil {
		l = &lane{name: name}
		l.heap.lane = l
		for _, n := range x.needs {
			if full == nil {
				l.pools = append(l.pools, n.pool)
				o.count.add(n.pool, 1)
			}
		}
		o.lanes[name] = l
	}
	heap.Push(&l.heap, x)
}

// full returns a pool of a demand that has no lane left, nil if there is none.
func (o *order) full(x *demand) *followed {
	for _, n := range x.needs {
		if o.count[n.pool] >= maxLanes {
			return n.pool
		}
	}
	return nil
}

// remove removes a demand, if it is there.
func (o *order) remove(x *demand) {
	l := x.lane
	if l == nil {
		return
	}
	heap.Remove(&l.heap, x.pos)
	if l.heap.Len() == 0 {
		delete(o.lanes, l.name)
		for _, p := range l.pools {
			o.count.add(p, -1)
		}
	}
}

// laneName names the lane of a demand.
func (x *demand) laneName() string {
	name := x.owner.host + "/" + x.owner.name
	if x.reserve {
		name += "!"
	}
	for _, n := range x.needs {
		name += " " + n.pool.name + "=" + strconv.Itoa(n.n)
	}
	return name
}

// laneHeap is lanes, of which the first has the demand of the first rank.
type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].heap.all[0].compare(h[j].heap.all[0]) < 0 }
func (h laneHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *laneHeap) Push(x any)        { *h = append(*h, x.(*lane)) }
func (h *laneHeap) Pop() any {
	l := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return l
}

// heads returns all lanes as a heap.
func (o *order) heads() *laneHeap {
	h := make(laneHeap, 0, len(o.lanes))
	for _, l := range o.lanes {
		h = append(h, l)
	}
	heap.Init(&h)
	return &h
}
