package house

import (
	"os/exec"
	"strings"
	"testing"
)

// dependencies returns the packages that a program is built of, its own
// included.
func dependencies(t *testing.T, program string) []string {
	t.Helper()
	tree(t) // so that the test runs again when a file has changed
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", program)
	cmd.Dir = root
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v\n%s", program, err, complaint.String())
	}
	return strings.Fields(string(out))
}
