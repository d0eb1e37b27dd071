//go:build linux

// Package packaging holds what releases are made of: the units of systemd, the settings file
// and the scripts of the Debian and RPM packages, and release.sh, which builds all files of a
// release. Its Go files are tests only.
//
// The tests install, upgrade and remove the Debian package in a clean root, with the scripts
// of the package, and run the commands of its units there. They need root, and Debian with
// dpkg, mmdebstrap and systemd-analyze; with CI=true they fail without.
//
// What needs systemd as process 1 is not tested: that it starts the services, that it applies
// the restrictions in the units, and that Restart=always starts a process again. In the tests
// a process of theirs is systemd: see services.
package packaging

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestMain(m *testing.M) { embedtest.VerifyTestMain(cleanedUp{m}) }

// cleanedUp removes what the tests have built.
type cleanedUp struct{ *testing.M }

func (m cleanedUp) Run() int {
	code := m.M.Run()
	if err := os.RemoveAll(built.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// Two versions. An upgrade is from the first one to the second one.
const (
	oldVersion, oldPackage = "v1.0.0-rc.1", "1.0.0~rc.1"
	newVersion, newPackage = "v1.0.0", "1.0.0"
	// releaseTime is that of all files, in seconds since 1970.
	releaseTime = "1767225600"
)

var built struct {
	sync.Once
	dir string
	err error
}

// release returns a folder with the release of a version for this architecture. The old
// version is in it twice: the second time built from a copy of the source in another folder.
func release(t *testing.T, name string) string {
	t.Helper()
	skipShort(t)
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "berth-release"); built.err != nil {
			return
		}
		built.err = command("sh", "-ec", `
			mkdir "$1/copy"
			tar -C .. --exclude=./.git --exclude=./bin --exclude=./dist --exclude=node_modules -c . | tar -C "$1/copy" -x
			./release.sh "$2" "$4" "$1/old" "$5"
			"$1/copy/packaging/release.sh" "$2" "$4" "$1/again" "$5"
			./release.sh "$3" "$4" "$1/new" "$5"`,
			"sh", built.dir, oldVersion, newVersion, releaseTime, runtime.GOARCH)
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, name)
}

// skipShort skips tests that need a release: other processes do their work, in which the race
// detector sees nothing.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds releases")
	}
}

// command runs a command. The error has its output.
func command(name string, args ...string) error {
	_, err := output(name, args...)
	return err
}

// output runs a command and returns what it prints.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return string(out), nil
}

// need skips a test without these programs, or fails it if CI=true.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing(t, p+" is missing")
		}
	}
}

func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// read returns a file.
func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// units returns the names of the units.
func units(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("systemd/*.service")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no units, %v", err)
	}
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = strings.TrimPrefix(p, "systemd/")
	}
	return names
}
