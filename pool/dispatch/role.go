package dispatch

import (
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// idleTime is how long an instance dispatches without demands. A coordinator never stops.
	idleTime = time.Minute
	// standbyPoll is how often a coordinator that does not dispatch polls role and mark: the mark is put each second.
	standbyPoll = time.Second
	// holderPoll is how often the dispatcher polls its role, if its watch is silent: as often as claims that wait are polled
	// at least.
	holderPoll = 5 * time.Second
	// pollAgain is the pause after a poll without an answer.
	pollAgain = 500 * time.Millisecond
	// takeAgain is the pause after a transaction whose outcome is unknown, or that etcd has refused because of its lease.
	takeAgain = 500 * time.Millisecond
	// deniedAgain is the pause after a transaction that etcd has refused for want of rights.
	deniedAgain = 10 * time.Second
	// seizeAgain is the pause between two take-overs from a dispatcher that lives: two coordinators that both lead for a
	// moment, and two processes with the same name, take the role from each other once a second at most.
	seizeAgain = time.Second
	// vacantTime is how long nobody dispatches before an instance serves itself: by then each instance with demands has tried.
	vacantTime = 5 * time.Second
)

// Instance is what the succession must know of its own instance.
type Instance struct {
	// Leads is set while it is the leading coordinator.
	Leads bool
	// Demands is set while it has demands in etcd.
	Demands bool
	// Waiting is set while the dispatcher of this instance knows of demands of any instance.
	Waiting bool
	// Lease is the lease for the role, 0 without one. If it has ended, another one takes its place.
	Lease store.LeaseID
}

// Ready is what is to be done, and what is known.
type Ready struct {
	// Txn is to be sent, with the answer given to [Succession.Answer]; nil without one.
	Txn *pb.TxnRequest
	// Poll is set while role and mark are to be read: see [Succession.Polled] and [Succession.Unanswered].
	Poll bool
	// Lease is set if the instance would take the role, and has no lease for it: one is to be granted, and shown to
	// [Succession.Set].
	Lease bool
	// Role is the revision of the role under which this instance dispatches now, 0 if it does not dispatch.
	Role int64
	// Changed is set once after any instance has taken the role: the pending keys of the pools of demands without an offer
	// are to be put again, as the new dispatcher may not know that these pools are pending.
	Changed bool
	// Nobody is set while nobody dispatches, and this instance can't: its demands are to be served by itself.
	Nobody bool
	// Done is set when the end of the instance needs nothing more from the succession.
	Done bool
	// At is when the next call is due if nothing is shown before; the longest time that there is if none is.
	At time.Duration
}

// roleStage is what the instance does with the role.
type roleStage int

const (
	stageFollowing   roleStage = iota
	stageTaking                // the transaction is under way
	stageDispatching           // it dispatches
	stageLeaving               // it gives the role up
	stageEnded
)

// Succession decides for one instance whether it dispatches: when it takes the role, from which other one, and when it
// gives it up. It dispatches only under a role that it has put itself, in this life, with a known outcome.
//
// It has no clock: times are since any moment, and must not go back. After each call that shows something, [Succession.Ready]
// is to be called, and at the time that it returns.
type Succession struct {
	keys           wire.Keys
	host, instance string
	kind           wire.Kind
	hash           uint32

	own      Instance
	since    time.Duration // since when it has demands
	idle     time.Duration // since when nobody has
	ending   bool
	follower Follower

	sight   sight
	changed bool

	stage  roleStage
	role   int64         // of the instance, while it dispatches
	took   time.Duration // when it has taken the role
	why    reason        // of the last transaction that takes the role
	value  wire.Role     // in that transaction
	lease  store.LeaseID // and the lease of its key
	times  map[string]int
	seized time.Duration // when it has last taken the role from one that lives
	pause  time.Duration // until when nothing is sent

	polls     polls
	probation probation
	denied    bool // etcd has refused the role
}

// NewSuccession returns the succession of an instance. A process that may become the leading coordinator is of the kind
// [wire.Coordinator].
func NewSuccession(keys wire.Keys, host, instance string, kind wire.Kind) *Succession {
	return &Succession{keys: keys, host: host, instance: instance, kind: kind, hash: slots.Hash(host, instance), seized: -seizeAgain, times: map[string]int{}}
}

