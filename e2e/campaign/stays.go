//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// record is one line of what a job, or a load, reports. Times are nanoseconds of the
// boot clock, which all processes of a machine share.
type record struct {
	At    int64          `json:"at"`
	What  string         `json:"what"` // begin, beat, end, idle, hello, wrong, note, turn, sent
	Job   string         `json:"job,omitempty"`
	Host  string         `json:"host,omitempty"`
	Via   string         `json:"via,omitempty"` // go, http, tcp, exec, direct, step, neighbor, an attack
	PID   int            `json:"pid,omitempty"`
	PPID  int            `json:"ppid,omitempty"`
	Fence store.Fence    `json:"fence,omitempty"`
	Slots map[string]int `json:"slots,omitempty"`
	// Asked is before the slots can have been granted.
	Asked int64 `json:"asked,omitempty"`
	// Item is the step instance that the job runs, RUN/STEP/INDEX.
	Item string `json:"item,omitempty"`
	Text string `json:"text,omitempty"`
	// Answers counts those to an attack.
	Answers map[string]int `json:"answers,omitempty"`
}

// keepStays is for how long a stay is compared with later ones: reports of a process that
// stood still come late.
const keepStays = int64(40 * time.Second)

// stay is the time in which a job was certainly active: it read the clock, and its claim
// was valid after that.
type stay struct {
	record
	from, to int64
	ended    bool
	excused  excuse
	reported bool // as one of too many, or as one that was active for too long
}

// excuse says why others may have the slots of a job: docs/explanation/guarantees.md does not promise
// what it does from then on.
type excuse int

const (
	notExcused excuse = iota
	undone            // a restore has undone its grant
	freed             // its slots were freed before it could know
)

// lostClaims are the fencing tokens that a restore has undone: above revision after, up to until.
type lostClaims struct {
	after, until int64
	// ended is when the cluster that had granted them ended, if another one replaced it; 0 if the
	// restored cluster has the same id.
	ended int64
}

func (l lostClaims) has(rev int64) bool { return l.after < rev && rev <= l.until }

// limitChange is the most slots of a pool that may be granted from then on.
type limitChange struct {
	at int64
	n  int
}

// stays judges whether more jobs are active than a limit allows, from nothing but what
// they report. It does no I/O.
type stays struct {
	open   map[string]*stay
	pools  map[string][]*stay // open ones, and those that have ended lately
	limits map[string][]limitChange
	newest int64
	lost   []lostClaims
	// early: etcd may end leases before their time now. It may have done so with those of jobs
	// that were granted their slots up to revision ended.
	early bool
	ended int64
	wrong func(rule, text string)
	begun map[string]int // by the way that they were started
}

func newStays(wrong func(rule, text string)) *stays {
	return &stays{
		open: map[string]*stay{}, pools: map[string][]*stay{}, limits: map[string][]limitChange{},
		begun: map[string]int{}, wrong: wrong,
	}
}

// limit says how many slots of a pool may be granted from a time on.
func (s *stays) limit(pool string, at int64, n int) {
	s.limits[pool] = append(s.limits[pool], limitChange{at, n})
}

// allowed returns the highest limit in force between two times; ok is false if none is known.
func (s *stays) allowed(pool string, since, until int64) (most int, ok bool) {
	if strings.Contains(pool, "/") {
		return 1, true // a step instance
	}
	for _, l := range s.limits[pool] {
		switch {
		case l.at > until:
		case l.at <= since:
			most, ok = l.n, true
		default:
			most, ok = max(most, l.n), true
		}
	}
	return most, ok
}

// take judges a record.
func (s *stays) take(r record) {
	s.newest = max(s.newest, r.At)
	x := s.open[r.Job]
	switch {
	case r.What == "begin" && x != nil:
		s.wrong("begin", fmt.Sprintf("job %s begins twice", r.Job))
	case r.What == "begin":
		s.begin(r)
	case x == nil: // it was forgotten
	case r.What == "end":
		x.to, x.ended = max(x.to, r.At), true
		delete(s.open, r.Job)
		s.judge(x)
	default:
		x.to = max(x.to, r.At)
		s.judge(x)
	}
	if x == nil {
		x = s.open[r.Job]
	}
	if x != nil {
		s.outlives(x)
	}
}

// outlives reports a job that is active for longer than its lease after the cluster that granted its
// claim has ended: nothing renews the lease since, whatever the cluster that replaced it has.
func (s *stays) outlives(x *stay) {
	if x.excused == freed || x.reported {
		return
	}
	for _, l := range s.lost {
		if l.ended == 0 || x.Fence.Revision() > l.until {
			continue
		}
		lease := leaseOf(x.Slots)
		if over := x.to - l.ended; over > int64(lease) {
			x.reported = true
			s.wrong("restored", fmt.Sprintf("job %s (%s, fencing token %d) was active %s after the cluster that granted its claim had ended, with a lease of %s",
				x.Job, x.Via, x.Fence, time.Duration(over).Round(time.Millisecond), lease))
			return
		}
	}
}

// leaseOf is the lease of a claim: the shortest of its pools.
func leaseOf(slots map[string]int) (lease time.Duration) {
	for pool := range slots {
		if d := specs[pool].lease; d > 0 && (lease == 0 || d < lease) {
			lease = d
		}
	}
	return lease
}

