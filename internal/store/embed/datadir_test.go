package embed_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/berthhq/berth/internal/store/embed"
)

func TestWhatAMemberHasLeftThatNeverRanIsNoData(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	// etcd makes it before it asks the cluster that it joins.
	if err := os.WriteFile(filepath.Join(dir, "member", "snap", "db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := embed.OpenDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d.HasData() {
		t.Error("it counts as data")
	}
	if _, err := embed.OpenDataDir(dir); !errors.Is(err, embed.ErrDataDirLocked) {
		t.Errorf("two processes have it: %v", err)
	}
	if err := d.Clear(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "member")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("etcd would take it for data: %v", err)
	}
	server, err := embed.Start(t.Context(), embed.Config{DataDir: dir, Dir: d, ClientListen: "127.0.0.1:0", UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	if !d.HasData() {
		t.Error("a member that runs has no data")
	}
	runs := server.Identity()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := embed.OpenDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Clear(); err != nil || !again.HasData() {
		t.Errorf("the data of a member is moved away: %v", err)
	}
	id, err := again.Identity()
	if err != nil {
		t.Fatal(err)
	}
	if id.ClusterID == 0 || id.MemberID == 0 || len(id.Members) != 1 || id.Members[0].Name != embed.DefaultName || len(id.Members[0].PeerURLs) != 1 {
		t.Errorf("the data is of %+v", id)
	}
	if id.Revision = runs.Revision; !reflect.DeepEqual(id, runs) {
		t.Errorf("the data is of %+v, and a member with it is %+v", id, runs)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
