//go:build unix

package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// giveToOwner makes the owner of folder the owner of dir and all its files, if this process is
// root. Otherwise a server that runs as another user could not read them.
func giveToOwner(folder, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	})
}
