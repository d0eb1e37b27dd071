package coordinator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

// counts reports whether a run counts against a limit, and as which value of the tag
// if each has a limit of its own.
func counts(l run.TagLimit, r *run.Run) (value string, ok bool) {
	v, has := r.Tags[l.Key]
	switch {
	case !has || l.Limit == run.Unlimited:
		return "", false
	case l.PerUniqueValue:
		return v, true
	}
	return "", l.Value == "" || l.Value == v
}

// usedOf counts those who count as a run would.
func usedOf(l run.TagLimit, r *run.Run, going []*run.Run) int {
	value, n := "", 0
	value, _ = counts(l, r)
	for _, o := range going {
		if v, ok := counts(l, o); ok && v == value {
			n++
		}
	}
	return n
}

// holdup is why a run can't go while others do; nil if it may. It is what the
// rules say, and slow.
func holdup(l run.Limits, going []*run.Run, r *run.Run) *run.Block {
	if l.MaxConcurrentRuns != run.Unlimited && len(going) >= l.MaxConcurrentRuns {
		b := run.RunLimitBlock(len(going), l.MaxConcurrentRuns)
		return &b
	}
	for _, t := range l.Tags {
		value, ok := counts(t, r)
		if used := usedOf(t, r, going); ok && used >= t.Limit {
			b := run.TagLimitBlock(t.Key, cmp.Or(t.Value, value), used, t.Limit)
			return &b
		}
	}
	return nil
}

// gone reports whether a run in progress is lost or has expired.
func gone(s *Snapshot, r *run.Run) (lost, expired bool) {
	lost = r.Status == run.Running && !s.Alive[r.ID]
	expired = r.Status == run.NotStarted && s.StartTimeout > 0 && s.Now.Sub(r.AdmittedAt) >= s.StartTimeout
	return lost, expired
}

// back reports whether a run in progress goes back to the queue.
func back(s *Snapshot, r *run.Run) bool {
	return r.Status == run.NotStarted && len(r.Pools) > 0 && !s.Kept[r.ID]
}

// remaining are those in progress who really are.
func remaining(s *Snapshot) []*run.Run {
	return slices.DeleteFunc(slices.Clone(s.InProgress), func(r *run.Run) bool {
		lost, expired := gone(s, r)
		return lost || expired || back(s, r)
	})
}

// outcome is what the rules say of a snapshot.
type outcome struct {
	admitted []*run.Run
	space    *pool.Space // what is left then
	// held are the runs of which it is to be noted that pools hold them up, and first
	// those that reserve.
	held, first map[*run.Run]bool
	ages        time.Time // when the next comes to reserve
}

// reference goes through the queue as the rules say, one run after the other.
func reference(s *Snapshot) outcome {
	o := outcome{held: map[*run.Run]bool{}, first: map[*run.Run]bool{}}
	going := remaining(s)
	returning := func(r *run.Run) bool { return back(s, r) }
	if s.Space != nil && !slices.ContainsFunc(s.InProgress, returning) {
		o.space = s.Space.Clone()
	}
	seen := map[string]bool{} // what did not fit
	for r := range s.Queue.All() {
		need := run.PoolList(r.Pools)
		switch {
		case holdup(s.Limits, going, r) != nil:
		case need == "" || o.space != nil && !seen[need] && o.space.Fits(r.Pools):
			if need != "" {
				o.space.Take(r.Pools)
			}
			going, o.admitted = append(going, r), append(o.admitted, r)
		case o.space != nil:
			if r.HeldSince.IsZero() || r.HeldSince.After(s.Now) {
				o.held[r] = true
			}
			if !seen[need] {
				o.reserve(s, r)
			}
			seen[need] = true
		}
	}
	return o
}

func (o *outcome) reserve(s *Snapshot, r *run.Run) {
	after := o.space.ReserveAfter(r.Pools)
	since := r.HeldSince
	if since.After(s.Now) {
		since = s.Now
	}
	switch at := since.Add(after); {
	case after < 0 || after > 0 && r.HeldSince.IsZero():
	case !at.After(s.Now):
		o.first[r] = o.space.Reserve(r.Pools)
	case o.ages.IsZero() || at.Before(o.ages):
		o.ages = at
	}
}

