package embed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// lockName is the file in the data directory that a running member has locked.
const lockName = "berth.lock"

// openDataDir makes the data directory if need be, locks it, and checks whether
// this etcd can read it. etcd itself would wait for ever where
// another process has the lock, and panic over data of a newer version.
func openDataDir(dir string) (*fileutil.LockedFile, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	lock, err := fileutil.TryLockFile(filepath.Join(dir, lockName), os.O_WRONLY|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, fmt.Errorf("%w: another process serves etcd from %s", ErrDataDirLocked, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	if err := errors.Join(checkSpace(dir), checkDatabase(dir)); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// databaseBytes is what a database takes when it is new.
const databaseBytes = 16 << 20

// checkSpace checks whether the disk has the space that a new member takes at
// once. An old member has that already, and may start in order to be emptied.
func checkSpace(dir string) error {
	if wal.Exist(filepath.Join(dir, "member", "wal")) {
		return nil
	}
	free, err := freeBytes(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	need := uint64(2*wal.SegmentSizeBytes + databaseBytes) // a log, and the next one
	if free < need {
		return fmt.Errorf("%w: data directory %s: %d MB are free, %d MB are needed to begin with",
			ErrDiskFull, dir, free>>20, need>>20)
	}
	return nil
}

// checkDatabase opens the database next to etcd, for reading only: this fails at
// once while an etcd that knows nothing of our lock is using it.
func checkDatabase(dir string) error {
	path := filepath.Join(dir, "member", "snap", "db")
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Millisecond})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%w: another etcd serves from %s", ErrDataDirLocked, dir)
	}
	if err != nil {
		return fmt.Errorf("%w: %s is no database of etcd: %w", ErrDataDir, path, err)
	}
	err = db.View(checkVersion)
	if err != nil {
		err = fmt.Errorf("%w: data directory %s: %w", ErrDataTooNew, dir, err)
	}
	return errors.Join(err, db.Close())
}

// checkVersion fails if a newer etcd has written the database. etcd can read
// everything older: it refuses that itself, where it can't.
func checkVersion(tx *bbolt.Tx) error {
	if tx.Bucket(schema.Meta.Name()) == nil {
		return nil // a first start that did not get far
	}
	data := schema.ReadStorageVersionFromSnapshot(tx)
	own := semver.New(version.Version)
	mine := semver.Version{Major: own.Major, Minor: own.Minor}
	if data == nil || !mine.LessThan(*data) {
		return nil
	}
	return fmt.Errorf("it is of version %d.%d, and this etcd is %d.%d", data.Major, data.Minor, mine.Major, mine.Minor)
}
