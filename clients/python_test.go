//go:build linux

package clients_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The tests of the Python client run against the binary of this checkout.
func TestPythonClient(t *testing.T) {
	if testing.Short() {
		t.Skip("the tests run other processes: there is nothing to see for the race detector")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("python3 is missing: the tests of the Python client need it")
		}
		t.Skip("python3 is missing: the tests of the Python client need it")
	}
	berth := filepath.Join(t.TempDir(), "berth")
	if out, err := exec.Command("go", "build", "-o", berth, "../cmd/berth").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	files, err := filepath.Glob("python/tests/test_*.py")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no tests: %v", err)
	}
	for _, file := range files {
		module := strings.TrimSuffix(filepath.Base(file), ".py")
		t.Run(module, func(t *testing.T) {
			t.Parallel()
			run(t, berth, python, "-W", "error::ResourceWarning", "-m", "unittest", "tests."+module)
		})
	}
	t.Run("types", func(t *testing.T) {
		t.Parallel()
		if exec.Command(python, "-m", "mypy", "--version").Run() != nil {
			t.Skip("mypy is missing: the types are not checked")
		}
		run(t, berth, python, "-m", "mypy", "--strict", "--cache-dir", t.TempDir(), "berth")
	})
}

// run runs a command in the folder of the Python client, and requires that it succeeds.
func run(t *testing.T, berth, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = "python"
	cmd.Env = []string{
		"BERTH_BIN=" + berth, "PYTHONDONTWRITEBYTECODE=1",
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PYTHONPATH=" + os.Getenv("PYTHONPATH"),
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