// checkCapacity: who goes fits into the pools as they are, all together.
func checkCapacity(s *Snapshot, p Plan) error {
	taken := map[string]int{}
	for _, r := range p.Admit {
		for name, n := range r.Pools {
			taken[name] += n
			if s.Space == nil || !s.Space.Fits(map[string]int{name: taken[name]}) {
				return fmt.Errorf("%s takes more of %s than there is", r.ID, name)
			}
		}
	}
	return nil
}

func checkReference(s *Snapshot, p Plan) error {
	if want := reference(s).admitted; !slices.Equal(p.Admit, want) {
		return fmt.Errorf("%v go, want %v", ids(p.Admit), ids(want))
	}
	return nil
}

// A rule is what each plan of each snapshot has to keep.
type rule struct {
	name  string
	check func(*Snapshot, Plan) error
}

var rules = []rule{
	{"runs that are gone are reported", checkLosses},
	{"only queued runs are admitted, each once and in order", checkAdmitted},
	{"no limit is exceeded", checkLimits},
	{"no pool is overfull", checkCapacity},
	{"who goes is who goes one by one", checkReference},
	{"no run passes one that may be admitted", checkOrder},
	{"no run that may be admitted is left", checkLeft},
	{"reasons are right", checkReasons},
	{"who is due joins behind those who came before", checkDue},
	{"the deadline is that of the next to expire", checkDeadline},
}

func checkLosses(s *Snapshot, p Plan) error {
	var lost, expired, returned []*run.Run
	for _, r := range s.InProgress {
		if back(s, r) {
			returned = append(returned, r)
			continue
		}
		l, e := gone(s, r)
		if l {
			lost = append(lost, r)
		}
		if e {
			expired = append(expired, r)
		}
	}
	slices.SortFunc(lost, (*run.Run).Compare)
	slices.SortFunc(expired, (*run.Run).Compare)
	slices.SortFunc(returned, (*run.Run).Compare)
	if !slices.Equal(p.Back, returned) {
		return fmt.Errorf("%v go back, want %v", ids(p.Back), ids(returned))
	}
	if !slices.Equal(p.Lost, lost) || !slices.Equal(p.Expired, expired) {
		return fmt.Errorf("lost %v, expired %v; want %v, %v", ids(p.Lost), ids(p.Expired), ids(lost), ids(expired))
	}
	return nil
}

func checkAdmitted(s *Snapshot, p Plan) error {
	queue := slices.Collect(s.Queue.All())
	for i, r := range p.Admit {
		if !slices.Contains(queue, r) {
			return fmt.Errorf("%s is not queued", r.ID)
		}
		if i > 0 && p.Admit[i-1].Compare(r) >= 0 {
			return fmt.Errorf("%s is admitted after %s", p.Admit[i-1].ID, r.ID)
		}
	}
	return nil
}

// checkLimits does not mind that more are in progress than a limit allows, as long
// as no run joins them.
func checkLimits(s *Snapshot, p Plan) error {
	going := append(remaining(s), p.Admit...)
	if n := s.Limits.MaxConcurrentRuns; n != run.Unlimited && len(p.Admit) > 0 && len(going) > n {
		return fmt.Errorf("%d runs, and %d are allowed", len(going), n)
	}
	for _, l := range s.Limits.Tags {
		for _, r := range p.Admit {
			if _, ok := counts(l, r); ok && usedOf(l, r, going) > l.Limit {
				return fmt.Errorf("%d runs of %s with %s", usedOf(l, r, going), l, r.ID)
			}
		}
	}
	return nil
}

func checkOrder(s *Snapshot, p Plan) error {
	going := remaining(s)
	for r := range s.Queue.All() {
		if slices.Contains(p.Admit, r) {
			going = append(going, r)
		} else if len(r.Pools) == 0 && holdup(s.Limits, going, r) == nil && len(going) < len(remaining(s))+len(p.Admit) {
			return fmt.Errorf("%s was passed over", r.ID)
		}
	}
	return nil
}

