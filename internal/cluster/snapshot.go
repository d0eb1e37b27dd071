package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	save "go.etcd.io/etcd/client/v3/snapshot"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
)

// Snapshot describes a file with the state of a cluster.
type Snapshot struct {
	File     string `json:"file"`
	Revision int64  `json:"revision"`
	Keys     int    `json:"keys"`
	Bytes    int64  `json:"bytes"`
	Version  string `json:"version"`
}

// ReadSnapshot checks a snapshot file, and returns its description.
func ReadSnapshot(file string) (*Snapshot, error) {
	if err := checkSum(file); err != nil {
		return nil, err
	}
	s, err := snapshot.NewV3(zap.NewNop()).Status(file)
	if err != nil {
		return nil, problem.Field("file", "%s is not a valid snapshot: %w", file, err)
	}
	return &Snapshot{File: file, Revision: s.Revision, Keys: s.TotalKey, Bytes: s.TotalSize, Version: s.Version}, nil
}

// checkSum verifies the checksum at the end of a snapshot. etcd's own reader would crash on a file
// whose end is missing.
func checkSum(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return problem.Field("file", "%w", err)
	}
	if !info.Mode().IsRegular() {
		return problem.Field("file", "%s is not a file with a snapshot", file)
	}
	// The database, which precedes the checksum, consists of whole sectors.
	if info.Size()%sectorBytes != sha256.Size || info.Size() < sectorBytes {
		return problem.Field("file", "%s is damaged or incomplete: it does not end with a checksum", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return problem.Field("file", "%w", err)
	}
	defer f.Close()
	sum, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(sum, f, info.Size()-sha256.Size); err != nil {
		return problem.Field("file", "%w", err)
	}
	if _, err := io.ReadFull(f, want); err != nil {
		return problem.Field("file", "%w", err)
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return problem.Field("file", "%s is damaged or incomplete: its checksum does not match", file)
	}
	return nil
}

// sectorBytes divides the size of every database.
const sectorBytes = 512

// Save writes a snapshot of a healthy member, preferably not the leader, to a file that must not
// exist yet. The file appears only when it is complete.
func (c *Client) Save(ctx context.Context, file string) (*Snapshot, error) {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return nil, problem.Field("file", "%s exists: choose another name", file)
	}
	from, err := c.quiet(ctx)
	if err != nil {
		return nil, err
	}
	cfg := clientv3.Config{
		Endpoints: []string{from}, Username: c.cfg.Username, Password: c.cfg.Password, DialTimeout: requestTimeout, Logger: zap.NewNop(),
	}
	if c.cfg.TLS != nil {
		cfg.TLS = c.cfg.TLS()
	}
	if _, err := save.SaveWithVersion(ctx, zap.NewNop(), cfg, file); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil, problem.Field("file", "%w", err)
		}
		return nil, c.problem(err, "the snapshot is not complete")
	}
	return ReadSnapshot(file)
}

// quiet returns the client address of a healthy member, if possible not the leader.
func (c *Client) quiet(ctx context.Context) (string, error) {
	s, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	var at string
	for _, m := range s.Members {
		if (m.Status == Healthy || m.Status == NoLeader) && (at == "" || !m.Leader) {
			at = m.at
		}
	}
	if at == "" {
		return "", problem.New(problem.EtcdUnavailable, "no member of the cluster answers")
	}
	return at, nil
}

// DefaultBump is how far revisions jump ahead in a restore. It must exceed the number of writes
// since the snapshot: this is eleven days of 10,000 writes per second. Fencing tokens allow 800
// such restores.
const DefaultBump = 10_000_000_000

// Restore creates the data of a new cluster from a snapshot, in a data directory without data. Its
// only member is self; members of the old cluster can't join it with their data. Revisions continue
// at bump above the revision of the snapshot, and older revisions count as compacted, so fencing
// tokens never repeat, and watches notice that history is missing. If root calls Restore, the data
// gets the owner of the folder that contains the data directory.
func Restore(file, dir string, self Member, bump uint64) (*Snapshot, error) {
	s, err := ReadSnapshot(file)
	if err != nil {
		return nil, err
	}
	locked, err := embed.OpenDataDirOfOwner(dir)
	if err != nil {
		return nil, err
	}
	defer locked.Close()
	if locked.HasData() {
		return nil, problem.Field("data_dir", "%s already has data: stop the server, and move that folder away", dir)
	}
	if err := locked.Clear(); err != nil {
		return nil, problem.Field("data_dir", "%w", err)
	}
	if err := removeHalves(dir); err != nil {
		return nil, problem.Field("data_dir", "%w", err)
	}
	// An interrupted restore must not count as data.
	half, err := os.MkdirTemp(dir, halfPrefix)
	if err != nil {
		return nil, problem.Field("data_dir", "%w", err)
	}
	out := filepath.Join(half, "out")
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: self.Name, OutputDataDir: out, PeerURLs: []string{self.PeerURL},
		InitialCluster: self.Name + "=" + self.PeerURL, InitialClusterToken: "restored-" + rand.Text(),
		RevisionBump: bump, MarkCompacted: true,
	})
	if err != nil {
		err = problem.Field("file", "it can't be restored: %w", err)
	} else if err = place(filepath.Join(out, "member"), dir); err != nil {
		err = problem.Field("data_dir", "%w", err)
	}
	if err = errors.Join(err, os.RemoveAll(half)); err != nil {
		return nil, err
	}
	return s, nil
}

// halfPrefix is the prefix of folders in which a restore is in progress.
const halfPrefix = "restore-"

// removeHalves removes the folders of interrupted restores.
func removeHalves(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), halfPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// place moves the data of a member to a data directory and sets its owner. When it returns, the
// data survives a crash of the host.
func place(member, dir string) error {
	parent := filepath.Dir(dir)
	if err := giveToOwner(parent, dir); err != nil {
		return err
	}
	if err := os.Rename(member, filepath.Join(dir, filepath.Base(member))); err != nil {
		return err
	}
	return errors.Join(syncFolder(dir), syncFolder(parent))
}

func syncFolder(dir string) error {
	f, err := fileutil.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(fileutil.Fsync(f), f.Close())
}
