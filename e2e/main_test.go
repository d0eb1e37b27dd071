package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// TestMain runs the tests; or, in a process that a test has started, the part
// that the test gave it.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(play(role))
	}
	// Under the race detector each process would end a second later.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	embedtest.ManyAtOnce(8, 2)
	embedtest.VerifyTestMain(tidied{m})
}

// tidied removes what tests share.
type tidied struct{ *testing.M }

func (m tidied) Run() int {
	defer removeBinary()
	return m.M.Run()
}
