package embedtest

import (
	"fmt"
	"os"
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
