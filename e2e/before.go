package e2e

import (
	"fmt"
	"strings"

	"github.com/berthhq/berth/internal/store"
)

// The checkers of this package still read the keys of pools of the layout before 2.

func oldSlotOf(k store.Keys, pool string, group, index int) string {
	return fmt.Sprintf("%s%02d/%05d", k.Slots(pool), group, index)
}

func oldWaiterOf(k store.Keys, pool, order string) string { return k.Pool(pool) + "waiters/" + order }

func oldQueuedOf(k store.Keys, pool string) string { return k.Pool(pool) + "queued" }

// poolKeyKind is what a key under pools/ holds.
type poolKeyKind int

// The kinds of keys of a pool.
const (
	specKey poolKeyKind = iota + 1
	slotKey
	waiterKey
	queuedKey
	dispatcherKey
	noticeKey
)

// poolKey is a key under pools/, taken apart.
type poolKey struct {
	Kind  poolKeyKind
	Pool  string
	Group int    // of a slotKey
	Index int    // of a slotKey
	Order string // of a waiterKey

	Host, Instance, Claim string // of a noticeKey
}

// parsePoolKey takes a key under pools/ apart. A key that berth does not
// spell is an error that names it.
func parsePoolKey(k store.Keys, key string) (poolKey, error) {
	rest, ok := strings.CutPrefix(key, k.Pools())
	if !ok {
		return poolKey{}, fmt.Errorf("key %q is not under %q", key, k.Pools())
	}
	pool, rest, _ := strings.Cut(rest, "/")
	kind, rest, more := strings.Cut(rest, "/")
	switch {
	case pool == "":
	case kind == "spec" && !more:
		return poolKey{Kind: specKey, Pool: pool}, nil
	case kind == "queued" && !more:
		return poolKey{Kind: queuedKey, Pool: pool}, nil
	case kind == "dispatcher" && !more:
		return poolKey{Kind: dispatcherKey, Pool: pool}, nil
	case kind == "grants":
		host, rest, _ := strings.Cut(rest, "/")
		instance, claim, _ := strings.Cut(rest, "/")
		if host != "" && instance != "" && claim != "" && !strings.Contains(claim, "/") {
			return poolKey{Kind: noticeKey, Pool: pool, Host: host, Instance: instance, Claim: claim}, nil
		}
	case kind == "waiters" && rest != "" && !strings.Contains(rest, "/"):
		return poolKey{Kind: waiterKey, Pool: pool, Order: rest}, nil
	case kind == "slots":
		g, i, _ := strings.Cut(rest, "/")
		group, errG := store.ParsePadded(g, 2, 1<<30)
		index, errI := store.ParsePadded(i, 5, 1<<30)
		if errG == nil && errI == nil {
			return poolKey{Kind: slotKey, Pool: pool, Group: group, Index: index}, nil
		}
	}
	return poolKey{}, fmt.Errorf("key %q is none that berth writes", key)
}
