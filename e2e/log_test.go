package e2e

import (
	"os"

	"github.com/hashicorp/go-hclog"
)

// logVar is a level ("debug") at which clients and servers log to stderr. They
// are silent without it.
const logVar = "BERTH_TEST_LOG"

func logLevel() hclog.Level {
	if l := hclog.LevelFromString(os.Getenv(logVar)); l != hclog.NoLevel {
		return l
	}
	return hclog.Off
}
