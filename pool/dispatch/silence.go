package dispatch

import (
	"time"

	"github.com/berthhq/berth/pool/wire"
)

const (
	// leastPatience and mostPatience bound the time after which an owner is silent: between them it is twice the slowest
	// commit, or transaction of the dispatcher, of the last slowWithin to 2 × slowWithin.
	leastPatience = 500 * time.Millisecond
	mostPatience  = 2 * time.Second
	slowWithin    = 5 * time.Second
	// oftenPatience is that of an owner that was silent often, and of all for 2 × slowWithin after trouble with etcd.
	oftenPatience = 4 * time.Second
	// never is later than any time.
	never = time.Duration(1<<63 - 1)
)

// silence is how slow commits, and the dispatcher's own transactions, were.
type silence struct {
	slowest [2]time.Duration // in the present time and in the one before
	began   time.Duration
	trouble time.Duration // when a transaction failed last; 0 for never
}

// took records how long the commit of an offer took, or a transaction of the dispatcher.
func (s *silence) took(now, took time.Duration) {
	s.age(now)
	s.slowest[0] = max(s.slowest[0], took)
}

// troubled records that a transaction of the dispatcher failed. Owners may have lost their watches with the same member of etcd:
// they find their offers by a poll then, and the first one may go to that member, too.
func (s *silence) troubled(now time.Duration) { s.trouble = now }

func (s *silence) age(now time.Duration) {
	if past := now - s.began; past >= 2*slowWithin {
		s.slowest, s.began = [2]time.Duration{}, now
	} else if past >= slowWithin {
		s.slowest, s.began = [2]time.Duration{0, s.slowest[0]}, now
	}
}

// patience returns how long an owner has to commit or decline.
func (s *silence) patience(now time.Duration) time.Duration {
	s.age(now)
	if s.trouble > 0 && now-s.trouble < 2*slowWithin {
		return oftenPatience
	}
	return min(mostPatience, max(leastPatience, 2*max(s.slowest[0], s.slowest[1])))
}

// silentKeys returns the offers keys that their owners have left alone for too long, and when there is another one.
func (d *Dispatcher) silentKeys(now time.Duration) (silent []*open, next time.Duration) {
	next = never
	for _, o := range d.book.opened() {
		due := o.since + d.silence.patience(now)
		if due > now {
			return silent, min(next, due)
		}
		if o.owner.often(now) {
			due = o.since + oftenPatience
		}
		switch {
		case due > now:
			next = min(next, due)
		case o.stage == put:
			silent = append(silent, o)
		}
	}
	return silent, next
}

// silent records that the offers key of an owner was deleted, which it had left alone. It is passed, and so are others of
// its host that have written nothing since.
func (d *Dispatcher) silent(o *open, now time.Duration) {
	d.counts.add(Silent)
	o.owner.struck(now)
	for x := range d.owners.byHost[o.owner.host] {
		if (x == o.owner || x.wrote <= o.at) && x.passing == served && !x.idle() {
			x.pass(passes)
		}
	}
	d.touch()
}

// passedKey names the key that says that an owner is passed.
func (x *owner) passedKey() wire.OfferKey {
	return wire.OfferKey{Host: x.host, Instance: x.name, Name: -1}
}

// applyPassed records that key, which the owner deletes when it has seen it.
func (d *Dispatcher) applyPassed(key wire.OfferKey, revision int64, deleted bool) {
	of := instance{key.Host, key.Instance}
	x := d.owners.all[of]
	if x == nil {
		d.book.see(key, !deleted)
		return
	}
	d.book.see(key, false)
	if !deleted {
		x.pass(passed)
		d.left(x)
		return
	}
	x.pass(served)
	d.owners.write(of, revision)
	d.owners.forget(x)
}
