package house

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// TestMain leaves the rules out of short runs: they read source files, in which the race detector
// finds nothing, but takes 15 times as long.
func TestMain(m *testing.M) {
	if flag.Parse(); testing.Short() {
		fmt.Println("the rules are checked by tests that are not short")
		os.Exit(0)
	}
	os.Exit(m.Run())
}
