//go:build unix

package config

import (
	"errors"
	"os"
	"syscall"
)

// errOwner is returned for a folder of another user, and for one that other users can change.
var errOwner = errors.New("the folder belongs to another user")

// checkOwner returns an error unless a folder belongs to the user of this process alone.
func checkOwner(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if of, ok := info.Sys().(*syscall.Stat_t); !ok || int(of.Uid) != os.Geteuid() || info.Mode()&0o022 != 0 {
		return errOwner
	}
	return nil
}
