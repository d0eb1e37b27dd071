package lease

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A sidecar is often restarted because its disk is full, and keeps its claims.
func TestAStateDirectoryOnAFullDiskIsTakenAgain(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skipf("no file system of a few pages can be made: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	s := open(t, dir)
	token := s.Token()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, lockFile), 0); err != nil { // as in a start that came to here
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	s = open(t, dir)
	if s.Token() != token {
		t.Error("it has another token")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
