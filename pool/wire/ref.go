package wire

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
)

// Ref names a slot key or a block of a pool.
type Ref struct {
	Pool string
	// Area of a block; -1 for a slot key.
	Area int
	// Number of a slot key, or the name of a block.
	Number int
}

// IsBlock reports whether it names a block.
func (r Ref) IsBlock() bool { return r.Area >= 0 }

// Compare ranks by pool, slot keys before blocks, and then by area and number, as the keys are sorted.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Pool, o.Pool), cmp.Compare(r.Area, o.Area), cmp.Compare(r.Number, o.Number))
}

// String is the form in which a claim lists its keys: POOL/NUMBER or POOL/b/AREA/NAME.
func (r Ref) String() string { return string(r.append(nil)) }

func (r Ref) append(b []byte) []byte {
	b = append(append(b, r.Pool...), '/')
	if r.IsBlock() {
		b = append(strconv.AppendInt(append(b, blocksPart...), int64(r.Area), 10), '/')
	}
	return strconv.AppendInt(b, int64(r.Number), 10)
}

// Key returns the key that is named.
func (r Ref) Key(k Keys) string {
	if r.IsBlock() {
		return k.Block(r.Pool, r.Area, r.Number)
	}
	return k.Number(r.Pool, r.Number)
}

// ParseRef reads what String has written.
func ParseRef(s string) (Ref, error) {
	name, rest, _ := strings.Cut(s, "/")
	r, err := refOf(name, rest, 1, 1)
	if err != nil {
		return Ref{}, fmt.Errorf("%q does not name a slot", problem.Clip(s))
	}
	return r, nil
}

// refOf reads what is behind the name of a pool: NUMBER or b/AREA/NAME, with areas and numbers of so many digits at least.
func refOf(name, rest string, areaDigits, numberDigits int) (r Ref, err error) {
	r = Ref{Pool: name, Area: -1}
	block, is := strings.CutPrefix(rest, blocksPart)
	if !is {
		r.Number, err = store.ParsePadded(rest, numberDigits, slots.MaxNumbersOfPool)
		return r, cmp.Or(err, pool.ValidateName(name))
	}
	area, of, _ := strings.Cut(block, "/")
	if r.Area, err = store.ParsePadded(area, areaDigits, slots.MaxAreas); err == nil {
		r.Number, err = store.ParsePadded(of, 1, maxName)
	}
	return r, cmp.Or(err, pool.ValidateName(name))
}

func isPool(name string) bool { return pool.ValidateName(name) == nil }
