package run

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// What the runs of an identity take in etcd is the sum of keys under the identity: one for each
// run that has not ended, and one for each run that is stored, whose key names its size class.
// Both are written in the transactions that submit, end, retry and delete the run. So usage
// needs no counter, is the same for all processes, and is counted without reading a value.

const (
	// instanceBytes is what the states of a step instance take besides its work.
	instanceBytes = 512
	// eventBytes is what an event takes, with its key, and attemptEvents is how many events an attempt
	// of a run or step instance usually has: those of its slots, its start and its end.
	eventBytes, attemptEvents = 400, 6
	// unit is the smallest size class, in bytes.
	unit = 1 << 10
	// sizeClasses is the number of classes: 1, 2, 3, 4, 6, 8, 12 and so on, up to 192 MiB.
	sizeClasses = 35
	// nearRuns is how close to its bound concurrent submissions of an identity exclude each
	// other: more than can be under way. nearBytes is the same as a fraction of the bound, for
	// runs of which as many fit into that fraction; larger ones always exclude each other.
	nearRuns  = 1000
	nearBytes = 2
	// A count of at least manyKeys is used for recentFor; recentMost bounds those that are kept.
	manyKeys   = 5000
	recentFor  = time.Second
	recentMost = 1000
)

// The settings that bound the runs of an identity, as errors and metrics name them.
const (
	SettingUnfinished = "max_unfinished_runs"
	SettingStored     = "max_stored_run_data"
	SettingAhead      = "max_not_before"
)

// The defaults of [Quota].
const (
	DefaultMaxUnfinished = 10_000
	DefaultMaxStored     = 256 << 20
	DefaultMaxAhead      = 366 * 24 * time.Hour
)

// Quota bounds what one identity can make etcd store with its runs. A zero bound does not exist.
type Quota struct {
	// Unfinished bounds the runs that have not ended.
	Unfinished int
	// Stored bounds the data of all runs, until they are deleted, in bytes. Each counts as the
	// size of its class.
	Stored int64
	// Ahead bounds how far ahead the NotBefore of a run or step is.
	Ahead time.Duration
	// Refused, if it is not nil, is called with the setting that a submission exceeds.
	Refused func(setting string)

	mu   sync.Mutex // guards what follows
	seen map[string]*Usage
}

// Size returns what a run can take in etcd: the encoded spec, its graph and work, in bytes, the states
// of its instances, and the events of its attempts and theirs, up to [DefaultMaxEvents].
func Size(spec *Spec, work, instances, attempts int) int64 {
	events := min(DefaultMaxEvents, (1+spec.Retries+attempts)*attemptEvents)
	return int64(len(store.Encode(spec)) + work + instances*instanceBytes + events*eventBytes)
}

// classKiB returns the size of a class, from 0 on, in KiB.
func classKiB(class int) int64 {
	if class == 0 {
		return 1
	}
	return int64(2+(class-1)%2) << ((class - 1) / 2)
}

// classOf returns the size of the class of a run that takes so many bytes, in KiB.
func classOf(size int64) int64 {
	class := 0
	for class < sizeClasses-1 && classKiB(class)*unit < size {
		class++
	}
	return classKiB(class)
}

// UsageOps returns the writes of the keys that count a run, for a transaction that changes its
// record from old to now. old is nil if it did not exist, and now is nil if it is deleted.
func UsageOps(keys store.Keys, id string, old, now *Record) []*pb.RequestOp {
	of := old
	if now != nil {
		of = now
	}
	if of.StoredKiB == 0 { // of an earlier version
		return nil
	}
	open, data := keys.UnfinishedRun(of.SubmittedBy, id), keys.StoredRun(of.SubmittedBy, of.StoredKiB, id)
	wasOpen, isOpen := old != nil && !old.Status.Ended(), now != nil && !now.Status.Ended()
	var ops []*pb.RequestOp
	switch {
	case isOpen && !wasOpen:
		ops = append(ops, store.Put(open, usageValue, 0))
	case wasOpen && !isOpen:
		ops = append(ops, store.Delete(open))
	}
	switch {
	case old == nil:
		ops = append(ops, store.Put(data, usageValue, 0))
	case now == nil:
		ops = append(ops, store.Delete(data))
	}
	return ops
}

// usageValue is the value of the keys of usage. All that counts is in the key.
var usageValue = store.Encode(store.Now)

// allow returns a TooMany problem if one more unfinished run of an identity, which takes so many
// bytes more, would exceed the quota. Near a bound it returns compares under which the run is
// submitted: no other one of the identity was since.
func (s Store) allow(ctx context.Context, by string, more int64) ([]*pb.Compare, error) {
	q := s.Quota
	if q == nil || q.Unfinished == 0 && q.Stored == 0 {
		return nil, nil
	}
	u, known := q.recent(by, more, time.Now())
	if !known {
		var err error
		if u, err = s.Usage(ctx, by); err != nil {
			return nil, err
		}
		q.remember(by, u)
	}
	switch {
	case q.tooManyUnfinished(u):
		return nil, refuse(SettingUnfinished, "%s has %d runs that have not ended, and %s allows %d: wait until some have ended, or cancel some", by, u.Unfinished, SettingUnfinished, q.Unfinished)
	case q.tooMuchStored(u, more):
		return nil, refuse(SettingStored, "the runs of %s take %s in etcd and this one needs %s, and %s allows %s: submit less, or wait until earlier runs are deleted", by, bytesText(u.Stored), bytesText(more), SettingStored, bytesText(q.Stored))
	case q.near(u, more):
		return []*pb.Compare{store.NonePutSince(s.Keys.UnfinishedRuns(by), u.Revision)}, nil
	}
	return nil, nil
}

