package e2e

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/store"
)

// Keys are taken apart here once more, as values are.

// keyKind is what a key holds.
type keyKind int

// The kinds of keys that a [History] judges.
const (
	specKey    keyKind = iota + 1
	slotKey            // of a number
	blockKey           // of an area
	demandsKey         // of an instance, in one pool
	pendingKey         // of a pool
	idKey              // of a claim
	offersKey          // to an instance
	advanceKey         // an advance offer
	passedKey          // an instance was silent
	roleKey            // who dispatches
)

const advanceName = "advance~"

// berthKey is a key, taken apart.
type berthKey struct {
	Kind           keyKind
	Pool           string
	Number         int // of a slotKey, or the name of a block or of demands
	Area           int // of a blockKey
	Host, Instance string
	Claim          string // of an idKey
}

// isSlots reports whether slots are held by the key.
func (b berthKey) isSlots() bool { return b.Kind == slotKey || b.Kind == blockKey }

func (b berthKey) owner() instanceID { return instanceID{b.Host, b.Instance} }

// numberKey is the key of a number of a pool.
func numberKey(k store.Keys, pool string, number int) string {
	return fmt.Sprintf("%s%06d", k.Slots(pool), number)
}

// parseKey takes a key of the claim engine apart. A key below pools/, offers/, pending/ or ids/ that berth does not spell is an
// error that names it; ok is false for keys of other kinds.
func parseKey(k store.Keys, key string) (b berthKey, ok bool, err error) {
	switch {
	case strings.HasPrefix(key, k.Pools()):
		b, ok = parsePoolKey(key[len(k.Pools()):])
	case strings.HasPrefix(key, k.PendingAll()):
		b = berthKey{Kind: pendingKey, Pool: key[len(k.PendingAll()):]}
		ok = isWord(b.Pool)
	case strings.HasPrefix(key, k.IDs()):
		b = berthKey{Kind: idKey, Claim: key[len(k.IDs()):]}
		ok = b.Claim != ""
	case strings.HasPrefix(key, k.OffersAll()):
		b, ok = parseOfferKey(key[len(k.OffersAll()):])
	case key == k.Dispatcher()+"role":
		return berthKey{Kind: roleKey}, true, nil
	default:
		return berthKey{}, false, nil
	}
	if !ok {
		return berthKey{}, false, fmt.Errorf("key %q is none that berth writes", key)
	}
	return b, true, nil
}

func parsePoolKey(key string) (b berthKey, ok bool) {
	pool, rest, _ := strings.Cut(key, "/")
	kind, rest, more := strings.Cut(rest, "/")
	b = berthKey{Pool: pool}
	switch {
	case !isWord(pool):
		return b, false
	case kind == "spec":
		b.Kind = specKey
		return b, !more
	case kind == "demands":
		b.Kind = demandsKey
		ok = b.takeInstance(rest, func(name string) bool { return isNumber(name, 1, &b.Number) })
		return b, ok
	case kind != "slots":
		return b, false
	}
	block, is := strings.CutPrefix(rest, "b/")
	if !is {
		b.Kind = slotKey
		ok = isNumber(rest, 6, &b.Number)
		return b, ok
	}
	b.Kind = blockKey
	area, name, _ := strings.Cut(block, "/")
	ok = isNumber(area, 2, &b.Area) && isNumber(name, 1, &b.Number)
	return b, ok
}

func parseOfferKey(key string) (b berthKey, ok bool) {
	ok = b.takeInstance(key, func(name string) bool {
		pool, advance := strings.CutPrefix(name, advanceName)
		switch {
		case advance:
			b.Kind, b.Pool = advanceKey, pool
			return isWord(pool)
		case name == "passed":
			b.Kind = passedKey
			return true
		}
		b.Kind = offersKey
		return isNumber(name, 1, &b.Number)
	})
	return b, ok
}

// takeInstance takes HOST/INSTANCE/NAME.
func (b *berthKey) takeInstance(text string, name func(string) bool) bool {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return false
	}
	b.Host, b.Instance = parts[0], parts[1]
	return isWord(b.Host) && isWord(b.Instance) && name(parts[2])
}

func isWord(s string) bool { return s != "" && !strings.Contains(s, "/") }

// isNumber reads digits that fill a width, and have no more than are needed.
func isNumber(text string, width int, to *int) bool {
	n, err := strconv.Atoi(text)
	*to = n
	return err == nil && n >= 0 && fmt.Sprintf("%0*d", width, n) == text
}
