//go:build linux

package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// kind names what fails.
type kind string

// class is what several kinds have in common: a phase has at most one fault of a class
// other than its own host's.
type class int

const (
	// hostClass is about the processes of one host: several may come together.
	hostClass class = iota
	// etcdClass takes a member, or writes, from etcd: two at once would only stop it.
	etcdClass
	// poolClass changes pools.
	poolClass
	// networkClass is about the way between a host and etcd.
	networkClass
	// aloneClass has a phase of its own.
	aloneClass
)

// trait is what the plan needs to know of a kind.
type trait struct {
	kind  kind
	class class
	// least and most are for how long the fault lasts; 0 if it is over at once.
	least, most time.Duration
	// sidecar says that it takes the sidecar of its host away.
	sidecar bool
	needs   need
}

// need is what not every machine permits.
type need int

const (
	nothing need = iota
	namespaces
	mounts
	neighbors
)

// lostServer takes a member of etcd and the host of the same machine away, with all of their data. The
// host has the number of the member.
const lostServer kind = "lost-server"

// traits are all kinds, in the order of the report.
var traits = []trait{
	{"kill-sidecar", hostClass, 100 * time.Millisecond, 12 * time.Second, true, nothing},
	{"kill-worker", hostClass, 100 * time.Millisecond, 14 * time.Second, false, nothing},
	{"kill-coordinator", hostClass, 100 * time.Millisecond, 5 * time.Second, false, nothing},
	{"kill-load", hostClass, 100 * time.Millisecond, 8 * time.Second, false, nothing},
	{"kill-exec", hostClass, 0, 0, false, nothing},
	{"kill-job", hostClass, 0, 0, false, nothing},
	{"freeze-sidecar", hostClass, 2 * time.Second, 14 * time.Second, true, nothing},
	{"freeze-worker", hostClass, 2 * time.Second, 14 * time.Second, false, nothing},
	{"freeze-coordinator", hostClass, 8 * time.Second, 14 * time.Second, false, nothing},
	{"freeze-load", hostClass, 2 * time.Second, 14 * time.Second, false, nothing},
	{"freeze-exec", hostClass, 2 * time.Second, 14 * time.Second, false, nothing},
	{"kill-dispatcher", hostClass, 100 * time.Millisecond, 8 * time.Second, true, nothing},
	{"stop-dispatcher", hostClass, 4 * time.Second, 14 * time.Second, true, nothing},
	{"upgrade", hostClass, 0, 0, true, nothing},
	{"full-disk", hostClass, 4 * time.Second, 12 * time.Second, false, mounts},

	{"partition", networkClass, 1 * time.Second, 14 * time.Second, false, nothing},
	{"partition-in", networkClass, 1 * time.Second, 14 * time.Second, false, nothing},
	{"partition-out", networkClass, 1 * time.Second, 14 * time.Second, false, nothing},
	{"cut-dispatcher", networkClass, 4 * time.Second, 14 * time.Second, false, nothing},
	{"latency", networkClass, 5 * time.Second, 14 * time.Second, false, nothing},
	{"packet-loss", networkClass, 5 * time.Second, 14 * time.Second, false, nothing},

	{"kill-leader", etcdClass, 100 * time.Millisecond, 10 * time.Second, false, nothing},
	{"kill-member", etcdClass, 100 * time.Millisecond, 10 * time.Second, false, nothing},
	{"freeze-leader", etcdClass, 2 * time.Second, 10 * time.Second, false, nothing},
	{"partition-leader", etcdClass, 3 * time.Second, 10 * time.Second, false, namespaces},
	{"slow-member", etcdClass, 5 * time.Second, 12 * time.Second, false, namespaces},
	{"replace-member", etcdClass, 3 * time.Second, 8 * time.Second, false, nothing},
	{lostServer, etcdClass, 3 * time.Second, 14 * time.Second, true, namespaces},
	{"lose-quorum", etcdClass, 2 * time.Second, 8 * time.Second, false, nothing},
	{"restore", etcdClass, 5 * time.Second, 9 * time.Second, false, nothing},
	{"restore-new-id", etcdClass, 5 * time.Second, 9 * time.Second, false, nothing},
	{"no-space", etcdClass, 3 * time.Second, 7 * time.Second, false, nothing},

	{"limit", poolClass, 3 * time.Second, 10 * time.Second, false, nothing},
	{"pause", poolClass, 2 * time.Second, 8 * time.Second, false, nothing},
	{"delete-pool", poolClass, 1 * time.Second, 6 * time.Second, false, nothing},
	{"revoke", poolClass, 0, 0, false, nothing},
	{"revoke-force", poolClass, 0, 0, false, nothing},
	{"compaction", poolClass, 0, 0, false, nothing},

	{"only-neighbors", aloneClass, 0, 0, false, neighbors}, // so that all of their claims are judged
}

