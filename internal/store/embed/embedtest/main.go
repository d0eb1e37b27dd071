package embedtest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"go.uber.org/goleak"
)

// peerTimeout is longer than the 5 s after which the connections between
// members of a stopped cluster end: etcd leaves those to their read timeout.
const peerTimeout = 10 * time.Second

// VerifyTestMain runs the tests of a package and fails if goroutines are left.
// It is goleak's own function, but patient enough for packages that use
// [Cluster].
func VerifyTestMain(m goleak.TestingM, opts ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := left(opts); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// ManyAtOnce has n parallel tests run at a time, also where there are fewer
// processors, for packages whose parallel tests wait nearly all of their time, mostly
// for leases to end: two processors would be idle with one test each. Under the race
// detector, where each does several times the work, it is so many as racing says. It
// is called before the tests are run; -parallel says otherwise.
func ManyAtOnce(n, racing int) {
	if raceDetector {
		n = racing
	}
	n = max(n, runtime.GOMAXPROCS(0))
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(fmt.Sprintf("embedtest: %v", err)) // it is testing's own
	}
}

// left waits for goroutines to end, and returns those that do not. One look of
// goleak takes about a second if it finds any.
func left(opts []goleak.Option) error {
	for begin := time.Now(); ; {
		err := goleak.Find(opts...)
		if err == nil || time.Since(begin) > peerTimeout {
			return err
		}
	}
}
