//go:build linux

package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestMain(m *testing.M) {
	if tool := etcdTools[filepath.Base(os.Args[0])]; tool != nil {
		if err := tool(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	embedtest.VerifyTestMain(cleanedUp{m})
}

// cleanedUp removes what the tests have built.
type cleanedUp struct{ *testing.M }

func (m cleanedUp) Run() int {
	code := m.M.Run()
	if err := removeBuilt(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}
