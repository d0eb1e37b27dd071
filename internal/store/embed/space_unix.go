//go:build linux || darwin

package embed

import "golang.org/x/sys/unix"

// freeBytes tells how much this user may still write to the disk of a folder.
func freeBytes(dir string) (uint64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, err
	}
	return disk.Bavail * uint64(disk.Bsize), nil
}
