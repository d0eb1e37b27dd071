package embed

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"google.golang.org/protobuf/proto"

	"github.com/berthhq/berth/internal/own"
)

// lockName is the name of the file in the data directory that a running member locks.
const lockName = "berth.lock"

// lockWait is how long to wait for the lock of a member that has just ended: a child that its process
// was forking has all of its files, and so its locks, until the child has come to exec.
const lockWait = time.Second

// DataDir is a data directory that this process has locked.
type DataDir struct {
	path string
	lock *fileutil.LockedFile
}

// OpenDataDir creates a data directory if it does not exist, and locks it until [DataDir.Close], or
// until the server that has it as [Config.Dir] is closed.
func OpenDataDir(dir string) (*DataDir, error) { return openAs(dir, own.MakeFolder) }

// OpenDataDirOfOwner is [OpenDataDir] for data that the owner of the folder above will use: see
// [own.MakeFolderOfOwner].
func OpenDataDirOfOwner(dir string) (*DataDir, error) { return openAs(dir, own.MakeFolderOfOwner) }

func openAs(dir string, makeFolder func(string) error) (*DataDir, error) {
	lock, err := openDataDir(dir, makeFolder)
	if err != nil {
		return nil, explain(&Config{DataDir: dir}, err)
	}
	return &DataDir{dir, lock}, nil
}

// HasData reports whether the directory has the write-ahead log of a member that has run there or
// was restored.
func (d *DataDir) HasData() bool { return wal.Exist(filepath.Join(d.path, "member", "wal")) }

// Clear moves away the files of a member that ended before it had a write-ahead log, because etcd
// would mistake them for data.
func (d *DataDir) Clear() error {
	member, aside := filepath.Join(d.path, "member"), filepath.Join(d.path, "member.incomplete")
	if _, err := os.Stat(member); errors.Is(err, os.ErrNotExist) || d.HasData() {
		return nil
	}
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	return os.Rename(member, aside)
}

// Identity is which member of which cluster has some data.
type Identity struct {
	ClusterID, MemberID uint64
	// Members are the members of the cluster that the data has: none if a member was stopped before it
	// had any.
	Members []Peer
	// Revision is one that the cluster has reached.
	Revision int64
}

// Peer is a member of a cluster. Name is empty if it has not run.
type Peer struct {
	ID       uint64   `json:"id"`
	Name     string   `json:"name"`
	PeerURLs []string `json:"peerURLs"`
}

// Identity reads whose data the directory has. A member must not run.
func (d *DataDir) Identity() (id Identity, err error) {
	if err := d.readLog(&id); err != nil {
		return id, fmt.Errorf("%w: data directory %s: whose data it has can't be read: %w", ErrDataDir, d.path, err)
	}
	if err := d.readDatabase(&id); err != nil {
		return id, fmt.Errorf("%w: data directory %s: its members can't be read: %w", ErrDataDir, d.path, err)
	}
	return id, nil
}

// readLog reads the ids, with which each file of the write-ahead log begins.
func (d *DataDir) readLog(id *Identity) error {
	files, err := filepath.Glob(filepath.Join(d.path, "member", "wal", "*.wal"))
	if err != nil || len(files) == 0 {
		return errors.Join(err, fs.ErrNotExist)
	}
	f, err := os.Open(files[0])
	if err != nil {
		return err
	}
	defer f.Close()
	log := wal.NewDecoder(fileutil.NewFileReader(f))
	for {
		var record walpb.Record
		if err := log.Decode(&record); err != nil {
			return err
		}
		switch record.GetType() {
		case wal.CrcType:
			log.UpdateCRC(record.GetCrc())
		case wal.MetadataType:
			var of etcdserverpb.Metadata
			if err := proto.Unmarshal(record.GetData(), &of); err != nil {
				return err
			}
			id.ClusterID, id.MemberID = of.GetClusterID(), of.GetNodeID()
			return nil
		}
	}
}

// readDatabase reads the members and the revision.
func (d *DataDir) readDatabase(id *Identity) error {
	path := databaseOf(d.path)
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Millisecond})
	if err != nil {
		return err
	}
	err = db.View(func(tx *bbolt.Tx) error {
		if keys := tx.Bucket(schema.Key.Name()); keys != nil {
			if last, _ := keys.Cursor().Last(); len(last) >= 8 {
				id.Revision = int64(binary.BigEndian.Uint64(last))
			}
		}
		members := tx.Bucket(schema.Members.Name())
		if members == nil {
			return nil
		}
		return members.ForEach(func(_, value []byte) error {
			var one Peer
			err := json.Unmarshal(value, &one)
			id.Members = append(id.Members, one)
			return err
		})
	})
	return errors.Join(err, db.Close())
}

// databaseOf returns the file of the database in a data directory.
func databaseOf(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// Close unlocks the data directory.
func (d *DataDir) Close() error { return d.lock.Close() }

// openDataDir creates the data directory if it does not exist, locks it, and checks whether this
// etcd can read it. etcd itself would wait for ever if another process has the lock, and panic if
// the data is of a newer version.
func openDataDir(dir string, makeFolder func(string) error) (*fileutil.LockedFile, error) {
	if err := makeFolder(dir); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	lock, err := lockDataDir(dir)
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

// lockDataDir locks a data directory, and tries again for [lockWait] while it is locked.
func lockDataDir(dir string) (*fileutil.LockedFile, error) {
	again := time.NewTicker(lockWait / 100)
	defer again.Stop()
	for end := time.After(lockWait); ; {
		lock, err := fileutil.TryLockFile(filepath.Join(dir, lockName), os.O_WRONLY|os.O_CREATE, 0o600)
		if !errors.Is(err, fileutil.ErrLocked) {
			return lock, err
		}
		select {
		case <-again.C:
		case <-end:
			return nil, err
		}
	}
}

// databaseBytes is the size of a new database.
const databaseBytes = 16 << 20

// checkSpace checks whether the disk has the space that a new member needs at once. An existing
// member already has it, and must be able to start so that data can be deleted.
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

// checkDatabase opens the database read-only, as etcd will. This fails at once while another etcd,
// which does not know berth's lock, uses it.
func checkDatabase(dir string) error {
	path := databaseOf(dir)
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
		return fmt.Errorf("%w: %s is not a database of etcd: %w", ErrDataDir, path, err)
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
		return nil // a first start that was interrupted
	}
	data := schema.ReadStorageVersionFromSnapshot(tx)
	own := semver.New(version.Version)
	mine := semver.Version{Major: own.Major, Minor: own.Minor}
	if data == nil || !mine.LessThan(*data) {
		return nil
	}
	return fmt.Errorf("its version is %d.%d, and the version of this etcd is %d.%d", data.Major, data.Minor, mine.Major, mine.Minor)
}
