package ui

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// runSet is all runs, in the orders in which pages show them. What it hands out is
// never changed: a newer record takes the place of an older one.
type runSet struct {
	keys   store.Keys
	byID   map[string]*listed
	queue  ordered // the queued ones, in the order of the queue
	newest ordered // all, the last submitted first
	counts map[run.Status]int
	// progress are the runs that count against limits.
	progress map[string]*run.Run
	// bad are keys that can't be read, with the reason. Of those that seem to be in
	// progress nevertheless, there is what counts in progress, as for the coordinator.
	bad map[string]error
}

// listed is a run with what it is found by.
type listed struct {
	*run.Run
	lowID, lowName string // in small letters
}

func newRunSet(keys store.Keys) *runSet {
	return &runSet{
		keys: keys, byID: map[string]*listed{}, counts: map[run.Status]int{},
		queue: ordered{compare: (*run.Run).Compare}, newest: ordered{compare: lastFirst},
		progress: map[string]*run.Run{}, bad: map[string]error{},
	}
}

// lastFirst is the order in which runs were submitted, the last first. Runs that came
// with one write are in the order of their ids.
func lastFirst(a, b *run.Run) int {
	return cmp.Or(cmp.Compare(b.Created, a.Created), cmp.Compare(a.ID, b.ID))
}

// runSetOf returns the runs of a snapshot.
func runSetOf(keys store.Keys, kvs []*mvccpb.KeyValue) *runSet {
	s := newRunSet(keys)
	s.byID = make(map[string]*listed, len(kvs))
	s.newest.all = make([]*listed, 0, len(kvs))
	for _, kv := range kvs {
		r, err := run.Decode(keys, kv)
		if err != nil {
			s.spoil(kv, err)
			continue
		}
		l := listedOf(r)
		s.keep(l)
		s.newest.all = append(s.newest.all, l)
		if r.Status == run.Queued {
			s.queue.all = append(s.queue.all, l)
		}
	}
	s.newest.sort()
	s.queue.sort()
	return s
}

func listedOf(r *run.Run) *listed {
	return &listed{r, strings.ToLower(r.ID), strings.ToLower(r.Name)}
}

// apply takes what has happened to a key.
func (s *runSet) apply(ev *mvccpb.Event) {
	key := string(ev.Kv.Key)
	id := strings.TrimPrefix(key, s.keys.Runs())
	delete(s.bad, key)
	if ev.Type == mvccpb.Event_DELETE {
		s.remove(id)
		return
	}
	r, err := run.Decode(s.keys, ev.Kv)
	s.remove(id)
	if err != nil {
		s.spoil(ev.Kv, err)
		return
	}
	l := listedOf(r)
	s.keep(l)
	s.newest.insert(l)
	if r.Status == run.Queued {
		s.queue.insert(l)
	}
}

// keep takes a run in, but for the orders.
func (s *runSet) keep(l *listed) {
	s.byID[l.ID] = l
	s.counts[l.Status]++
	if l.Status.InProgress() {
		s.progress[l.ID] = l.Run
	}
}

func (s *runSet) remove(id string) {
	delete(s.progress, id)
	old := s.byID[id]
	if old == nil {
		return
	}
	delete(s.byID, id)
	s.counts[old.Status]--
	s.newest.remove(old)
	if old.Status == run.Queued {
		s.queue.remove(old)
	}
}

// spoil notes a record that can't be read.
func (s *runSet) spoil(kv *mvccpb.KeyValue, err error) {
	key := string(kv.Key)
	s.bad[key] = err
	if tags, ok := run.Glimpse(kv.Value); ok {
		id := strings.TrimPrefix(key, s.keys.Runs())
		s.progress[id] = &run.Run{ID: id, Record: run.Record{Status: run.Running, Spec: run.Spec{Tags: tags}}}
	}
}

// unreadable are the records that can't be read.
type unreadableRuns struct {
	Count int
	// Some are the first by key, with the reason.
	Some []string
}

// maxUnreadable bounds the records that are named as unreadable.
const maxUnreadable = 10

func (s *runSet) unreadable() unreadableRuns {
	u := unreadableRuns{Count: len(s.bad)}
	if u.Count == 0 {
		return u
	}
	keys := slices.Sorted(maps.Keys(s.bad))
	for _, key := range keys[:min(len(keys), maxUnreadable)] {
		u.Some = append(u.Some, s.bad[key].Error())
	}
	return u
}

// More is how many are not named.
func (u unreadableRuns) More() int { return u.Count - len(u.Some) }

// ordered is a list that is kept in an order, in which no two runs are equal.
type ordered struct {
	all     []*listed
	compare func(a, b *run.Run) int
}

func (o *ordered) sort() {
	slices.SortFunc(o.all, func(a, b *listed) int { return o.compare(a.Run, b.Run) })
}

// find returns where a run is, or where it belongs.
func (o *ordered) find(r *run.Run) (at int, found bool) {
	return slices.BinarySearchFunc(o.all, r, func(l *listed, r *run.Run) int { return o.compare(l.Run, r) })
}

func (o *ordered) insert(l *listed) {
	at, _ := o.find(l.Run)
	o.all = slices.Insert(o.all, at, l)
}

func (o *ordered) remove(l *listed) {
	if at, found := o.find(l.Run); found {
		o.all = slices.Delete(o.all, at, at+1)
	}
}