// near reports whether submissions of an identity exclude each other.
func (q *Quota) near(u Usage, more int64) bool {
	if q.Unfinished > 0 && u.Unfinished+nearRuns >= q.Unfinished {
		return true
	}
	return q.Stored > 0 && (u.Stored+more >= q.Stored/nearBytes || more > q.Stored/nearBytes/nearRuns)
}

func (q *Quota) tooManyUnfinished(u Usage) bool {
	return q.Unfinished > 0 && u.Unfinished >= q.Unfinished
}

func (q *Quota) tooMuchStored(u Usage, more int64) bool {
	return q.Stored > 0 && u.Stored+more > q.Stored
}

// recent returns a usage of many runs that was counted a moment ago, unless the submission needs
// an exact one: so an identity that submits often, or is refused often, does not have etcd count
// its runs each time. It counts the submission.
func (q *Quota) recent(by string, more int64, now time.Time) (Usage, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.seen[by]
	if u == nil || now.Sub(u.at) >= recentFor {
		return Usage{}, false
	}
	if q.tooManyUnfinished(*u) || q.tooMuchStored(*u, more) {
		return *u, true
	}
	if q.near(*u, more) {
		return Usage{}, false
	}
	u.Unfinished++
	u.Stored += more
	return *u, true
}

// remember keeps a usage of many runs for [Quota.recent].
func (q *Quota) remember(by string, u Usage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if u.keys < manyKeys {
		delete(q.seen, by)
		return
	}
	if q.seen == nil || len(q.seen) >= recentMost {
		q.seen = map[string]*Usage{}
	}
	q.seen[by] = &u
}

// isAlone reports whether one of the compares of [Store.allow] is among others. Such a change
// does not share a transaction: its compare would not see the others of that.
func isAlone(cmps []*pb.Compare) bool {
	return slices.ContainsFunc(cmps, func(c *pb.Compare) bool { return len(c.RangeEnd) > 0 })
}

func bytesText(n int64) string { return humanize.IBytes(uint64(n)) }

// exceeded is a TooMany problem, with the setting that a submission exceeds.
type exceeded struct {
	problem *problem.Error
	setting string
}

// Error returns the text of the problem.
func (e *exceeded) Error() string { return e.problem.Error() }

// Unwrap returns the problem.
func (e *exceeded) Unwrap() error { return e.problem }

// refuse returns a TooMany problem about a setting.
func refuse(setting, format string, args ...any) *exceeded {
	return &exceeded{problem.New(problem.TooMany, format, args...), setting}
}

// counted reports a refusal that is final to [Quota.Refused], and returns it.
func (s Store) counted(refused error) error {
	var e *exceeded
	if errors.As(refused, &e) && s.Quota.Refused != nil {
		s.Quota.Refused(e.setting)
	}
	return refused
}

// CheckDue returns a TooMany problem for a new run that is due later than the quota allows.
func (s Store) CheckDue(spec *Spec) error {
	if spec.Delay > 0 {
		return s.CheckAhead("delay", InstantOf(time.Now().Add(spec.Delay)))
	}
	return s.CheckAhead("not_before", spec.NotBefore)
}

// CheckAhead returns a TooMany problem for a time that is further ahead than the quota allows.
func (s Store) CheckAhead(field string, at Instant) error {
	q := s.Quota
	if q == nil || q.Ahead == 0 || at.IsZero() || time.Until(at.Time) <= q.Ahead {
		return nil
	}
	refused := refuse(SettingAhead, "%s is more than %s ahead, which is the most that %s allows: submit the run later", at.Format(time.RFC3339), aheadText(q.Ahead), SettingAhead)
	refused.problem.Field = field
	return refused
}

// aheadText returns a time in days if it is some.
func aheadText(d time.Duration) string {
	const day = 24 * time.Hour
	if d%day == 0 {
		return text.Count(int(d/day), "day")
	}
	return d.String()
}

// Usage is what the runs of an identity take.
type Usage struct {
	// Unfinished is the number of runs that have not ended.
	Unfinished int
	// Stored is the size of the data of all runs, in bytes.
	Stored int64
	// Revision is that of the count.
	Revision int64

	at   time.Time
	keys int64 // that were counted
}

// Usage counts the runs of an identity.
func (s Store) Usage(ctx context.Context, by string) (Usage, error) {
	count := func(prefix string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
			Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), CountOnly: true,
		}}}
	}
	ops := []*pb.RequestOp{count(s.Keys.UnfinishedRuns(by))}
	for class := range sizeClasses {
		ops = append(ops, count(s.Keys.StoredRuns(by, classKiB(class))))
	}
	resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: ops})
	if err != nil {
		return Usage{}, err
	}
	unfinished := resp.Responses[0].GetResponseRange().Count
	u := Usage{Unfinished: int(unfinished), Revision: resp.Header.Revision, at: time.Now(), keys: unfinished}
	for class, r := range resp.Responses[1:] {
		n := r.GetResponseRange().Count
		u.Stored += n * classKiB(class) * unit
		u.keys += n
	}
	return u, nil
}