// Set shows the instance as it is now. Its demands count from the call that first shows them.
func (s *Succession) Set(now time.Duration, i Instance) {
	if i.Demands && !s.own.Demands {
		s.since = now
	}
	if s.own.Demands || s.own.Waiting || i.Demands || i.Waiting {
		s.idle = now
	}
	if s.own = i; i.Lease != s.lease && s.stage == stageDispatching {
		s.lose(now)
	}
}

// End shows that the instance ends, and which one shall follow if it dispatches.
func (s *Succession) End(f Follower) {
	s.ending, s.follower = true, f
	if s.stage == stageFollowing {
		s.follow()
	}
}

// follow has the instance follow the role of others, unless it ends.
func (s *Succession) follow() {
	if s.stage, s.role = stageFollowing, 0; s.ending {
		s.stage = stageEnded
	}
}

// SeeRole shows the role's key at a revision, nil if it was absent: an event of a watch, or a read.
func (s *Succession) SeeRole(now time.Duration, at int64, kv *mvccpb.KeyValue) {
	first := s.sight.state == unseen
	if !s.sight.seeRole(now, at, s.keys.Role(), kv) {
		return
	}
	if kv != nil && !first && !s.sight.role.Ends {
		s.changed = true
	}
	if s.stage == stageDispatching && s.sight.revision != s.role {
		s.lose(now)
	}
}

// SeeMark shows the mark's key at a revision, nil if it was absent.
func (s *Succession) SeeMark(now time.Duration, at int64, kv *mvccpb.KeyValue) {
	s.sight.seeMark(now, at, s.keys.Mark(), kv)
}

// Polled shows the answer to a poll that was sent at a time: both keys at one revision, nil if they were absent. Each
// transaction that has the operations of [Succession.Reads] is one.
func (s *Succession) Polled(now, sent time.Duration, at int64, role, mark *mvccpb.KeyValue) {
	s.SeeRole(now, at, role)
	s.SeeMark(now, at, mark)
	s.sight.confirm(sent)
	s.polls.answered(sent)
	s.probation.poll(now, sent, true)
}

// Unanswered shows that a poll that was sent at a time had no answer, but an error.
func (s *Succession) Unanswered(now, sent time.Duration, err error) {
	s.probation.poll(now, sent, false)
	s.polls.failed(now, err)
}

// Forget forgets all that was seen: etcd was restored, or is another cluster. Answers to what was sent before must not
// be shown.
func (s *Succession) Forget() {
	s.sight, s.polls, s.denied, s.pause = sight{}, polls{}, false, 0
	s.follow()
}

// lose ends that the instance dispatches.
func (s *Succession) lose(now time.Duration) {
	s.follow()
	replaced := s.sight.state == unreadable || isNew(s.sight.role.TakeOvers, s.value.TakeOvers)
	if replaced && s.sight.revision != 0 {
		s.probation.begin(now, now-s.took)
	}
}

// Ready returns what is to be done. The time of day is for the value of the role, and for the take-overs in it.
func (s *Succession) Ready(now time.Duration, wall time.Time) Ready {
	var r Ready
	at := never
	if now < s.pause {
		at = s.pause
	} else if txn, lease, due := s.act(now, wall); txn != nil {
		r.Txn = txn
	} else {
		r.Lease, at = lease, due
	}
	poll := s.polls.next(s.nextPoll(now, wall))
	if r.Poll = poll <= now; !r.Poll {
		at = min(at, poll)
	}
	r.Role, r.Done, r.Changed = s.role, s.stage == stageEnded, s.changed
	s.changed = false
	nobody, ok := s.nobody(wall)
	if r.Nobody = ok && now >= nobody; ok && !r.Nobody {
		at = min(at, nobody)
	}
	r.At = at
	return r
}

// act returns the next transaction, or when there may be one, or that it needs a lease.
func (s *Succession) act(now time.Duration, wall time.Time) (t *pb.TxnRequest, lease bool, due time.Duration) {
	switch {
	case s.stage == stageDispatching && s.ending:
		return s.leave(wall), false, 0
	case s.stage == stageDispatching && s.kind != wire.Coordinator && !s.own.Demands && !s.own.Waiting:
		if due := s.idle + idleTime; now < due {
			return nil, false, due
		}
		return s.leave(wall), false, 0
	case s.stage != stageFollowing:
		return nil, false, never
	}
	c := s.nextTakeOver(wall)
	switch {
	case c.why == noReason:
		return nil, false, never
	case now < c.due:
		return nil, false, c.due
	case c.why == silent && s.sight.polled < c.due:
		return nil, false, never // after the next poll
	case s.own.Lease == 0:
		return nil, true, never
	}
	return s.take(c.why, wall), false, 0
}

