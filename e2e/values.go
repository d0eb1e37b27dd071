package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/store"
)

// The values of keys, as far as a judge needs them: read here once more, and not
// by the engine's decoders, so that both can't be wrong in the same way.

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
}

type slotValue struct {
	V      int          `json:"v"`
	N      int          `json:"n"`
	Record *claimRecord `json:"record"`
	Claim  string       `json:"claim"`
	Main   string       `json:"main"`
}

type waiterValue struct {
	V       int            `json:"v"`
	Pools   map[string]int `json:"pools"`
	Holder  holder         `json:"holder"`
	Reserve bool           `json:"reserve"`
	Sole    bool           `json:"sole"`
	Lease   int64          `json:"lease"` // of its owner, for its slots
}

// read decodes a value and refuses other versions.
func read[T any](data []byte, version func(*T) int) (T, error) {
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		return v, err
	}
	if n := version(&v); n != 1 {
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

func readSlot(data []byte) (slotValue, error) {
	v, err := read(data, func(v *slotValue) int { return v.V })
	switch {
	case err != nil:
	case v.N < 1:
		err = fmt.Errorf("it holds %d slots", v.N)
	case v.Claim == "":
		err = errors.New("it belongs to no claim")
	case v.Record == nil && v.Main == "":
		err = errors.New("it has no record and points to none")
	}
	return v, err
}

func readWaiter(data []byte) (waiterValue, error) {
	return read(data, func(v *waiterValue) int { return v.V })
}

// claimOf is the claim that an order names: what is behind its priority and its
// revision.
func claimOf(order string) (string, error) {
	place, instance, named := strings.Cut(order, "+")
	parts := strings.SplitN(place, "-", 3)
	if len(parts) != 3 || parts[2] == "" || !named || instance == "" {
		return "", fmt.Errorf("%q is no place in a wait queue", order)
	}
	return parts[2], nil
}

// keyOf spells the key that a claim lists as pool/group/index.
func keyOf(keys store.Keys, listed string) (string, error) {
	parts := strings.Split(listed, "/")
	if len(parts) != 3 {
		return "", fmt.Errorf("%q names no slot", listed)
	}
	group, errG := strconv.Atoi(parts[1])
	index, errI := strconv.Atoi(parts[2])
	return oldSlotOf(keys, parts[0], group, index), errors.Join(errG, errI)
}
