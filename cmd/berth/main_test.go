//go:build linux

package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// raceVar is the variable that configures the race detector. raceOptions has commands exit
// without a delay at the end of main: what still runs concurrently then is irrelevant.
const raceVar, raceOptions = "GORACE", "atexit_sleep_ms=0"

// The test binary is berth and its helper too, when it is called by their names.
func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"berth": main, "job": jobMain})
}

// leakChecked fails tests that leave goroutines behind.
type leakChecked struct{ *testing.M }

func (m leakChecked) Run() int {
	embedtest.ManyAtOnce(8, 2)
	// Under the race detector each command would end a second later.
	if err := os.Setenv(raceVar, raceOptions); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// A hang-up that nohup has the tests ignore would be ignored by all that they
	// start: what is caught here is as usual there.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	code := m.M.Run()
	signal.Stop(hangup)
	if code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", err)
		return 1
	}
	return 0
}
