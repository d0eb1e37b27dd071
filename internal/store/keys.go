package store

import (
	"fmt"
	"strconv"
	"strings"
)

// DefaultPrefix is the prefix of all keys unless the settings name another.
const DefaultPrefix = "/berth/"

// Keys spells every key that berth writes, under one prefix. No other place
// spells any.
type Keys struct{ prefix, pools string }

// NewKeys returns the keys under prefix, to which a closing slash is added
// where it has none.
func NewKeys(prefix string) Keys {
	if !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return Keys{prefix: prefix, pools: prefix + "pools/"}
}

// Prefix returns the prefix of all keys.
func (k Keys) Prefix() string { return k.prefix }

// Pools is the prefix of all pools.
func (k Keys) Pools() string { return k.pools }

// Spec is the key of a pool's spec.
func (k Keys) Spec(pool string) string { return k.pools + pool + "/spec" }

// Slots is the prefix of all slot keys of a pool.
func (k Keys) Slots(pool string) string { return k.pools + pool + "/slots/" }

// Group is the prefix of the slot keys of one slot group.
func (k Keys) Group(pool string, group int) string {
	var room [keyRoom]byte
	return string(k.appendGroup(room[:0], pool, group))
}

// Slot is the key of one slot.
func (k Keys) Slot(pool string, group, index int) string {
	var room [keyRoom]byte
	return string(appendPadded(k.appendGroup(room[:0], pool, group), index, 5))
}

// keyRoom is enough for the usual slot key to be spelled on the stack; a longer
// one takes its room elsewhere.
const keyRoom = 128

func (k Keys) appendGroup(b []byte, pool string, group int) []byte {
	b = append(append(append(b, k.pools...), pool...), "/slots/"...)
	return append(appendPadded(b, group, 2), '/')
}

// Line is the prefix of a pool's waiters.
func (k Keys) Line(pool string) string { return k.pools + pool + "/line/" }

// Waiter is the key of one waiter in a pool's line.
func (k Keys) Waiter(pool, order string) string { return k.Line(pool) + order }

// Hosts is the prefix of the presence keys of all instances.
func (k Keys) Hosts() string { return k.prefix + "hosts/" }

// Presence is the key by which an instance is seen.
func (k Keys) Presence(host, instance string) string {
	return k.Hosts() + host + "/" + instance
}

// Leases is the prefix of the leases that a host can resume.
func (k Keys) Leases(host string) string { return k.prefix + "leases/" + host + "/" }

// Lease is the key of one lease of a host; it hangs on that very lease.
func (k Keys) Lease(host string, id LeaseID) string {
	return k.Leases(host) + strconv.FormatUint(uint64(id), 16)
}

// Guards is the prefix of the guards of a host's instances.
func (k Keys) Guards(host string) string { return k.prefix + "guards/" + host + "/" }

// Guard is the key of an instance's commit guard.
func (k Keys) Guard(host, instance string) string { return k.Guards(host) + instance }

// Revocations is the prefix of the claims that operators asked back from a host.
func (k Keys) Revocations(host string) string { return k.prefix + "revoke/" + host + "/" }

// Revocation is the key that asks for one claim back.
func (k Keys) Revocation(host, claim string) string { return k.Revocations(host) + claim }

// Limits is the key of the limits that runs are admitted under.
func (k Keys) Limits() string { return k.prefix + "limits" }

// Runs is the prefix of the records of all runs.
func (k Keys) Runs() string { return k.prefix + "runs/" }

// Run is the key of the record of one run.
func (k Keys) Run(id string) string { return k.Runs() + id }

// ActiveAll is the prefix of the keys by which executors are seen to live.
func (k Keys) ActiveAll() string { return k.prefix + "active/" }

// Active is the prefix of those of one host.
func (k Keys) Active(host string) string { return k.ActiveAll() + host + "/" }

// ActiveRun is the key by which the executor of a run is seen to live.
func (k Keys) ActiveRun(host, run string) string { return k.Active(host) + run }

// EventsAll is the prefix of the events of all runs.
func (k Keys) EventsAll() string { return k.prefix + "events/" }

// Events is the prefix of the events of one run.
func (k Keys) Events(run string) string { return k.EventsAll() + run + "/" }

// Event is the key of one event; ids of events never come twice.
func (k Keys) Event(run, id string) string { return k.Events(run) + id }

// Coordinators is the prefix of the candidates for the coordinator's part. The
// one that was created first leads.
func (k Keys) Coordinators() string { return k.prefix + "coordinator/" }

// Coordinator is the key of one candidate, which hangs on that very lease.
func (k Keys) Coordinator(id LeaseID) string {
	return k.Coordinators() + strconv.FormatUint(uint64(id), 16)
}

// PoolKeyKind tells what a key under [Keys.Pools] holds.
type PoolKeyKind int

// The kinds of keys of a pool.
const (
	SpecKey PoolKeyKind = iota + 1
	SlotKey
	WaiterKey
)

// PoolKey is a key under [Keys.Pools], taken apart.
type PoolKey struct {
	Kind  PoolKeyKind
	Pool  string
	Group int    // of a SlotKey
	Index int    // of a SlotKey
	Order string // of a WaiterKey
}

// ParsePoolKey takes a key under [Keys.Pools] apart. A key that berth does not
// spell is an error that names it.
func (k Keys) ParsePoolKey(key string) (PoolKey, error) {
	rest, ok := strings.CutPrefix(key, k.pools)
	if !ok {
		return PoolKey{}, fmt.Errorf("key %q is not under %q", key, k.pools)
	}
	pool, rest, _ := strings.Cut(rest, "/")
	kind, rest, more := strings.Cut(rest, "/")
	switch {
	case pool == "":
	case kind == "spec" && !more:
		return PoolKey{Kind: SpecKey, Pool: pool}, nil
	case kind == "line" && rest != "" && !strings.Contains(rest, "/"):
		return PoolKey{Kind: WaiterKey, Pool: pool, Order: rest}, nil
	case kind == "slots":
		g, i, _ := strings.Cut(rest, "/")
		group, errG := parsePadded(g, 2)
		index, errI := parsePadded(i, 5)
		if errG == nil && errI == nil {
			return PoolKey{Kind: SlotKey, Pool: pool, Group: group, Index: index}, nil
		}
	}
	return PoolKey{}, fmt.Errorf("key %q is none that berth writes", key)
}

// RangeEnd returns the end of the range that holds every key under prefix.
func RangeEnd(prefix string) []byte {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return []byte{0} // every key there is
}

// appendPadded writes a number with at least width digits, so that keys of one
// prefix sort as their numbers do.
func appendPadded(b []byte, n, width int) []byte {
	for most := 10; width > 1; width, most = width-1, most*10 {
		if n < most {
			b = append(b, '0')
		}
	}
	return strconv.AppendInt(b, int64(n), 10)
}

// parsePadded reads what [appendPadded] wrote and refuses every other spelling,
// so that two keys never mean the same slot.
func parsePadded(s string, width int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, err
	}
	var room [20]byte
	if n < 0 || n > 1<<30 || string(appendPadded(room[:0], n, width)) != s {
		return 0, fmt.Errorf("%q is no slot number", s)
	}
	return n, nil
}
