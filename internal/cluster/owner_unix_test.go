//go:build unix

package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestWhatRootRestoresBelongsToTheOwnerOfTheDataDirectory(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	file := filepath.Join(t.TempDir(), "snap.db")
	if _, err := dialed(t, embedtest.Cluster(t, 1)).Save(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	const uid, gid = 12345, 12346
	parent := t.TempDir()
	if err := os.Chown(parent, uid, gid); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "etcd")
	if _, err := Restore(file, dir, Member{Name: "a", PeerURL: "http://127.0.0.1:1"}, DefaultBump); err != nil {
		t.Fatal(err)
	}
	files := 0
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		files++
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != uid || owner.Gid != gid {
			t.Errorf("%s belongs to %d:%d", path, owner.Uid, owner.Gid)
		}
		return nil
	}); err != nil || files < 5 {
		t.Errorf("%d files, %v", files, err)
	}
}