func (s *stays) begin(r record) {
	x := &stay{record: r, from: r.At, to: r.At}
	x.Slots = map[string]int{}
	for pool, n := range r.Slots {
		x.Slots[pool] = n
	}
	if r.Item != "" {
		x.Slots[r.Item] = 1
	}
	switch {
	case s.early, r.Fence.Revision() <= s.ended:
		x.excused = freed
	case s.undone(r.Fence):
		x.excused = undone
	}
	s.open[r.Job] = x
	s.begun[r.Via]++
	for pool := range x.Slots {
		s.fence(pool, x)
		s.pools[pool] = append(slices.DeleteFunc(s.pools[pool], s.old), x)
	}
	s.judge(x)
	if total := len(s.pools); total > 1000 {
		for pool, all := range s.pools {
			if all = slices.DeleteFunc(all, s.old); len(all) == 0 {
				delete(s.pools, pool)
			} else {
				s.pools[pool] = all
			}
		}
	}
}

func (s *stays) old(x *stay) bool { return x.ended && x.to < s.newest-keepStays }

// fence compares the token of a job with those of jobs that were active before it, where
// all have the same slot.
func (s *stays) fence(pool string, x *stay) {
	for _, l := range s.limits[pool] {
		if l.n != 1 {
			return
		}
	}
	if _, ok := s.allowed(pool, 0, x.from); !ok || x.excused != notExcused {
		return
	}
	for _, y := range s.pools[pool] {
		if y.to < x.from && y.Fence >= x.Fence && y.excused == notExcused {
			s.wrong("fence", fmt.Sprintf("job %s has fencing token %d of %s after job %s with %d", x.Job, x.Fence, pool, y.Job, y.Fence))
		}
	}
}

// judge compares a stay with those that it meets.
func (s *stays) judge(x *stay) {
	if x.excused != notExcused || x.reported {
		return
	}
	for pool := range x.Slots {
		var met []*stay
		for _, y := range s.pools[pool] {
			if y.excused == notExcused && y.from <= x.to && x.from <= y.to {
				met = append(met, y)
			}
		}
		for _, at := range met {
			if s.crowded(pool, max(at.from, x.from), met) {
				return
			}
		}
	}
}

// crowded reports more slots than allowed at one moment.
func (s *stays) crowded(pool string, at int64, met []*stay) bool {
	used, since := 0, at
	var there []*stay
	var names []string
	for _, y := range met {
		if y.from <= at && at <= y.to {
			there = append(there, y)
			used += y.Slots[pool]
			since = min(since, y.Asked)
			names = append(names, fmt.Sprintf("%s (%s, %d of it, fencing token %d, %s to %s)",
				y.Job, y.Via, y.Slots[pool], y.Fence, sinceText(at, y.from), sinceText(at, y.to)))
		}
	}
	most, ok := s.allowed(pool, since, at)
	if !ok || most < 0 || used <= most {
		return false
	}
	for _, y := range there {
		y.reported = true
	}
	s.wrong("overlap", fmt.Sprintf("%d slots of %s are used at once, and %d are allowed: %s", used, pool, most, strings.Join(names, ", ")))
	return true
}

func sinceText(at, t int64) string {
	return time.Duration(t - at).Round(100 * time.Microsecond).String()
}

// excuse leaves a job out: what it does from now on breaks no promise.
func (s *stays) excuse(job string) {
	if x := s.open[job]; x != nil {
		x.excused = freed
	}
}

// restored records that etcd has forgotten what happened after a revision, and counts on
// from another one. Who got slots between is active without holding them.
func (s *stays) restored(after, until int64) {
	s.lost = append(s.lost, lostClaims{after: after, until: until})
	for _, x := range s.open {
		if x.excused == notExcused && s.undone(x.Fence) {
			x.excused = undone
		}
	}
}

// replaced records that the cluster of the last restore has another id than the one before, which
// ended at a time.
func (s *stays) replaced(at int64) { s.lost[len(s.lost)-1].ended = at }

// wasReplaced reports whether the cluster of the last restore has another id than the one before.
func (s *stays) wasReplaced() bool { return s.lost[len(s.lost)-1].ended != 0 }

// endEarly records that etcd may end leases before their time from now on.
func (s *stays) endEarly() {
	s.early = true
	for _, x := range s.open {
		x.excused = freed
	}
}

// endOnTime records that etcd no longer ends leases before their time, and has done so with no
// job that was granted its slots after a revision.
func (s *stays) endOnTime(rev int64) { s.early, s.ended = false, rev }

func (s *stays) undone(fence store.Fence) bool {
	rev := fence.Revision()
	return slices.ContainsFunc(s.lost, func(l lostClaims) bool { return l.has(rev) })
}

// find returns the open stays that are as wanted, in the order of their jobs.
func (s *stays) find(wanted func(*stay) bool) []*stay {
	var all []*stay
	for _, x := range s.open {
		if wanted(x) {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b *stay) int { return strings.Compare(a.Job, b.Job) })
	return all
}

// gone ends the stays of a process that has died, without a word.
func (s *stays) gone(pid int) {
	for _, x := range s.find(func(x *stay) bool { return x.PID == pid }) {
		x.ended = true
		delete(s.open, x.Job)
	}
}
