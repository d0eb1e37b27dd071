package embed

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Reasons why a member can't start, or has stopped. Test with errors.Is. The complete error names
// the address or the directory.
var (
	// ErrAddressInUse: another process listens at the address.
	ErrAddressInUse = errors.New("address is in use")
	// ErrSocketPath: the path of a unix socket is too long.
	ErrSocketPath = errors.New("path is too long")
	// ErrDataDirLocked: another process serves from the data directory.
	ErrDataDirLocked = errors.New("data directory is in use")
	// ErrDataDir: the data directory can't be made, read or written.
	ErrDataDir = errors.New("data directory is unusable")
	// ErrDiskFull: there is no space for the data.
	ErrDiskFull = errors.New("disk is full")
	// ErrDataTooNew: a newer etcd has written the data.
	ErrDataTooNew = errors.New("data is from a newer etcd")
	// ErrRemoved: the member was removed from its cluster.
	ErrRemoved = errors.New("this member was removed from its cluster")
	// ErrStillStopping: etcd had not stopped when [CloseTimeout] was over.
	ErrStillStopping = errors.New("etcd is still stopping")
)

// explain wraps an error of etcd in one of the errors above, and names what an operator can change.
// It returns other errors, and errors that are already wrapped, unchanged.
func explain(cfg *Config, err error) error {
	switch {
	case err == nil || explained(err):
		return err
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: %w", ErrAddressInUse, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: data directory %s: %w", ErrDiskFull, cfg.DataDir, err)
	case strings.Contains(err.Error(), "invalid downgrade"):
		return fmt.Errorf("%w: data directory %s: %w", ErrDataTooNew, cfg.DataDir, err)
	case strings.Contains(err.Error(), "server is stopping"):
		// etcd reports this when it stops during its start, which has no other cause.
		return fmt.Errorf("%w: %w", ErrRemoved, err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	return err
}

func explained(err error) bool {
	for _, known := range []error{ErrAddressInUse, ErrSocketPath, ErrDataDirLocked, ErrDataDir, ErrDiskFull, ErrDataTooNew, ErrRemoved} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
