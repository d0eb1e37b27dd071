package storetest

import (
	"iter"
	"os"
	"strconv"
	"strings"
)

// SeedsVar has tests of random schedules run others than those of each test run: "BERTH_SCHEDULES=1000+500" is 500 from seed 1000 on.
const SeedsVar = "BERTH_SCHEDULES"

// Seeds returns the seeds of n random schedules, and whether they are the usual ones: those from 0 on, and not those that
// [SeedsVar] names.
func Seeds(n uint64) (all iter.Seq[uint64], usual bool) {
	from, usual := uint64(0), true
	if a, b, ok := strings.Cut(os.Getenv(SeedsVar), "+"); ok {
		from, _ = strconv.ParseUint(a, 10, 64)
		n, _ = strconv.ParseUint(b, 10, 64)
		usual = false
	}
	return func(yield func(uint64) bool) {
		for seed := from; seed < from+n && yield(seed); seed++ {
		}
	}, usual
}
