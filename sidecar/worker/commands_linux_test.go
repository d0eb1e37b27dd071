package worker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthhq/berth/coordinator/step"
)

// A worker that was killed as it began a command has left a folder, and the next one
// begins it.
func TestACommandThatWasNotBegunIsNone(t *testing.T) {
	c := &Commands{}
	dir := filepath.Join(t.TempDir(), jobFolder)
	if j, err := c.Open(dir, &step.Taken{}); j != nil || err != nil {
		t.Errorf("no folder: %v, %v", j, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if j, err := c.Open(dir, &step.Taken{}); j != nil || err != nil {
		t.Errorf("an empty folder: %v, %v", j, err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is in the way of the next: %v", err)
	}
}
