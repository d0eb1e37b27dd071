// Package text writes durations, counts and texts of users for people. The CLI,
// the HTTP API, the pages and the logs use it, so that one value reads the same
// in all of them. It depends on no other package.
package text

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Duration writes a duration in its two largest units: 4m30s, 1d2h. Below ten
// seconds it has tenths if they are not zero, and below one second milliseconds.
func Duration(d time.Duration) string {
	switch {
	case d == math.MinInt64:
		return Duration(d + 1) // it has no opposite
	case d < 0:
		return "-" + Duration(-d)
	case d > 0 && d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	for i, u := range units {
		if d < u.size {
			continue
		}
		s := strconv.FormatInt(int64(d/u.size), 10) + u.name
		if i+1 < len(units) {
			if rest := d % u.size / units[i+1].size; rest > 0 {
				s += strconv.FormatInt(int64(rest), 10) + units[i+1].name
			}
		}
		return s
	}
	return "0s"
}

// About writes a duration that is an estimate: rounded to seconds below ten
// minutes, to minutes below two hours, and to hours from there on.
func About(d time.Duration) string {
	unit := time.Second
	switch {
	case d >= 2*time.Hour:
		unit = time.Hour
	case d >= 10*time.Minute:
		unit = time.Minute
	}
	return Duration(d.Round(unit))
}

// Ago writes how long before now a time was: "5m ago". A time less than a second
// ago, or ahead of now because clocks of hosts differ, is "now". The zero time is
// empty.
func Ago(now, t time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero():
		return ""
	case d < time.Second:
		return "now"
	}
	return About(d) + " ago"
}

// Number writes an integer with commas: 12,345.
func Number(n int64) string {
	s := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Count writes a number with its noun, in the plural if it is not 1: 1 slot,
// 2 slots.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Number(int64(n)) + " " + noun + "s"
}

// Cut returns s, or its first bytes and an ellipsis if it is longer than most
// bytes. The result is longer than most by the ellipsis.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:max(most, 0)], "") + "…"
}

// CutWithin is [Cut] with a result of at most most bytes, ellipsis included, which is
// all that is left if most is too short for more.
func CutWithin(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return Cut(s, max(most, len("…"))-len("…"))
}

// Visible spells out the characters of a text that would not be seen, or that
// would mislead a reader, such as marks that change the direction of writing. Line
// breaks and tabs stay.
func Visible(s string) string {
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	s = strings.ReplaceAll(s, "\r\n", "\n")
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r < ' ':
			b.WriteString("^" + string('@'+r)) // as terminals do: ^[ is an escape
		case r == 0x7f:
			b.WriteString("^?")
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}

// hidden reports whether a rune is spelled out. [unicode.ReplacementChar] stands
// for bytes that are not UTF-8.
func hidden(r rune) bool {
	return r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == unicode.ReplacementChar
}

// Few returns the first names, with how many more there are if there are more than most.
func Few(names []string, most int) []string {
	most = max(most, 0)
	if more := len(names) - most; more > 0 {
		return append(names[:most:most], fmt.Sprintf("%d more", more))
	}
	return names
}
