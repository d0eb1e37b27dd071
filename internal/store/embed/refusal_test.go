package embed_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// refused starts a server that must not start, and returns why.
func refused(t *testing.T, cfg embed.Config) error {
	t.Helper()
	if cfg.ClientListen == "" {
		cfg.ClientListen = "127.0.0.1:0"
	}
	cfg.UnsafeNoFsync = true
	s, err := embed.Start(t.Context(), cfg)
	if err == nil {
		t.Fatal("the server starts", s.Close())
	}
	return err
}

// mustBe checks that err is want and names what its reader has to check.
func mustBe(t *testing.T, err, want error, names string) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), names) {
		t.Errorf("start ended with %q, want %q and the words %q", err, want, names)
	}
}

// used returns a data directory that a server has filled and left.
func used(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "etcd")
	s := embedtest.New(t, func(c *embed.Config) { c.DataDir = dir })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func database(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

func TestAnAddressInUseIsRefused(t *testing.T) {
	s := embedtest.New(t)
	addr := s.Addr().String()
	err := refused(t, embed.Config{DataDir: filepath.Join(t.TempDir(), "etcd"), ClientListen: addr})
	mustBe(t, err, embed.ErrAddressInUse, addr)
}

func TestASocketInUseIsRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "etcd.sock")
	s := embedtest.New(t, func(c *embed.Config) { c.ClientListen = socket })
	err := refused(t, embed.Config{DataDir: filepath.Join(t.TempDir(), "etcd"), ClientListen: socket})
	mustBe(t, err, embed.ErrAddressInUse, socket)
	put(t, embedtest.Client(t, s), "k", "the socket is still the first server's")
}

func TestADataDirInUseIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	embedtest.New(t, func(c *embed.Config) { c.DataDir = dir })
	mustBe(t, refused(t, embed.Config{DataDir: dir}), embed.ErrDataDirLocked, dir)
}

func TestADataDirInUseByAnotherEtcdIsRefused(t *testing.T) {
	dir := used(t)
	db, err := bbolt.Open(database(dir), 0o600, nil) // as any etcd opens it
	if err != nil {
		t.Fatal(err)
	}
	mustBe(t, refused(t, embed.Config{DataDir: dir}), embed.ErrDataDirLocked, dir)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	embedtest.New(t, func(c *embed.Config) { c.DataDir = dir })
}

func TestDataOfANewerEtcdIsRefused(t *testing.T) {
	dir := used(t)
	db, err := bbolt.Open(database(dir), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(schema.Meta.Name()).Put(schema.MetaStorageVersionName, []byte("3.99.0"))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	err = refused(t, embed.Config{DataDir: dir})
	mustBe(t, err, embed.ErrDataTooNew, "3.99")
	mustBe(t, err, embed.ErrDataTooNew, dir)
}

func TestACorruptDatabaseIsRefused(t *testing.T) {
	dir := used(t)
	if err := os.WriteFile(database(dir), []byte(strings.Repeat("no database", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	mustBe(t, refused(t, embed.Config{DataDir: dir}), embed.ErrDataDir, database(dir))
}

func TestADataDirThatIsAFileIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mustBe(t, refused(t, embed.Config{DataDir: file}), embed.ErrDataDir, file)
}

func TestADataDirWithoutRightsIsRefused(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	mustBe(t, refused(t, embed.Config{DataDir: dir}), embed.ErrDataDir, dir)
}

func TestSettingsThatMakeNoSenseAreRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	for name, tc := range map[string]struct {
		cfg  embed.Config
		want string
	}{
		"no data dir":        {embed.Config{}, "no data directory"},
		"no port":            {embed.Config{DataDir: dir, ClientListen: "127.0.0.1"}, "missing port"},
		"a name for a host":  {embed.Config{DataDir: dir, ClientListen: "example.org:1"}, "must be an IP address"},
		"a relative socket":  {embed.Config{DataDir: dir, ClientListen: "unix://sock"}, "must be absolute"},
		"TLS on a socket":    {embed.Config{DataDir: dir, ClientListen: "/s", TLS: &embed.TLS{}}, "TLS is not available on a unix socket"},
		"not of the cluster": {embed.Config{DataDir: dir, Name: "x", Members: map[string]string{"y": "127.0.0.1:1"}}, `"x" is not among`},
	} {
		t.Run(name, func(t *testing.T) {
			if err := refused(t, tc.cfg); !strings.Contains(err.Error(), tc.want) {
				t.Errorf("start ended with %q, want the words %q", err, tc.want)
			}
		})
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("a data directory was made all the same")
	}
}
