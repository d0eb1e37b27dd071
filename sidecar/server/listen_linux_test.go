package server

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestTheSocketHasTheModeAndTheGroupOfTheSettings(t *testing.T) {
	own := strconv.Itoa(os.Getgid())
	tests := map[string]struct {
		mode        fs.FileMode
		group, want string
		perm        fs.FileMode
	}{
		"by default":          {0, "", own, 0o660},
		"for all":             {0o666, "", own, 0o666},
		"for one user":        {0o600, own, own, 0o600},
		"for a group of root": {0o660, "65533", "65533", 0o660},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			if test.want != own && os.Geteuid() != 0 {
				t.Skip("only root can give the socket to any group")
			}
			path := filepath.Join(t.TempDir(), "s")
			l, err := Listen(t.Context(), &Config{Socket: path, SocketMode: test.mode, SocketGroup: test.group})
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			gid := strconv.FormatUint(uint64(info.Sys().(*syscall.Stat_t).Gid), 10)
			if info.Mode() != fs.ModeSocket|test.perm || gid != test.want {
				t.Errorf("mode %s, group %s; want %s and %s", info.Mode(), gid, test.perm, test.want)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAGroupThatIsNoneIsRefused(t *testing.T) {
	dir := t.TempDir()
	_, err := Listen(t.Context(), &Config{Socket: filepath.Join(dir, "s"), SocketGroup: "no-such-group"})
	if err == nil || !strings.HasPrefix(err.Error(), "socket_group: ") {
		t.Errorf("the error is %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

func TestASocketInAFolderInWhichOthersCanReplaceItIsRefused(t *testing.T) {
	dir := t.TempDir()
	for mode, refused := range map[fs.FileMode]bool{0o777: true, fs.ModeSticky | 0o777: false, 0o755: false} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		l, err := Listen(t.Context(), &Config{Socket: filepath.Join(dir, "s")})
		if (err != nil) != refused || refused && !strings.HasPrefix(err.Error(), "socket: all users may replace") {
			t.Errorf("mode %s: %v", mode, err)
		}
		if err == nil {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
