//go:build !unix || solaris || aix

package lease

import (
	"errors"
	"os"
)

// errLocked is never returned here.
var errLocked = errors.New("locked by another process")

// lockExclusively is refused: without a lock an instance could not be sure to
// be the only one.
func lockExclusively(*os.File) error { return errors.ErrUnsupported }

// unlock has nothing to give up.
func unlock(*os.File) error { return nil }
