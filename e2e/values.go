package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// The values of keys, as far as a judge needs them: read here once more, and not
// by the engine's decoders, so that both can't be wrong in the same way.

// layout is the version of the values that are judged here.
const layout = 2

// maxNumber bounds the numbers of a pool.
const maxNumber = 1_000_000

type holder struct {
	Host     string `json:"host"`
	Instance string `json:"instance"`
	Step     string `json:"step"`
}

// instanceID names an instance.
type instanceID struct{ host, instance string }

func (h holder) id() instanceID { return instanceID{h.Host, h.Instance} }

type specValue struct {
	V      int  `json:"v"`
	Limit  *int `json:"limit"`
	Paused bool `json:"paused"`
}

type claimRecord struct {
	Pools  map[string]int `json:"pools"`
	Holder holder         `json:"holder"`
	Keys   []string       `json:"keys"`
	Fence  store.Fence    `json:"fence"`
}

// demandRef names a demand by its key, the revision that created that, and its index there.
type demandRef struct {
	Pool    string `json:"pool"`
	Name    int    `json:"name"`
	Created int64  `json:"created"`
	Index   int    `json:"index"`
}

// blockValue is what a block has: numbers from the first to the one behind the last of each run, or a count.
type blockValue struct {
	Runs  [][2]int `json:"runs"`
	Count int      `json:"count"`
}

type slotValue struct {
	V int `json:"v"`
	blockValue
	Claim  string       `json:"claim"`
	Record *claimRecord `json:"record"`
	Main   string       `json:"main"`
	Demand *demandRef   `json:"demand"`
}

type demandValue struct {
	Index    int            `json:"index"`
	Claim    string         `json:"claim"`
	Pools    map[string]int `json:"pools"`
	Priority int            `json:"priority"`
	Stamp    *stamp         `json:"stamp"`
	Reserve  bool           `json:"reserve"`
	Sole     bool           `json:"sole"`
	Holder   holder         `json:"holder"`
}

type stamp struct {
	Revision int64 `json:"revision"`
	Index    int   `json:"index"`
}

type demandsValue struct {
	V       int           `json:"v"`
	Demands []demandValue `json:"demands"`
	First   string        `json:"first"`
}

type takeValue struct {
	Numbers []int        `json:"numbers"`
	Blocks  []blockValue `json:"blocks"`
}

type offersValue struct {
	V      int `json:"v"`
	Offers []struct {
		Demand demandRef            `json:"demand"`
		Take   map[string]takeValue `json:"take"`
	} `json:"offers"`
}

// Dispatcher is the value of the key of the dispatcher's role.
type Dispatcher struct {
	V        int    `json:"v"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// TakeOvers are when the role was taken from one that was silent, in the last minute.
	TakeOvers []time.Time `json:"take_overs"`
}

// ReadDispatcher reads the value of the key of the dispatcher's role.
func ReadDispatcher(value []byte) (Dispatcher, error) {
	return read(value, func(d *Dispatcher) int { return d.V })
}

// read decodes a value and refuses other versions.
func read[T any](data []byte, version func(*T) int) (T, error) {
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		return v, err
	}
	if n := version(&v); n != layout {
		return v, fmt.Errorf("it has version %d", n)
	}
	return v, nil
}

func readSpec(data []byte) (specValue, error) {
	v, err := read(data, func(v *specValue) int { return v.V })
	if err == nil && v.Limit == nil {
		err = errors.New("it has no limit")
	}
	return v, err
}

// readSlot reads the value of a slot key or a block.
func readSlot(k berthKey, data []byte) (slotValue, error) {
	v, err := read(data, func(v *slotValue) int { return v.V })
	block := len(v.Runs) > 0 || v.Count != 0
	switch {
	case err != nil:
		return v, err
	case v.Claim == "":
		return v, errors.New("it belongs to no claim")
	case (v.Record == nil) == (v.Main == ""):
		return v, errors.New("it must have either a record or point to one")
	case block != (k.Kind == blockKey):
		return v, errors.New("a block holds numbers or a count, and a slot key neither")
	}
	if !block {
		v.Runs = [][2]int{{k.Number, k.Number + 1}}
	}
	return v, v.check()
}

func (b *blockValue) check() error {
	if len(b.Runs) > 0 && b.Count != 0 || len(b.Runs) == 0 && b.Count < 1 {
		return errors.New("it holds either numbers or a count")
	}
	end := 0
	for _, r := range b.Runs {
		if r[0] < end || r[1] <= r[0] || r[1] > maxNumber {
			return fmt.Errorf("its numbers do not ascend at %v", r)
		}
		end = r[1]
	}
	return nil
}

// n is how many slots it holds.
func (b *blockValue) n() int {
	n := b.Count
	for _, r := range b.Runs {
		n += r[1] - r[0]
	}
	return n
}

// readDemands reads the demands of a key.
func readDemands(k berthKey, data []byte) (demandsValue, error) {
	v, err := read(data, func(v *demandsValue) int { return v.V })
	if err == nil && (len(v.Demands) == 0) == (v.First == "") {
		err = errors.New("it must have either demands or the first of their pools")
	}
	last := -1
	for _, d := range v.Demands {
		switch {
		case err != nil:
		case d.Claim == "" || d.Pools[k.Pool] == 0:
			err = errors.New("a demand must name a claim and need the pool of its key")
		case d.Index <= last:
			err = errors.New("indexes must ascend")
		}
		last = d.Index
	}
	return v, err
}

// keyOf spells the key that a claim lists as POOL/NUMBER or POOL/b/AREA/NAME.
func keyOf(keys store.Keys, listed string) (string, error) {
	parts := strings.Split(listed, "/")
	switch {
	case len(parts) == 2:
		n, err := strconv.Atoi(parts[1])
		return numberKey(keys, parts[0], n), err
	case len(parts) == 4 && parts[1] == "b":
		area, err := strconv.Atoi(parts[2])
		return fmt.Sprintf("%sb/%02d/%s", keys.Slots(parts[0]), area, parts[3]), err
	}
	return "", fmt.Errorf("%q names no slot", listed)
}
