package dispatch

import (
	"container/heap"
	"strconv"

	"github.com/berthhq/berth/pool/admit"
)

// lane is demands of one owner that need the same, of which only the first can matter: if it does not fit, none of them
// does. So a plan costs as much as there are lanes, and not as there are demands.
type lane struct {
	name   string
	owner  *owner
	waiter admit.Waiter
	heap   demandHeap
}

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
}

// add adds a demand, unless it is there.
func (o *order) add(x *demand) {
	if x.lane != nil {
		return
	}
	name := x.laneName()
	l := o.lanes[name]
	if l == nil {
		l = &lane{name: name, owner: x.owner, waiter: admit.Waiter{Reserve: x.reserve}}
		for _, n := range x.needs {
			l.waiter.Needs = append(l.waiter.Needs, admit.Need{Pool: n.pool.index, N: n.n})
		}
		l.heap.lane = l
		o.lanes[name] = l
	}
	heap.Push(&l.heap, x)
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