// take returns the transaction that takes the role. The mark and the offers of the last dispatcher go with it.
func (s *Succession) take(why reason, wall time.Time) *pb.TxnRequest {
	wall = wall.Round(0).UTC()
	v := wire.Role{Host: s.host, Instance: s.instance, Kind: s.rank(), Since: wall, TakeOvers: recent(s.sight.role.TakeOvers, wall)}
	t := s.change(s.sight.revision, store.Put(s.keys.Role(), nil, s.own.Lease))
	if why == silent {
		v.TakeOvers = append(recent(v.TakeOvers, wall), wall)
		t.Compare = append(t.Compare, store.ModEquals(s.keys.Mark(), s.sight.mark))
	}
	t.Success[0].GetRequestPut().Value = wire.EncodeRole(v)
	s.stage, s.why, s.value, s.lease = stageTaking, why, v, s.own.Lease
	return t
}

// leave returns the transaction that gives the role up, or announces the end of the instance to the one that follows.
func (s *Succession) leave(wall time.Time) *pb.TxnRequest {
	op := store.Delete(s.keys.Role())
	if f := s.follower; s.ending && f != (Follower{}) {
		v := s.value
		v.Ends, v.NextHost, v.NextInstance, v.TakeOvers = true, f.Host, f.Instance, recent(v.TakeOvers, wall)
		op = store.Put(s.keys.Role(), wire.EncodeRole(v), s.own.Lease)
	}
	t := s.change(s.role, op)
	s.stage, s.role = stageLeaving, 0
	return t
}

// change returns a transaction that changes the role if it is at a revision, and otherwise reads what is there.
func (s *Succession) change(revision int64, op *pb.RequestOp) *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{store.ModEquals(s.keys.Role(), revision)},
		Success: []*pb.RequestOp{op, store.Delete(s.keys.Mark()), store.DeleteAll(s.keys.OffersAll())},
		Failure: s.Reads(),
	}
}

// Reads returns the operations of a poll: they read the role and the mark.
func (s *Succession) Reads() []*pb.RequestOp {
	return []*pb.RequestOp{store.Get(s.keys.Role()), store.Get(s.keys.Mark())}
}

// Answer takes the answer to the transaction of Ready, or the error that there was instead. If the outcome is unknown,
// the role may be held by this instance without its knowledge: it is replaced when it is seen.
func (s *Succession) Answer(now time.Duration, resp *pb.TxnResponse, err error) {
	was := s.stage
	if was != stageTaking && was != stageLeaving {
		return // forgotten
	}
	s.follow()
	switch {
	case errors.Is(err, store.ErrDenied):
		s.denied, s.pause = true, now+deniedAgain
		return
	case err != nil:
		s.pause = now + takeAgain
		s.polls.want()
		return
	}
	s.denied = false
	rev := resp.Header.Revision
	switch {
	case !resp.Succeeded:
		s.SeeRole(now, rev, only(resp.Responses[0]))
		s.SeeMark(now, rev, only(resp.Responses[1]))
	case was == stageTaking:
		s.taken(now, rev)
	}
}

// taken records that the role was taken at a revision. Another instance may have taken it since, or its lease may be lost.
func (s *Succession) taken(now time.Duration, rev int64) {
	s.stage, s.role, s.took, s.idle = stageDispatching, rev, now, now
	s.times[string(s.why)]++
	if s.why == orphaned || s.why == outranked {
		s.seized = now
	}
	if s.own.Lease != s.lease || s.sight.at > rev && s.sight.revision != rev {
		s.lose(now)
		return
	}
	s.SeeRole(now, rev, &mvccpb.KeyValue{Value: wire.EncodeRole(s.value), ModRevision: rev})
	s.SeeMark(now, rev, nil)
}

// only returns the key that an operation has read, nil if it was absent.
func only(r *pb.ResponseOp) *mvccpb.KeyValue {
	if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}
