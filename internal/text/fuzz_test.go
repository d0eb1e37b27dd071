package text

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var (
	number   = regexp.MustCompile(`^-?[0-9]{1,3}(,[0-9]{3})*$`)
	duration = regexp.MustCompile(`^-?[0-9.]+[dhmsµn]+([0-9]+[hms])?$`)
)

// extremes are the numbers at which arithmetic overflows, and their neighbors.
var extremes = []int64{
	math.MinInt64, math.MinInt64 + 1, math.MaxInt64, math.MaxInt64 - 1, math.MinInt32, math.MaxInt32, math.MaxUint32,
	-1000, -999, -1, 0, 1, 999, 1000,
}

// FuzzNumbers writes numbers that can be any: each is written once, and can be read back.
func FuzzNumbers(f *testing.F) {
	for _, n := range extremes {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, n int64) {
		got := Number(n)
		back, err := strconv.ParseInt(strings.ReplaceAll(got, ",", ""), 10, 64)
		if err != nil || back != n || !number.MatchString(got) {
			t.Errorf("%d is written as %q", n, got)
		}
		if count := Count(int(n), "slot"); n != 1 && count != got+" slots" {
			t.Errorf("%d slots are written as %q", n, count)
		}
	})
}

// FuzzDurations writes durations that can be any, and times that are any duration apart.
func FuzzDurations(f *testing.F) {
	for _, n := range extremes {
		f.Add(n, n)
		f.Add(n, int64(0))
		f.Add(int64(0), n)
	}
	f.Fuzz(func(t *testing.T, d, from int64) {
		for _, got := range []string{Duration(time.Duration(d)), About(time.Duration(d))} {
			if !duration.MatchString(got) || strings.HasPrefix(got, "-") && d > 0 {
				t.Errorf("%d ns are written as %q", d, got)
			}
		}
		now := time.Unix(from, d)
		for _, at := range []time.Time{now.Add(time.Duration(d)), time.Unix(d, from), time.UnixMilli(d)} {
			got := Ago(now, at)
			if past := strings.TrimSuffix(got, " ago"); got != "" && got != "now" && (past == got || !duration.MatchString(past) || past[0] == '-') {
				t.Errorf("%s is written as %q at %s", at, got, now)
			}
		}
	})
}

// FuzzTexts cuts and spells out texts that can be any, at lengths that can be any.
func FuzzTexts(f *testing.F) {
	for _, most := range []int{math.MinInt, -1, 0, 1, 2, 3, 4, math.MaxInt} {
		f.Add("aäöü\xff\u202e\x00", most)
	}
	f.Fuzz(func(t *testing.T, s string, most int) {
		cut, within := Cut(s, most), CutWithin(s, most)
		if len(s) > most && (len(cut) > max(most, 0)+len("…") || len(within) > max(most, len("…"))) {
			t.Errorf("%q cut to %d bytes is %q, or %q", s, most, cut, within)
		}
		if !utf8.ValidString(Visible(s)) {
			t.Errorf("%q is spelled out as %q", s, Visible(s))
		}
		if few := Few(strings.Split(s, "\x00"), most); len(few) == 0 {
			t.Errorf("of %q, %d are %q", s, most, few)
		}
	})
}
