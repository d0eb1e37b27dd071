package owner

import (
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// fitsFor is for how long a demand must fit without an offer before its owner serves it although there is a dispatcher.
const fitsFor = 5 * time.Second

// serving says which demands a survey serves.
type serving int

const (
	servesNone  serving = iota
	servesStale         // those that have fitted for some time
	servesAll
)

// surveys are made for claims that do not wait although others do, and for demands that no dispatcher serves.
type surveys struct {
	memory  *memory
	queue   *queue
	commits *commits
	by      wire.DemandKey // the instance

	asked   []*Claim
	due     serving
	tries   int // more surveys until the next poll, if commits fail
	mode    serving
	now     time.Duration // of the last poll
	looked  time.Duration // when demands were surveyed last
	turn    bool          // demands are surveyed before claims
	yields  bool          // another read comes first
	rounds  int           // surveys of demands
	helps   bool          // who waits for the same as claims that help is to be read
	helped  time.Duration // when it was last
	current *survey
}

func newSurveys(o *commits, cfg Config) *surveys {
	return &surveys{memory: o.memory, queue: o.queue, commits: o, by: wire.DemandKey{Host: cfg.Host, Instance: cfg.Instance}}
}

// ask has the pools of claims surveyed.
func (s *surveys) ask(claims ...*Claim) { s.asked = append(s.asked, claims...) }

// serve has demands surveyed, if it is time for that.
func (s *surveys) serve(now time.Duration, nobody bool) {
	s.now, s.tries = max(now, 1), maxRaces
	switch {
	case nobody:
		s.mode, s.due = servesAll, servesAll
		return
	case s.queue.waits > 0 && s.now-s.looked >= fitsFor:
		s.due = servesStale
	}
	s.mode = servesStale
	s.queue.forgetAllGone() // the dispatcher deletes the keys of pools that are no longer pending
}

// again has demands surveyed once more, after one that had its turn was not committed.
func (s *surveys) again() {
	if s.tries > 0 {
		s.tries--
		s.due = s.mode
	}
}

// served has demands surveyed once more after one was committed: it may have been the last one.
func (s *surveys) served() {
	if s.mode == servesAll {
		s.due = servesAll
	}
}

// next returns the next transaction that reads, and what takes its answer; nil if there is none, or if other reads are wanted and
// come first.
func (s *surveys) next(others bool) (*pb.TxnRequest, func(*pb.TxnResponse, error)) {
	if s.current == nil {
		if others && s.yields {
			s.yields = false
			return nil, nil
		}
		if !s.begin() {
			return nil, nil
		}
	}
	return s.current.request(s.memory), s.answer
}

// begin begins a survey, false if none is wanted.
func (s *surveys) begin() bool {
	v := &survey{at: s.now, by: s.by, named: map[string]bool{}, cut: map[string]bool{}, turn: turn{pending: map[string]int64{}, specs: map[string]int64{}}}
	if s.helps && s.beginHelp(v) {
		s.current = v
		return true
	}
	if s.due != servesNone && (s.turn || len(s.asked) == 0) {
		v.serve(s.due)
		v.pools = s.poolsOfDemands()
		s.due, s.looked = servesNone, s.now
	} else {
		v.claims, s.asked = s.takeAsked()
		for _, c := range v.claims {
			v.pools = append(v.pools, c.pools...)
		}
	}
	s.turn = len(v.claims) > 0
	for _, name := range v.pools {
		if !v.named[name] {
			v.add(name)
		}
	}
	if len(v.pools) == 0 {
		return false
	}
	v.number, s.current = s.memory.begin(), v
	return true
}

// takeAsked returns the claims for the next survey, and those for later ones.
func (s *surveys) takeAsked() (now, later []*Claim) {
	pools := map[string]bool{}
	for i, c := range s.asked {
		for _, name := range c.pools {
			pools[name] = true
		}
		if i > 0 && len(pools) > maxSurveyed {
			return s.asked[:i], slices.Clone(s.asked[i:])
		}
	}
	return s.asked, nil
}

// poolsOfDemands returns the pools of this instance's demands, and those that their keys have left: others each time if there are
// more than one survey reads.
func (s *surveys) poolsOfDemands() []string {
	all := maps.Clone(s.queue.gone)
	for _, k := range s.queue.byName {
		for _, name := range k.pools {
			all[name] = true
		}
	}
	s.rounds++
	names := some(slices.Sorted(maps.Keys(all)), maxSurveyed, s.rounds)
	s.queue.forgetGone(names)
	return names
}

// answer takes the answer to a round, or that there was none.
func (s *surveys) answer(resp *pb.TxnResponse, err error) {
	v := s.current
	if err != nil {
		s.end()
		s.failed(v, err)
		return
	}
	v.answer(s.memory, resp)
	if v.over() && v.brief && s.anyFits(v) {
		v.expand(s.memory)
	}
	if v.over() {
		s.end()
		s.decide(v)
	}
}

// end ends a survey.
func (s *surveys) end() { s.current, s.yields = nil, true }

// restored ends what was found out, and a survey between two rounds: what it has read is of another history.
func (s *surveys) restored() {
	if v := s.current; v != nil && len(v.sent) == 0 {
		s.end()
		s.ask(v.claims...)
	}
	s.commits.takeTurn()
}

// failed has the claims of a survey without an answer surveyed again.
func (s *surveys) failed(v *survey, err error) {
	if v.serves == servesAll {
		s.queue.leave(v.pools)
	}
	for _, c := range v.claims {
		switch {
		case store.OutcomeUnknown(err), refusalOf(err) == ofNone:
			s.ask(c)
		case c.passing.surveys >= maxRaces:
			s.commits.refuse(c, store.Problem("who waits could not be read", err))
		default:
			c.passing.count()
			s.ask(c)
		}
	}
}

// anyFits reports whether a demand would fit if no other waited. If none does, the others need not be read.
func (s *surveys) anyFits(v *survey) bool {
	free := v.state.Turns(s.by.Host, s.by.Instance, s.over)
	for d := range s.queue.demands() {
		if !v.knows(d.claim.pools) || free.Short(d.claim.request.Slots) == "" {
			return true
		}
	}
	return false
}

// over reports whether a demand of this instance is over that etcd still has: its key is to be put without it. Its claim was
// withdrawn, or what that has held is gone, and so is the record that says so.
func (s *surveys) over(ref wire.DemandRef) bool {
	d, _ := s.queue.find(ref)
	if d == nil || !d.over {
		return false
	}
	s.queue.change(d.key)
	return true
}

// decide decides which claims have their turn.
func (s *surveys) decide(v *survey) {
	if len(v.helps) > 0 {
		s.decideHelp(v)
		return
	}
	turns := v.state.Turns(s.by.Host, s.by.Instance, s.over)
	t := &v.turn
	t.revision = v.revision
	for _, name := range v.pools {
		if !v.brief && t.pending[name] > 0 && turns.Waiting(name) == 0 && !v.cut[name] {
			t.empty = append(t.empty, name)
		}
	}
	for _, c := range v.claims {
		switch short := turns.Short(c.request.Slots); {
		case c.withdrawn:
			s.commits.refuse(c, nil)
		case v.whole() && turns.Next(c.request.Slots):
			c.passing.give(t)
			s.commits.want.add(c)
		case short != "":
			s.commits.refuse(c, verdict{pools: []string{short}, why: Full}.problem(c))
		default:
			s.commits.refuse(c, othersWait(c.pools[0]))
		}
	}
	if v.serves == servesNone {
		return
	}
	fit := map[*demand]bool{}
	for _, ref := range turns.Own() {
		d, _ := s.queue.find(ref)
		if d == nil || v.brief || !v.knows(d.claim.pools) {
			continue
		}
		if fit[d] = true; d.fit(v.at) || v.serves == servesAll {
			t.claims = append(t.claims, d.claim)
		}
	}
	gone := map[*Claim]string{}
	for d := range s.queue.demands() {
		if !v.knows(d.claim.pools) {
			continue
		}
		if !fit[d] {
			d.unfit()
		}
		if name := t.without(d.claim.pools); v.serves == servesAll && name != "" && d.claim.state == waiting {
			gone[d.claim] = name
		}
	}
	for c, name := range gone { // as a dispatcher does
		s.commits.refuse(c, pool.NoSuchPool(name))
	}
	if s.mode == servesAll {
		s.queue.leave(slices.DeleteFunc(slices.Clone(v.pools), func(name string) bool { return t.pending[name] == 0 || turns.Others(name) > 0 }))
	}
	if len(t.claims)+len(t.empty) > 0 {
		s.commits.serve(t)
	}
}

// leave leaves a turn to demands that another transaction has to serve.
func (t *turn) leave(later []*Claim) { t.claims, t.empty = later, nil }

// othersWait returns the error for a claim that does not wait, and would pass others.
func othersWait(pool string) error {
	return problem.New(problem.NoCapacity, "others wait for pool '%s'", pool)
}
