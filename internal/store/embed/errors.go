package embed

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Why a member can't start, or why it stopped. Test with errors.Is; the whole
// error names the address or the directory, and says what to do.
var (
	// ErrAddressInUse: something else listens at the address.
	ErrAddressInUse = errors.New("address is in use")
	// ErrDataDirLocked: another process serves from the data directory.
	ErrDataDirLocked = errors.New("data directory is in use")
	// ErrDataDir: the data directory can't be made, read or written.
	ErrDataDir = errors.New("data directory is unusable")
	// ErrDiskFull: there is no space for the data.
	ErrDiskFull = errors.New("disk is full")
	// ErrDataTooNew: a newer etcd has written the data.
	ErrDataTooNew = errors.New("data is from a newer etcd")
	// ErrStillStopping: etcd had not stopped when [CloseTimeout] was over.
	ErrStillStopping = errors.New("etcd is still stopping")
)

// explain turns an error of etcd into one that names what its reader can
// change. An error that is explained already stays as it is.
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
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	return err
}

func explained(err error) bool {
	for _, known := range []error{ErrAddressInUse, ErrDataDirLocked, ErrDataDir, ErrDiskFull, ErrDataTooNew} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
