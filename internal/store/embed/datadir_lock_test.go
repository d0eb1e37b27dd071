package embed

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/berthhq/berth/internal/own"
)

// A child that is being forked has the lock of a member that has ended for a moment.
func TestALockThatIsGivenUpLateIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	for after, want := range map[time.Duration]error{lockWait / 2: nil, 2 * lockWait: ErrDataDirLocked} {
		synctest.Test(t, func(t *testing.T) {
			child, err := fileutil.TryLockFile(filepath.Join(dir, lockName), os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(after, func() {
				if err := child.Close(); err != nil {
					t.Error(err)
				}
			})
			lock, err := openDataDir(dir, own.MakeFolder)
			if !errors.Is(err, want) {
				t.Errorf("given up after %s: %v, want %v", after, err, want)
			}
			if lock != nil {
				if err := lock.Close(); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(2 * after)
		})
	}
}
