package wire

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
)

const (
	// MaxOffers and MaxOfferKeys bound what one offers key offers: claims, and the keys that they take.
	MaxOffers    = 32
	MaxOfferKeys = 64
	// advancePrefix begins the name of an advance offer, which ends with the name of its pool.
	advancePrefix = "advance~"
	passedName    = "passed"
)

// DemandRef names a demand: its key in the first of its pools, the revision that created that key, and its index there.
type DemandRef struct {
	Pool    string `json:"pool"`
	Name    int    `json:"name"`
	Created int64  `json:"created"`
	Index   int    `json:"index"`
}

func (d DemandRef) valid() bool {
	named := d.Name >= 0 && d.Name < maxName && d.Index >= 0
	return named && isPool(d.Pool) && d.Created > 0
}

// append appends the field of a [Slot] that names the demand, if it names one.
func (d DemandRef) append(b []byte) []byte {
	if d == (DemandRef{}) {
		return b
	}
	b = append(append(append(b, `,"demand":{"pool":"`...), d.Pool...), `","name":`...)
	b = strconv.AppendInt(append(strconv.AppendInt(b, int64(d.Name), 10), `,"created":`...), d.Created, 10)
	return append(strconv.AppendInt(append(b, `,"index":`...), int64(d.Index), 10), '}')
}

// Offer offers slots to the owner of a demand, or refuses the demand.
type Offer struct {
	Demand DemandRef `json:"demand"`
	// Take is what the demand may take of each pool, under the compares that it lists.
	Take map[string]Take `json:"take,omitempty"`
	// Refused is set if a pool that the demand needs does not exist: its owner checks that.
	Refused bool `json:"refused,omitempty"`
}

// Take is what may be taken of a pool.
type Take struct {
	Numbers []int   `json:"numbers,omitempty"`
	Blocks  []Block `json:"blocks,omitempty"`
	// Spec is the revision of the spec, and Areas the revisions at which the blocks of areas are known.
	Spec  int64      `json:"spec"`
	Areas [][2]int64 `json:"areas,omitempty"`
}

// Block is a block that may be put.
type Block struct {
	Area  int      `json:"area,omitempty"`
	Name  int      `json:"name"`
	Runs  [][2]int `json:"runs,omitempty"`
	Count int      `json:"count,omitempty"`
}

// TakeOf returns what may be taken as it is offered.
func TakeOf(h slots.Held) Take {
	t := Take{Numbers: h.Numbers, Spec: h.Spec}
	for _, b := range h.Blocks {
		block := Block{Area: b.Area, Name: b.Name}
		for _, r := range b.Runs {
			block.Runs = append(block.Runs, [2]int{r.From, r.To})
		}
		if len(b.Runs) == 0 {
			block.Count = b.Count
		}
		t.Blocks = append(t.Blocks, block)
	}
	for _, a := range h.Areas {
		t.Areas = append(t.Areas, [2]int64{int64(a.Area), a.Revision})
	}
	return t
}

// Held returns what is offered.
func (t Take) Held() (slots.Held, error) {
	h := slots.Held{Numbers: t.Numbers, Spec: t.Spec}
	for _, n := range t.Numbers {
		if n < 0 || n >= slots.MaxNumbersOfPool {
			return h, fmt.Errorf("numbers must be from 0 to %d, and not %d", slots.MaxNumbersOfPool-1, n)
		}
	}
	for _, b := range t.Blocks {
		if b.Area < 0 || b.Area >= slots.MaxAreas || b.Name < 0 || b.Name >= maxName {
			return h, errors.New("blocks: an area or a name is out of range")
		}
		v := slotValue{Runs: b.Runs, Count: b.Count}
		block, err := v.block(Ref{Area: b.Area, Number: b.Name}, 0)
		if err != nil {
			return h, fmt.Errorf("blocks: %w", err)
		}
		h.Blocks = append(h.Blocks, block)
	}
	for _, a := range t.Areas {
		if whole := a[0] == slots.WholePool && len(t.Areas) == 1; !whole && (a[0] < 0 || a[0] >= slots.MaxAreas) || a[1] < 1 {
			return h, fmt.Errorf("areas: %d is not an area that is known at a revision", a)
		}
		h.Areas = append(h.Areas, slots.Area{Area: int(a[0]), Revision: a[1]})
	}
	if t.Spec < 1 || h.Slots() == 0 {
		return h, errors.New("it must take slots, under a spec")
	}
	return h, nil
}

// offersValue is the value of an offers key in etcd.
type offersValue struct {
	store.V
	Offers []Offer `json:"offers"`
}

// EncodeOffers returns the value of an offers key.
func EncodeOffers(list []Offer) []byte { return store.Encode(offersValue{V: now, Offers: list}) }

// DecodeOffers reads the value of an offers key.
func DecodeOffers(key string, data []byte) ([]Offer, error) {
	var v offersValue
	if err := store.DecodeVersion(Version, key, data, &v); err != nil {
		return nil, err
	}
	if err := checkOffers(v.Offers); err != nil {
		return nil, &store.CorruptError{Key: key, Reason: fmt.Errorf("offers: %w", err)}
	}
	return v.Offers, nil
}

func checkOffers(list []Offer) error {
	if len(list) < 1 || len(list) > MaxOffers {
		return fmt.Errorf("a key must have 1 to %d", MaxOffers)
	}
	for _, o := range list {
		if !o.Demand.valid() {
			return errors.New("demand must name one")
		}
		if (len(o.Take) > 0) == o.Refused || len(o.Take) > pool.MaxPools {
			return errors.New("each must either take slots or refuse them")
		}
		for name, t := range o.Take {
			if !isPool(name) {
				return errors.New("take must name pools")
			}
			if _, err := t.Held(); err != nil {
				return fmt.Errorf("take: %s: %w", name, err)
			}
		}
	}
	return nil
}

// Offers is the prefix of the offers to an instance.
func (k Keys) Offers(host, instance string) string { return k.OffersTo(host) + instance + "/" }

// OfferKey names a key below offers/: an offers key, an advance offer, or the sign that an instance is passed.
type OfferKey struct {
	Host, Instance string
	// Name is the number of an offers key, and -1 for the others.
	Name int
	// Advance is the pool of an advance offer.
	Advance string
}

// Passed reports whether it names the sign that an instance is passed.
func (o OfferKey) Passed() bool { return o.Name < 0 && o.Advance == "" }

// Offer is the key that o names.
func (k Keys) Offer(o OfferKey) string {
	prefix := k.Offers(o.Host, o.Instance)
	switch {
	case o.Advance != "":
		return prefix + advancePrefix + o.Advance
	case o.Passed():
		return prefix + passedName
	}
	return prefix + strconv.Itoa(o.Name)
}

// OfferKey returns what a key below offers/ names.
func (k Keys) OfferKey(key string) (o OfferKey, err error) {
	rest, ok := strings.CutPrefix(key, k.OffersAll())
	o.Host, rest, _ = strings.Cut(rest, "/")
	var name string
	o.Instance, name, _ = strings.Cut(rest, "/")
	if advance, is := strings.CutPrefix(name, advancePrefix); is {
		o.Name, o.Advance, ok = -1, advance, ok && isPool(advance)
	} else if name == passedName {
		o.Name = -1
	} else {
		o.Name, err = store.ParsePadded(name, 1, maxName)
	}
	if !ok || err != nil || !isPool(o.Host) || !isPool(o.Instance) {
		return OfferKey{}, fmt.Errorf("key %q is not one of offers", key)
	}
	return o, nil
}
