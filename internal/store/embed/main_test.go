package embed_test

import (
	"os"
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(fillDiskIn); dir != "" {
		os.Exit(fillDisk(dir))
	}
	embedtest.VerifyTestMain(m)
}
