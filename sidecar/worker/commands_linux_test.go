package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
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

// The tokens of steps and of claims of the same slots are compared with each other.
func TestACommandHasTheFencingTokenOfItsSlots(t *testing.T) {
	taken := &step.Taken{Instance: step.Instance{Revision: 7}}
	if want := fmt.Sprintf("BERTH_FENCE=%d", store.FenceAt(7)); !slices.Contains(environment(taken), want) {
		t.Errorf("the environment is %q, without %s", environment(taken), want)
	}
}