func (k kind) trait() trait {
	return traits[slices.IndexFunc(traits, func(t trait) bool { return t.kind == k })]
}

// ofDispatcher says that the fault is about the instance that dispatches when it comes:
// its host is not known before.
func (k kind) ofDispatcher() bool { return strings.HasSuffix(string(k), "-dispatcher") }

// disturbs says that no queue has to move while the fault lasts: etcd may not serve all, or a
// host may reach it only at times.
func (k kind) disturbs() bool {
	class := k.trait().class
	return class == etcdClass || class == networkClass && !k.ofDispatcher()
}

// fault is something that fails, from At after the begin of its phase for For.
type fault struct {
	Kind    kind
	At, For time.Duration
	Host    int    // of the host that it is about
	Member  int    // of etcd
	N       uint64 // anything else that chance has to say
}

// phase is what fails together.
type phase []fault

const (
	// perPhase is how many faults a phase has.
	perPhase = 5
	// usualPhase is how long a phase takes unless it is said. In a shorter one faults are
	// shorter, too.
	usualPhase = 25 * time.Second
	// within is when faults begin.
	within = 10 * time.Second
)

// plan returns the first phases of a seed. All kinds come before one comes again, but for
// those that do not go with the others of their phase.
func plan(seed uint64, phases, hosts, members int, permitted func(trait) bool) []phase {
	r := rand.New(rand.NewPCG(seed, 1))
	var deck []kind
	var all []phase
	for range phases {
		var p phase
		for len(p) < perPhase {
			at := slices.IndexFunc(deck, p.takes)
			if at < 0 {
				more := shuffled(r, permitted)
				if !slices.ContainsFunc(more, p.takes) {
					break // so few are permitted
				}
				deck = append(deck, more...)
				continue
			}
			p = append(p, draw(r, deck[at], p, hosts, members))
			deck = slices.Delete(deck, at, at+1)
		}
		slices.SortStableFunc(p, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
		all = append(all, p)
	}
	return all
}

func shuffled(r *rand.Rand, permitted func(trait) bool) []kind {
	var deck []kind
	for _, t := range traits {
		if permitted(t) {
			deck = append(deck, t.kind)
		}
	}
	r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	return deck
}

// takes says whether another fault goes with those that a phase has.
func (p phase) takes(k kind) bool {
	t, same, ofHosts, lost := k.trait(), 0, 0, k == lostServer
	for _, f := range p {
		if f.Kind.trait().class == hostClass {
			ofHosts++
		}
		lost = lost || f.Kind == lostServer
		if f.Kind == k || f.Kind.trait().class == etcdClass && t.class == etcdClass {
			return false
		}
		if f.Kind.trait().class == aloneClass || t.class == aloneClass {
			return false
		}
		if f.Kind == "freeze-exec" && k.ofDispatcher() || f.Kind.ofDispatcher() && k == "freeze-exec" {
			return false // it may be the sidecar that watches over the command
		}
		if f.Kind.trait().class == t.class {
			same++
		}
	}
	if t.class == hostClass {
		ofHosts++
	}
	// The processes of a lost server are left alone, so it is not known that a dispatcher is another's.
	if lost && (ofHosts > 2 || k.ofDispatcher() || slices.ContainsFunc(p, func(f fault) bool { return f.Kind.ofDispatcher() })) {
		return false
	}
	return same < 3
}

// draw chooses when and where a fault comes. A frozen exec has its sidecar to watch over
// its command: so that is left alone. So are the processes of a lost server.
func draw(r *rand.Rand, k kind, p phase, hosts, members int) fault {
	t := k.trait()
	f := fault{
		Kind: k, At: time.Duration(r.Int64N(int64(within))), For: t.least,
		Host: r.IntN(hosts), Member: r.IntN(members), N: r.Uint64(),
	}
	if t.most > t.least {
		f.For += time.Duration(r.Int64N(int64(t.most - t.least)))
	}
	among := hosts
	if k == lostServer {
		among, f.Host = members, f.Member
	}
	for range among {
		if !p.conflicts(f) {
			break
		}
		f.Host = (f.Host + 1) % among
	}
	if k == lostServer {
		f.Member = f.Host
	}
	return f
}

func (p phase) conflicts(f fault) bool {
	disturbs := func(a, b fault) bool {
		switch t := b.Kind.trait(); a.Kind {
		case "freeze-exec":
			return t.sidecar
		case lostServer:
			return t.class == hostClass
		}
		return false
	}
	return slices.ContainsFunc(p, func(g fault) bool {
		return f.Host == g.Host && (disturbs(f, g) || disturbs(g, f))
	})
}
