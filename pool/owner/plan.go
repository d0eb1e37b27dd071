package owner

import (
	"time"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// plan makes the next transaction of the half that commits.
type plan struct {
	*commits
	b   *batch
	now time.Duration
	at  time.Time

	reuse *reuse
	// fewWant: claims may wait for longer while others are served. Each transaction checks all of them.
	fewWant bool
}

// all adds all that can be done.
func (p *plan) all() {
	p.unqueueUnseated()
	p.commitOffers()
	p.serve()
	p.claims()
	p.release()
	p.dropOffers()
	p.moveDemands()
}

// commitOffers commits what is offered. An offers key whose offers can't be used is deleted.
func (p *plan) commitOffers() {
	for _, of := range p.offers.open.take() {
		if p.b.full || !p.commitOffer(of) {
			p.offers.open.add(of)
		}
	}
}

// commitOffer adds the claims that use an offers key, and the deletion of the key. It is false if that has to wait.
func (p *plan) commitOffer(of *offered) (done bool) {
	if p.b.wrote[of.key] {
		return false // it is part of this transaction already
	}
	var items []*item
	var unused []wire.DemandRef
	defer func() {
		if !done {
			for _, it := range items {
				p.undo(it)
			}
		}
	}()
	for _, offer := range of.list {
		d, unknown := p.queue.find(offer.Demand)
		switch {
		case unknown, d != nil && d.claim.state == taking: // it may take other slots in a transaction that is sent again
			return false
		case d != nil && d.over: // what its claim has held is gone, and so is the record that says so
			p.queue.change(d.key)
			unused = append(unused, offer.Demand)
			continue
		case d == nil:
			if p.offers.decline(offer.Demand) {
				p.dropStray(offer)
			}
			unused = append(unused, offer.Demand)
			continue
		case d.claim.state != waiting || d.claim.withdrawn:
			unused = append(unused, offer.Demand)
			continue
		case offer.Refused: // its dispatcher may not know yet that a pool was created
			d.claim.arrive(d.claim.came, d.claim.since, p.memory.begun)
			p.memory.reread(d.claim.pools, p.now)
			p.unqueue(d)
			unused = append(unused, offer.Demand)
			continue
		}
		d.unfit()
		it, later := p.takeOffered(d.claim, of, offer)
		if later {
			return false
		}
		if it == nil {
			unused = append(unused, offer.Demand)
		} else {
			items = append(items, it)
		}
	}
	if of.key != "" {
		items = append(items, drop(of))
	}
	if len(items) > 0 && !p.b.add(items...) {
		return false
	}
	for _, demand := range unused {
		p.offers.close(of, demand, 0)
	}
	return true
}

// dropStray has a demand deleted that etcd has and this instance has not: a restore of etcd has brought it back, or another process
// has put it. While it is there, slots are kept for it.
func (p *plan) dropStray(offer wire.Offer) {
	name := wire.DemandKey{Pool: offer.Demand.Pool, Host: p.queue.host, Instance: p.queue.instance, Name: offer.Demand.Name}
	if k := p.queue.byName[name.Name]; k != nil && k.created == offer.Demand.Created {
		p.queue.change(k)
		return
	}
	for name.Pool = range offer.Take {
		p.drops.add(&offered{key: p.queue.keys.Demand(name), created: offer.Demand.Created})
	}
}

// takeOffered returns the part of a transaction that takes what is offered to a claim, nil if that can't be used. Later is
// set if something of it is under way in this transaction.
func (p *plan) takeOffered(c *Claim, of *offered, offer wire.Offer) (it *item, later bool) {
	held, ok := c.offered(offer)
	switch {
	case !ok:
		return nil, false
	case p.b.names(held):
		return nil, true
	}
	it = &item{kind: takes, claim: c, offer: of, of: offer.Demand, shared: []shared{of.condition()}}
	for _, name := range c.pools {
		if h := held[name]; !p.memory.takeOffered(it, p.memory.of(name, p.now), h) {
			p.undo(it)
			return nil, true
		}
	}
	if !c.reserve(p.leases, p.memory.leaseDuration(c)) {
		p.undo(it)
		return nil, true
	}
	p.memory.put(it, p.at)
	p.memory.carry(it, p.at)
	if it.width() > slots.MaxCompares {
		p.undo(it)
		return nil, false
	}
	if !it.sit() {
		p.undo(it)
		return nil, false
	}
	c.become(taking)
	return it, false
}

// undo ends that slots are tried which were not sent.
func (p *plan) undo(it *item) {
	if p.memory.giveUp(it); it.kind == takes && it.claim.state == taking {
		it.rise()
		it.claim.wait(it.claim.demand)
	}
}

// takeWant returns the claims that are to be taken directly; those that stay so are to be added again.
func (p *plan) takeWant() []*Claim {
	all := p.want.take()
	p.fewWant = len(all) <= maxServed
	return all
}

// claims takes slots for the claims that need not wait.
func (p *plan) claims() {
	for _, c := range p.releases.list {
		if c.kind != "" && !c.alone && !p.b.names(c.keys) {
			p.reuse.add(c)
		}
	}
	for _, c := range p.takeWant() {
		if p.b.full || !p.claim(c) {
			p.want.add(c)
		}
	}
}

// route has those claims wait, or refuses them, that need not wait for the answer to a transaction to know that.
func (p *plan) route() {
	for i, c := range p.takeWant() {
		if c.transfer != nil || i < p.routed || !p.seated(c) {
			p.want.add(c)
			continue
		}
		switch v := p.judge(c); {
		case c.withdrawn:
			p.commits.refuse(c, nil)
		case v.is == mustRefuse:
			p.refuse(c, v.err)
		case v.is != mustWait || !p.wait(c, v):
			p.want.add(c)
		}
	}
	p.noteRouted()
}

// claim takes slots for a claim, has it wait, or refuses it. It is false if it is to be tried again.
func (p *plan) claim(c *Claim) bool {
	if c.withdrawn {
		p.commits.refuse(c, nil)
		return true
	}
	if c.transfer != nil {
		return p.transfer(c)
	}
	if !p.seated(c) {
		return p.unseated(c)
	}
	if !p.current(c.passing.turn, c.pools) {
		c.passing.give(nil)
	}
	if p.b.uses(c.passing.turn) {
		return false
	}
	v := p.judge(c)
	switch v.is {
	case mustRefuse:
		p.refuse(c, v.err)
		return true
	case mustWait:
		return p.wait(c, v)
	case mustRead:
		return false
	}
	it := p.inPlace(c)
	if it == nil {
		it = &item{kind: takes, claim: c}
		if full, ok := p.takeNew(it); full != "" {
			return p.wait(c, verdict{is: mustWait, pools: []string{full}, why: Full})
		} else if !ok {
			return false // something has to be read
		}
	}
	p.memory.underPending(it)
	p.memory.readOnFailure(it)
	if it.width() > slots.MaxCompares {
		p.memory.giveUp(it)
		return p.wait(c, verdict{is: mustWait, pools: c.pools, why: Wide})
	}
	if !it.sit() {
		p.memory.giveUp(it)
		return p.unseated(c)
	}
	if !p.b.add(p.withNotice(it)...) {
		it.giveBack()
		p.memory.giveUp(it)
		return false
	}
	if it.from != nil {
		it.from.become(freeing)
		p.reuse.take(c.kind)
	}
	c.become(taking)
	return true
}

// inPlace returns the part of a transaction in which a claim takes over the keys of one that is released; nil if there is
// none, or no transaction can have both.
func (p *plan) inPlace(c *Claim) *item {
	from := p.reuse.first(c.kind)
	if from == nil || c.passing.turn != nil {
		return nil
	}
	if c.alone || p.b.names(from.keys) || !p.memory.below(from) {
		return nil
	}
	it := &item{kind: takes, claim: c, from: from}
	if p.memory.takeOver(it, p.at); it.clashes() {
		return nil
	}
	return it
}

// readEvery is how often a pool that is full, or pending, is read for claims that wait a moment.
const readEvery = 5 * time.Millisecond

// takeNew has a claim take free slots. Full is a pool that has none. It is false if something has to be read first.
func (p *plan) takeNew(it *item) (full string, ok bool) {
	kind := it.claim.kind
	k := p.reuse.full[kind]
	if k == nil {
		if k = p.memory.takeNew(it, p.at); k != nil {
			p.reuse.short(kind, k)
		}
	}
	switch {
	case k == nil:
		return "", true
	case k.read > it.claim.arrived:
		return k.name, false
	}
	p.readSoon(k)
	return "", false
}

// wait has a claim wait: first a moment for releases of its own instance, or for those that wait before it, and then in the wait
// queue.
func (p *plan) wait(c *Claim, v verdict) bool {
	if c.request.Wait == 0 && (v.why == Pending || v.why == Races) {
		full, done := p.ask(c)
		if full == "" {
			return done
		}
		v = verdict{is: mustWait, pools: []string{full}, why: Full}
	}
	until := c.came + localWait
	if p.fewWant && c.kind != "" && c.request.Wait > servedWait {
		until = max(until, min(c.came+servedWait, p.served(v)+localWait))
	}
	switch {
	case v.why == Full && p.now < until && p.memory.uses(v.pools):
		p.wake(until)
		return false
	case v.why == Pending && p.now < until && p.behindOwn(c):
		for _, name := range v.pools {
			p.readSoon(p.memory.pools[name])
		}
		p.wake(until)
		return false
	case c.request.Wait == 0:
		p.refuse(c, v.problem(c))
		return true
	}
	if c.request.Helps && !c.passing.alone {
		p.wake(p.surveys.help(p.now))
		return false
	}
	p.outcomes.counts.queued(v.why)
	p.outcomes.news.add(Result{Claim: c, Outcome: Waits, Why: v.why})
	p.queue.add(c, v.pools)
	return true
}

// served returns when claims of this instance took slots last of the pools that a claim waits for, 0 if another instance has a say
// in who is next: nobody may wait there, or this one dispatches and hands its slots on. While they keep taking some, a claim waits
// for longer than otherwise before it is put into the queue. Else one pause of etcd puts all claims of a busy instance there, each
// after the time that the others before it took, and all that come later.
func (p *plan) served(v verdict) time.Duration {
	if v.why == Pending && !p.offers.ownAhead(v.pools) {
		return 0
	}
	return p.memory.servedAt(v.pools, p.now)
}

// behindOwn reports whether a claim of a pending pool may wait a moment before it is put into the queue: its instance hands the
// slots that it releases on to its own demands, and all of these rank before the claim. If they are few, the pool is pending
// no longer then.
func (p *plan) behindOwn(c *Claim) bool {
	if _, ok := p.offers.ahead(c.pools); !ok || c.kind == "" || c.place != nil {
		return false
	}
	d := p.queue.first(c.kind)
	return d == nil || d.claim.request.Priority >= c.request.Priority
}

// readSoon has a pool read again, if that has not just been done.
func (p *plan) readSoon(k *known) {
	if k.ask(p.now) {
		p.memory.want(k)
	} else {
		p.wake(k.asked + readEvery)
	}
}

// release releases claims. Slots of pools with an advance offer go to the next of this instance's claims that wait.
func (p *plan) release() {
	for _, c := range p.releases.take() {
		if c.state == freeing { // it is taken over
			continue
		}
		if p.b.full || p.b.names(c.keys) || !p.handOn(c) && !p.freeOne(c) {
			p.commits.release(c)
		}
	}
}

// freeOne adds the deletion of the keys of a claim. Its demand goes with them, if its key lists it still.
func (p *plan) freeOne(c *Claim) bool {
	if k := c.listed(); k != nil && k.state == moving {
		return false
	}
	items := p.withDemand(p.memory.free(c), c)
	if !p.b.add(items...) {
		return false
	}
	c.become(freeing)
	return true
}

// withDemand returns a part that ends the slots of a claim, and the one that takes its demand out of its key, if that lists it
// still: only the slots say that the demand has ended.
func (p *plan) withDemand(it *item, c *Claim) []*item {
	if k := c.listed(); k != nil && k.leased() && !p.b.moves[k] {
		if p.b.kind == onlyDeletes && len(k.live()) > 0 {
			return []*item{it} // it would be put
		}

		return []*item{it, {kind: moves, key: k}}
	}
	return []*item{it}
}

// handOn has the next claim that waits take over the keys of one that is released, if there are advance offers.
func (p *plan) handOn(from *Claim) bool {
	if from.kind == "" || from.alone || !p.memory.below(from) || !p.memory.open(from) {
		return false
	}
	ahead, ok := p.offers.ahead(from.pools)
	if !ok {
		return false
	}
	d := p.queue.first(from.kind)
	if d == nil || d.claim.accused || p.queue.passes(d) || !d.claim.reserve(p.leases, p.memory.leaseDuration(d.claim)) {
		return false
	}
	it := &item{kind: takes, claim: d.claim, from: from}
	for _, of := range ahead {
		it.under(of)
	}
	if p.memory.takeOver(it, p.at); it.clashes() || !it.sit() {
		return false
	}
	if !p.b.add(p.withDemand(it, from)...) {
		it.rise()
		return false
	}
	from.become(freeing)
	d.claim.become(taking)
	return true
}

// dropOffers deletes offers keys that could not be deleted before.
func (p *plan) dropOffers() {
	for _, of := range p.drops.take() {
		if !p.b.wrote[of.key] && !p.b.add(drop(of)) {
			p.drops.add(of)
		}
	}
}

// moveDemands adds the demands keys of which most demands end with this transaction, if that is sure. The queue puts others
// when they have ended.
func (p *plan) moveDemands() {
	for _, it := range p.b.items {
		if it.kind == takes && it.claim.demand != nil {
			p.moveKey(it.claim.demand.key)
		}
	}
	for _, it := range p.b.items {
		if it.kind == moves && len(it.then) == 0 { // others are of a transaction that failed
			p.queue.spell(it, p.b.ending)
		}
	}
}

// moveKey adds a demands key if most of its demands end with this transaction.
func (p *plan) moveKey(k *demandKey) {
	if k != nil && k.leased() && !p.b.moves[k] && k.worthPutting(p.b.ending) {
		p.b.add(&item{kind: moves, key: k})
	}
}

// verdict says what a claim can do.
type verdict struct {
	is    judgment
	pools []string // that are short
	why   Why
	err   error
}

type judgment int

const (
	mayTake    judgment = iota // its slots may be taken
	mustRead                   // something has to be read, or a lease granted
	mustWait                   // it has to wait
	mustRefuse                 // it can't be granted
)

// judge decides about a claim by what is known of its pools. What speaks against it counts only if it was read after the
// claim came.
func (p *plan) judge(c *Claim) (v verdict) {
	unread := false
	// What goes on waiting, or is of a step, waits also for more slots than a limit that was lowered, and may be raised again.
	patient := c.request.Wait > 0 && (c.place != nil || c.request.Since > 0)
	for _, name := range c.pools {
		k := p.memory.of(name, p.now)
		fresh := k.read > c.arrived
		why, err := k.objection(c.request.Slots[name], c.passing.turn.of(name), patient)
		if why == Pending && c.request.Wait > 0 && c.place == nil && p.queue.keeps(name) {
			fresh = true // others of this instance wait for it: this one waits behind them
		}
		switch {
		case fresh && err != nil:
			return verdict{is: mustRefuse, err: err}
		case fresh && why != "":
			v.is, v.why = mustWait, why
			v.pools = append(v.pools, name)
		case err != nil, why != "", !k.Ready(), c.races >= readRaces && !fresh:
			p.memory.want(k)
			unread = true
		}
	}
	if c.races >= maxRaces && v.is == mayTake && c.passing.turn == nil {
		v = verdict{is: mustWait, why: Races, pools: c.pools}
	}
	if unread || !c.reserve(p.leases, p.memory.leaseDuration(c)) {
		return verdict{is: mustRead}
	}
	return v
}

// objection returns why a claim of n slots can't be made while its pool is pending as it was at a revision, as far as is known: it
// has to wait, as a patient one also has to for more slots than the limit, or never can.
func (k *known) objection(n int, pending int64, patient bool) (why Why, err error) {
	switch s := k.spec; {
	case k.err != nil:
		return "", k.err
	case s.Limit > 0 && n > s.Limit && patient:
		return Full, nil
	case s.Limit > 0 && n > s.Limit:
		return "", s.Exceeded(pool.Need{Pool: k.name, N: n})
	case k.pending != pending:
		return Pending, nil
	case k.at > 0 && s.Paused:
		return Paused, nil
	case k.at > 0 && s.Limit == pool.Closed:
		return Closed, nil
	}
	return "", nil
}