func checkLeft(s *Snapshot, p Plan) error {
	going := append(remaining(s), p.Admit...)
	for r := range s.Queue.All() {
		if len(r.Pools) == 0 && !slices.Contains(p.Admit, r) && holdup(s.Limits, going, r) == nil {
			return fmt.Errorf("%s may go", r.ID)
		}
	}
	return nil
}

func checkReasons(s *Snapshot, p Plan) error {
	going := append(remaining(s), p.Admit...)
	o := reference(s)
	blocks := p.Blocks
	for r := range s.Queue.All() {
		if slices.Contains(p.Admit, r) {
			continue
		}
		want := holdup(s.Limits, going, r)
		right := want != nil && r.Block != nil && *r.Block == *want
		if want == nil && len(r.Pools) > 0 {
			if o.space == nil {
				continue // unknown
			}
			notes := o.space.Notes(r.Pools, o.first[r])
			b := run.PoolBlock(notes[0])
			if right = r.Block != nil && r.Block.Kind == run.BlockPool && slices.Contains(notes, r.Block.Text); right {
				b = *r.Block
			}
			want = &b
		}
		if want == nil || want.Text == "" {
			return fmt.Errorf("%s may go", r.ID)
		}
		right = right && !o.held[r]
		switch {
		case len(blocks) > 0 && blocks[0].Run == r && (right || blocks[0].Block != *want || blocks[0].Held != o.held[r]):
			return fmt.Errorf("%s is to read %v, has %v, want %v", r.ID, blocks[0], r.Block, want)
		case len(blocks) > 0 && blocks[0].Run == r:
			blocks = blocks[1:]
		case !right && len(p.Blocks) < s.MaxBlocks, !right && len(blocks) > 0:
			return fmt.Errorf("%s keeps %v, want %v", r.ID, r.Block, want)
		}
	}
	if len(blocks) > 0 || len(p.Blocks) > s.MaxBlocks {
		return errors.New("reasons for runs that are not left, out of order, or too many")
	}
	return nil
}

// checkDue: all whose time has come join the queue, the earliest first, behind every run that
// was in it by then.
func checkDue(s *Snapshot, p Plan) error {
	var due []*run.Run
	for r := range s.Deferred.All() {
		if !r.NotBefore.After(s.Now) && len(due) < s.MaxDue {
			due = append(due, r)
		}
	}
	if len(due) != len(p.Due) {
		return fmt.Errorf("%d join, want %d", len(p.Due), len(due))
	}
	stood := slices.Concat(slices.Collect(s.Queue.All()), s.InProgress)
	for i, r := range due {
		behind := r.Created
		for _, o := range stood {
			if o.Joined == 0 && !o.QueuedAt.After(r.NotBefore.Time) {
				behind = max(behind, o.Created)
			}
			if o.Joined != 0 && !o.NotBefore.After(r.NotBefore.Time) && !o.QueuedAt.After(r.NotBefore.Time) {
				behind = max(behind, o.Joined)
			}
		}
		if i > 0 {
			behind = max(behind, p.Due[i-1].Behind)
		}
		if p.Due[i] != (Joining{r, behind}) {
			return fmt.Errorf("%v joins, want %s behind %d", p.Due[i], r.ID, behind)
		}
	}
	return nil
}

func checkDeadline(s *Snapshot, p Plan) error {
	want := reference(s).ages
	for r := range s.Deferred.All() {
		if r.NotBefore.After(s.Now) {
			if want.IsZero() || r.NotBefore.Before(want) {
				want = r.NotBefore.Time
			}
			break
		}
	}
	for _, r := range remaining(s) {
		at := r.AdmittedAt.Add(s.StartTimeout)
		if r.Status == run.NotStarted && s.StartTimeout > 0 && (want.IsZero() || at.Before(want)) {
			want = at
		}
	}
	if !p.NextDeadline.Equal(want) {
		return fmt.Errorf("%v, want %v", p.NextDeadline, want)
	}
	return nil
}

// broken returns the first rule that a plan breaks.
func broken(s *Snapshot, p Plan) error {
	for _, r := range rules {
		if err := r.check(s, p); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

func ids(runs []*run.Run) []string {
	var ids []string
	for _, r := range runs {
		ids = append(ids, r.ID)
	}
	return ids
}
