package embed_test

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testcert"
)

func TestADiskThatIsFullAtTheStartIsRefused(t *testing.T) {
	dir := smallDisk(t, "1m")
	mustBe(t, refused(t, embed.Config{DataDir: dir}), embed.ErrDiskFull, dir)
}

func TestADiskThatFillsUpIsReportedAndLosesNothing(t *testing.T) {
	dir := smallDisk(t, "40m")
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fillDiskIn+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	acknowledged, err := strconv.Atoi(string(out))
	if err != nil || acknowledged == 0 {
		t.Fatalf("%q writes were acknowledged", out)
	}

	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=256m"); err != nil {
		t.Fatal(err)
	}
	c := embedtest.Client(t, embedtest.New(t, func(c *embed.Config) { c.DataDir = dir }))
	for n := range acknowledged {
		if get(t, c, diskKey(n)) == "" {
			t.Errorf("write %d of %d was acknowledged and is gone", n, acknowledged)
		}
	}
}

// Containers and services have a read-only working directory.
func TestAMemberNeedsNoWritableWorkingDirectory(t *testing.T) {
	authority := testcert.New(t)
	pair, data := authority.Server(t), t.TempDir()
	dir := smallDisk(t, "1m")
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	s, err := embed.Start(t.Context(), embed.Config{
		DataDir: data, ClientListen: "127.0.0.1:0", UnsafeNoFsync: true,
		TLS: &embed.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: authority.File},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// smallDisk mounts a disk of a size for a test, where the test may.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		t.Skipf("may not mount a small disk here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
