package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestADamagedSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "snap.db")
	if _, err := dialed(t, embedtest.Cluster(t, 1)).Save(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(good)
	changed[len(changed)/2]++
	self := Member{Name: "a", PeerURL: "http://127.0.0.1:1"}
	for name, text := range map[string][]byte{
		"empty": nil, "cut": good[:12000], "cut at a sector": good[:8192+32], "changed": changed,
		"without a checksum": good[:len(good)-32], "a checksum only": good[len(good)-32:],
	} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "etcd")
		_, err := Restore(file, dir, self, DefaultBump)
		var e *problem.Error
		if !errors.As(err, &e) || e.Field != "file" || !strings.Contains(e.Message, "damaged or incomplete") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the data directory was made: %v", name, err)
		}
	}
	var e *problem.Error
	if _, err := ReadSnapshot(t.TempDir()); !errors.As(err, &e) || e.Field != "file" || !strings.Contains(e.Message, "is not a file") {
		t.Errorf("a folder: %v", err)
	}

	// What an interrupted restore has written is removed by the next one.
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "restore-1", "out"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(file, dir, self, DefaultBump); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "restore-*")); err != nil || len(left) > 0 {
		t.Errorf("in the data directory are %v, %v", left, err)
	}
}
