package coordinator

import (
	"unique"

	"github.com/berthhq/berth/coordinator/run"
)

// tally is what runs in progress take of the limits, while a plan is made.
type tally struct {
	limits  run.Limits
	classes *classes
	runs    int    // in progress
	bounds  []room // by number
	met     []bound
}

// room is what a bound allows, and how much of it is taken.
type room struct{ used, limit int }

func (r room) reached() bool { return r.limit != run.Unlimited && r.used >= r.limit }

func newTally(l run.Limits, c *classes) *tally {
	t := &tally{limits: l, classes: c, bounds: make([]room, c.bounds.size())}
	for _, id := range c.bounds.ids {
		t.bounds[id].limit = t.limitOf(id).Limit
	}
	return t
}

// add counts a run in progress. What it takes of bounds that no queued run meets
// is of no interest.
func (t *tally) add(r *run.Run) {
	t.runs++
	t.met = t.classes.meet(t.met[:0], r.Tags)
	for _, b := range t.met {
		if id, ok := t.classes.bounds.ids[b]; ok {
			t.bounds[id].used++
		}
	}
}

// full tells whether no run at all may go.
func (t *tally) full() bool { return room{t.runs, t.limits.MaxConcurrentRuns}.reached() }

// blocking returns the first bound that holds the runs of a class up.
func (t *tally) blocking(class int32) (bound int32, ok bool) {
	for _, b := range t.classes.met[class] {
		if t.bounds[b].reached() {
			return b, true
		}
	}
	return 0, false
}

func (t *tally) limitOf(bound int32) *run.TagLimit {
	return &t.limits.Tags[t.classes.bounds.keys[bound].limit]
}

// admit returns those who may go, and counts them. Counts only grow meanwhile, so
// a class that is held up once is until the end.
func (t *tally) admit(q *Queue, g *gate) []*run.Run {
	var admitted []*run.Run
	held := make([]bool, t.classes.size())
	for _, part := range q.parts {
		for i := range part {
			if t.full() {
				return admitted
			}
			class := part[i].class
			if held[class] {
				continue
			}
			if _, held[class] = t.blocking(class); held[class] || !g.pass(&part[i]) {
				continue
			}
			t.runs++
			for _, b := range t.classes.met[class] {
				t.bounds[b].used++
			}
			admitted = append(admitted, part[i].run)
		}
	}
	return admitted
}

// noted is a reason that can be compared at the price of a pointer; zero is none.
type noted = unique.Handle[run.Block]

// blocks returns the first of those who are left and have another reason noted than
// holds them up now, or are held up by pools and that is not noted. The admitted are in
// the order of the queue.
func (t *tally) blocks(q *Queue, g *gate, admitted []*run.Run, most int) []Blocked {
	var blocked []Blocked
	fresh := g.fresh
	reason := t.reasons(g)
	for _, part := range q.parts {
		for i := range part {
			if len(blocked) >= most {
				return blocked
			}
			p := &part[i]
			if len(admitted) > 0 && admitted[0] == p.run {
				admitted = admitted[1:]
				continue
			}
			held := len(fresh) > 0 && fresh[0] == p.run
			if held {
				fresh = fresh[1:]
			}
			if why := reason(p); why != (noted{}) && (held || why != p.noted) {
				blocked = append(blocked, Blocked{p.run, why.Value(), held})
			}
		}
	}
	return blocked
}

// reasons returns what tells why a run is held up; zero if nobody knows. Each text is
// written once: classes share bounds, and runs share classes.
func (t *tally) reasons(g *gate) func(*place) noted {
	if t.full() {
		why := unique.Make(run.RunLimitBlock(t.runs, t.limits.MaxConcurrentRuns))
		return func(*place) noted { return why }
	}
	ofClass := make([]noted, t.classes.size())
	ofBound := make([]noted, len(t.bounds))
	return func(p *place) noted {
		class := p.class
		if ofClass[class] == (noted{}) {
			b, ok := t.blocking(class)
			if !ok {
				return g.note(p) // its runs were not admitted, and no limit has kept them
			}
			if ofBound[b] == (noted{}) {
				l := t.limitOf(b)
				value := l.Value
				if l.PerUniqueValue {
					value = t.classes.bounds.keys[b].value
				}
				ofBound[b] = unique.Make(run.TagLimitBlock(l.Key, value, t.bounds[b].used, l.Limit))
			}
			ofClass[class] = ofBound[b]
		}
		return ofClass[class]
	}
}
