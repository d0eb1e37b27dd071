package dispatch

import (
	"time"

	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// passing is how far it has come that an owner is passed, because it was silent after an offer.
type passing int

const (
	served passing = iota
	passes         // the key that says so is to be put, and is not seen yet
	passed         // until that key is gone
)

// owner is an instance that has demands or open offers.
type owner struct {
	instance
	hash    uint32
	demands int               // that have not ended
	open    counts[*followed] // claims in open offers, by pool
	names   map[int]bool      // of offers keys
	passing passing
	wrote   int64           // the last revision in which it has written
	silent  []time.Duration // when it was silent, within a minute
}

// owners is all owners.
type owners struct {
	all     map[instance]*owner
	byHost  map[string]map[*owner]bool
	demands int // of all
}

// of returns an owner.
func (o *owners) of(i instance) *owner {
	x := o.all[i]
	if x == nil {
		x = &owner{instance: i, hash: slots.Hash(i.host, i.name), open: counts[*followed]{}, names: map[int]bool{}}
		if o.all[i] = x; o.byHost[i.host] == nil {
			o.byHost[i.host] = map[*owner]bool{}
		}
		o.byHost[i.host][x] = true
	}
	return x
}

// forget forgets an owner of which there is nothing to remember.
func (o *owners) forget(x *owner) {
	if busy := !x.idle() || len(x.open)+len(x.names) > 0; busy || x.passing != served || o.all[x.instance] != x {
		return
	}
	delete(o.all, x.instance)
	if delete(o.byHost[x.host], x); len(o.byHost[x.host]) == 0 {
		delete(o.byHost, x.host)
	}
}

// write records that an instance has written something at a revision.
func (o *owners) write(i instance, revision int64) {
	if x := o.all[i]; x != nil {
		x.wrote = max(x.wrote, revision)
	}
}

// waiting counts a demand of an owner, or with -1 one that has ended.
func (o *owners) waiting(x *owner, n int) {
	x.demands += n
	o.demands += n
}

// offered counts a claim in an open offer, or with -1 one that is no longer open.
func (x *owner) offered(of *demand, n int) {
	for _, need := range of.needs {
		x.open.add(need.pool, n)
	}
}

// newName returns the lowest free name of an offers key from one on, which is then in use.
func (x *owner) newName(n int) int {
	for x.names[n] {
		n++
	}
	x.names[n] = true
	return n
}

// offersKey returns the offers key with a name.
func (x *owner) offersKey(n int) wire.OfferKey {
	return wire.OfferKey{Host: x.host, Instance: x.instance.name, Name: n}
}

// unname ends the use of a name.
func (x *owner) unname(n int) { delete(x.names, n) }

// strikes is how often within strikesWithin an owner must be silent for its next offers to stay open for longer.
const (
	strikes       = 3
	strikesWithin = time.Minute
)

// struck records that an owner was silent.
func (x *owner) struck(now time.Duration) {
	if x.silent = append(x.silent, now); len(x.silent) > strikes {
		x.silent = x.silent[1:]
	}
}

// often reports whether an owner was silent often.
func (x *owner) often(now time.Duration) bool {
	return len(x.silent) == strikes && now-x.silent[0] <= strikesWithin
}

// pass records how far it has come that an owner is passed.
func (x *owner) pass(p passing) { x.passing = p }

// toPass returns the keys that are to say that owners are passed.
func (o *owners) toPass() (keys []wire.OfferKey) {
	for _, x := range o.all {
		if x.passing == passes {
			keys = append(keys, x.passedKey())
		}
	}
	return keys
}

// unpass records that no owner is passed, before all is read: the keys that say so are shown again.
func (o *owners) unpass() {
	for _, x := range o.all {
		x.pass(served)
	}
}

// idle reports whether an owner has nothing to be offered: what was offered to it can be deleted.
func (x *owner) idle() bool { return x.demands == 0 }

const (
	// leastOpen and mostOpen bound the claims in open offers of an owner in a pool in which others wait; between them it is
	// limit/openPart, or an equal part for each owner that waits: were it less, slots would be free while few owners wait, and
	// no owner might hand its own on. Without a bound, a host that was killed had all slots for 7 s.
	leastOpen = 4
	mostOpen  = 128
	openPart  = 8
)

// boundOf returns how many claims in open offers an owner may have in a pool in which so many others wait.
func boundOf(limit, others int) int {
	if limit == slots.Unlimited {
		return mostOpen
	}
	return min(mostOpen, max(leastOpen, limit/min(openPart, others+1)))
}
