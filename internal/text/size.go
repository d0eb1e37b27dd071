package text

import (
	"math"
	"strconv"
	"strings"
)

// sizeUnits are those of sizes, the largest first.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// ParseSize reads a number of bytes: 0, 500MiB, 1.5GiB. It is false for what is none.
func ParseSize(text string) (bytes int64, ok bool) {
	unit := int64(1)
	for _, u := range sizeUnits {
		if number, found := strings.CutSuffix(text, u.name); found {
			text, unit = number, u.bytes
		}
	}
	if strings.Trim(text, "0123456789.") != "" { // neither signs, nor exponents, nor blanks
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	if size := n * float64(unit); err == nil && size < math.MaxInt64 && size == math.Trunc(size) {
		return int64(size), true
	}
	return 0, false
}

// Size returns a number of bytes as [ParseSize] reads it, in the largest unit of which it is a
// multiple.
func Size(n int64) string {
	for _, u := range sizeUnits {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
