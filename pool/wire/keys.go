package wire

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
)

// Keys spells the keys of pools.
type Keys struct{ store.Keys }

const (
	slotsPart   = "/slots/"
	blocksPart  = "b/"
	demandsPart = "/demands/"
	// numberWidth is the width of a number in a key, so that keys are sorted as numbers are: the highest limit is 1,000,000.
	numberWidth = 6
	// areaWidth is that of an area, of which a pool has at most 50.
	areaWidth = 2
	// maxName bounds the number in a block's name: 4,096 instances begin 64 apart, and a name is in use once.
	maxName = 1_000_000
)

// Number is the slot key of a number of a pool.
func (k Keys) Number(pool string, number int) string {
	b := make([]byte, 0, len(k.Pools())+len(pool)+len(slotsPart)+numberWidth)
	b = append(append(append(b, k.Pools()...), pool...), slotsPart...)
	return string(store.AppendPadded(b, number, numberWidth))
}

// Numbers returns the range of the slot keys of a run of numbers.
func (k Keys) Numbers(pool string, r slots.Run) (from, to string) {
	from = k.Number(pool, r.From)
	if r.To >= slots.MaxNumbersOfPool {
		return from, k.Blocks(pool) // which are the only keys behind them
	}
	return from, k.Number(pool, r.To)
}

// Blocks is the prefix of all blocks of a pool. The keys before it, below [store.Keys.Slots], are slot keys.
func (k Keys) Blocks(pool string) string { return k.Slots(pool) + blocksPart }

// Area is the prefix of the blocks of an area.
func (k Keys) Area(pool string, area int) string {
	return string(append(store.AppendPadded([]byte(k.Blocks(pool)), area, areaWidth), '/'))
}

// Block is the key of a block.
func (k Keys) Block(pool string, area, name int) string {
	return k.Area(pool, area) + strconv.Itoa(name)
}

// Demands is the prefix of the demands of an instance in a pool.
func (k Keys) Demands(pool, host, instance string) string {
	return k.DemandsAll(pool) + host + "/" + instance + "/"
}

// Demand is the key that d names.
func (k Keys) Demand(d DemandKey) string {
	return k.Demands(d.Pool, d.Host, d.Instance) + strconv.Itoa(d.Name)
}

// DemandKey returns what a demands key names. It is an error for other keys.
func (k Keys) DemandKey(key string) (d DemandKey, err error) {
	rest, ok := strings.CutPrefix(key, k.Pools())
	pool, rest, more := strings.Cut(rest, demandsPart)
	d.Pool = pool
	d.Host, rest, _ = strings.Cut(rest, "/")
	var name string
	d.Instance, name, _ = strings.Cut(rest, "/")
	d.Name, err = store.ParsePadded(name, 1, maxName)
	named := isPool(pool) && isPool(d.Host) && isPool(d.Instance)
	if !ok || !more || err != nil || !named {
		return DemandKey{}, fmt.Errorf("key %q is not one of demands", key)
	}
	return d, nil
}

// Role is the key of the instance that dispatches.
func (k Keys) Role() string { return k.Dispatcher() + "role" }

// Mark is the key of the dispatcher's sign of life.
func (k Keys) Mark() string { return k.Dispatcher() + "mark" }

// Ref returns what a slot key or a block of any pool refers to. It is an error for other keys.
func (k Keys) Ref(key string) (Ref, error) {
	pool, rest, ok := strings.Cut(strings.TrimPrefix(key, k.Pools()), slotsPart)
	if !ok || !strings.HasPrefix(key, k.Pools()) {
		return Ref{}, fmt.Errorf("key %q is not one of a slot", key)
	}
	r, err := refOf(pool, rest, areaWidth, numberWidth)
	if err != nil {
		return Ref{}, fmt.Errorf("key %q is not one of a slot", key)
	}
	return r, nil
}
