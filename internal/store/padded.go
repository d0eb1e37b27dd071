package store

import (
	"fmt"
	"strconv"
)

// AppendPadded appends a number with at least width digits, so that keys of one prefix are sorted as their numbers are.
func AppendPadded(b []byte, n, width int) []byte {
	for most := 10; width > 1; width, most = width-1, most*10 {
		if n < most {
			b = append(b, '0')
		}
	}
	return strconv.AppendInt(b, int64(n), 10)
}

// ParsePadded reads what AppendPadded has written, below a bound, and no other spelling: no two keys mean the same.
func ParsePadded(s string, width, bound int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n >= bound || string(AppendPadded(nil, n, width)) != s {
		return 0, fmt.Errorf("%q is not a number below %d with at least %d digits", s, bound, width)
	}
	return n, nil
}
