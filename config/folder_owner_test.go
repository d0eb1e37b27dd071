//go:build unix

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files that root restores get the owner of the data directory, so it may be the folder of another user.
func TestRootMayRestoreToTheDataDirectoryOfTheServersUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder to another user")
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(dir, 65533, 65533); err != nil {
		t.Fatal(err)
	}
	flags := map[string]string{"name": "a", "data_dir": dir}
	if _, err := Load(given{flag: flags}.sources(t), Common, Etcd, Server, Dev, Instance); err != nil {
		t.Errorf("a restore: %v", err)
	}
	if _, err := Load(given{flag: flags}.sources(t), serverGroups...); err == nil || !strings.Contains(err.Error(), "belongs to user ") {
		t.Errorf("a server in the folder of another user: %v", err)
	}
}
