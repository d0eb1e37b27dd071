package e2e

import (
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
	embedtest.VerifyTestMain(tidied{m})
}

// tidied removes what tests share.
type tidied struct{ *testing.M }

func (m tidied) Run() int {
	defer removeBinary()
	return m.M.Run()
}
