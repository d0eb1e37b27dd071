package ui

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/pool"
)

// FuzzNumbersOnPages writes numbers and times that can be any.
func FuzzNumbersOnPages(f *testing.F) {
	for _, n := range []int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64, int64(200 * 365 * 24 * time.Hour)} {
		f.Add(n, n)
		f.Add(n, int64(0))
		f.Add(int64(0), n)
		f.Add(int64(1), n)
	}
	f.Fuzz(func(t *testing.T, a, b int64) {
		bar := string(barHTML(a, b))
		if strings.Contains(bar, "NaN") || strings.Contains(bar, `width="-`) {
			t.Errorf("%d of %d is %s", a, b, bar)
		}
		if got := level(a, b); a > 0 && b > 0 && a >= b && got != "full" {
			t.Errorf("%d of %d is %s", a, b, got)
		}
		_ = plural(a, "slot", "slots") + plural(uint64(a), "slot", "slots")
		at, now := time.Unix(a, b), time.Unix(b, a)
		for _, future := range []bool{false, true} {
			if got := relative(at, now, future); strings.Contains(got, "-") {
				t.Errorf("%s is %q at %s", at, got, now)
			}
			_ = timeHTML(at, map[bool]string{false: "ago", true: "in"}[future], future)
		}
		for _, open := range []bool{false, true} {
			axis := timeAxis{From: at, To: now}
			axis.mark(open)
			if len(axis.Marks) == 0 || len(axis.Marks) > axisMarks+1 {
				t.Errorf("from %s to %s there are %d marks", at, now, len(axis.Marks))
			}
			axis.bar(timeSpan{kind: waiting, from: at, to: now})
		}
		freed := limitEffects(pool.Detail{Status: pool.Status{Claimed: int(a)}}, int(b))
		if len(freed) == 0 {
			t.Error("a limit has no effect")
		}
	})
}
