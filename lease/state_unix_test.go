//go:build unix && !solaris && !aix

package lease

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A child that is being forked has all files of its parent for a moment, the lock
// among them. That does not keep the next from the directory.
func TestAStateDirectoryIsFreeAtOnceWhateverIsBeingForked(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	child, err := unix.Dup(int(s.lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
}
