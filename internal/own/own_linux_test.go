package own

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// other is a user of the machine that is neither root nor the user of this process.
const other = 65533

// give gives a file to another user.
func give(t *testing.T, path string) {
	t.Helper()
	if err := os.Lchown(path, other, other); err != nil {
		t.Fatal(err)
	}
}

// folder makes a folder with a mode.
func folder(t *testing.T, mode fs.FileMode, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAFolderThatOthersCanChangeIsRefused(t *testing.T) {
	base := t.TempDir()
	link := func(to, name string) string {
		path := filepath.Join(base, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	open := folder(t, 0o777, base, "open")
	sticky := folder(t, fs.ModeSticky|0o777, base, "sticky")
	good := folder(t, 0o700, base, "good")
	for dir, want := range map[string]string{
		good:                                       "",
		folder(t, 0o755, base, "read"):             "",
		filepath.Join(base, "none"):                "",
		filepath.Join(base, "none", "below"):       "",
		folder(t, 0o700, sticky, "below"):          "",
		link(good, "to-good"):                      "",
		open:                                       "all users may write",
		sticky:                                     "all users may write",
		folder(t, 0o700, open, "below"):            "chmod o-w " + open,
		filepath.Join(open, "none"):                "chmod o-w " + open,
		folder(t, 0o700, open, "below", "deep"):    "chmod o-w " + open,
		link(open, "to-open"):                      "chmod o-w " + open,
		filepath.Join(link(open, "via"), "none"):   "chmod o-w " + open,
		link(filepath.Join(open, "below"), "into"): "chmod o-w " + open,
	} {
		if err := Folder(dir); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
	if err := SocketFolder(sticky); err != nil {
		t.Errorf("a socket in a folder with the sticky bit: %v", err)
	}
	if err := SocketFolder(open); err == nil {
		t.Error("a socket in a folder that all may write")
	}
}

func TestAFolderOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to other users")
	}
	base := t.TempDir()
	theirs := folder(t, 0o755, base, "theirs")
	give(t, theirs)
	if err := Folder(theirs); err == nil || !strings.Contains(err.Error(), "belongs to user ") || !strings.Contains(err.Error(), "choose a folder of your own") {
		t.Error(err)
	}
	if err := MakeFolder(theirs); err == nil {
		t.Error("it is made")
	}
	good := folder(t, 0o700, base, "good")
	link := filepath.Join(base, "link")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	give(t, link)
	for _, dir := range []string{link, filepath.Join(link, "below")} {
		if err := Folder(dir); err == nil || !strings.Contains(err.Error(), "is a link of user ") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	below := folder(t, 0o700, theirs, "below")
	sticky := folder(t, fs.ModeSticky|0o755, base, "sticky")
	give(t, sticky)
	for _, dir := range []string{below, filepath.Join(theirs, "none"), filepath.Join(below, "none"), filepath.Join(sticky, "none")} {
		for check, of := range map[string]func(string) error{"state": Folder, "a socket": SocketFolder} {
			if err := of(dir); err == nil || !strings.Contains(err.Error(), "can replace what is in it") {
				t.Errorf("%s, whose owner can replace what is in it, for %s: %v", dir, check, err)
			}
		}
	}
	if err := SocketFolder(theirs); err == nil {
		t.Error("a socket in it")
	}
	shared := folder(t, 0o770, base, "shared")
	if err := os.Chown(shared, 0, other); err != nil {
		t.Fatal(err)
	}
	if err := Folder(shared); err == nil || !strings.Contains(err.Error(), "chmod g-w") {
		t.Error(err)
	}
	made := filepath.Join(base, "made", "below")
	if err := MakeFolder(made); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

// The volumes of pods have that mode.
func TestAVolumeThatAllMayWriteIsTaken(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0777"); err != nil {
		t.Skipf("nothing can be mounted: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	for _, at := range []string{dir, filepath.Join(dir, "below"), folder(t, 0o700, dir, "made")} {
		if err := Folder(at); err != nil {
			t.Error(err)
		}
	}
	if err := SocketFolder(dir); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(dir, fs.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	if err := Folder(dir); err == nil {
		t.Error("one that is shared as /tmp is taken")
	}
	if err := Folder(folder(t, 0o777, dir, "open")); err == nil {
		t.Error("a folder in it that all may write is taken")
	}
}

func TestASocketOfAnotherUserInASharedFolderIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to other users")
	}
	base := t.TempDir()
	listen := func(dir string, theirs bool) string {
		path := filepath.Join(dir, "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if theirs {
			give(t, path)
		}
		return path
	}
	shared := func(name string) string { return folder(t, fs.ModeSticky|0o777, base, name) }
	closed := func(name string) string { return folder(t, 0o755, base, name) }
	for path, refused := range map[string]bool{
		listen(shared("a"), true): true, listen(shared("b"), false): false, listen(closed("c"), true): false, filepath.Join(base, "none"): false,
	} {
		if err := Socket(path); (err != nil) != refused {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestRootMakesAFolderForTheOwnerOfTheOneAbove(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files to other users")
	}
	base := t.TempDir()
	theirs := folder(t, 0o700, base, "theirs")
	give(t, theirs)
	below := folder(t, 0o700, theirs, "below")
	give(t, below)
	open := folder(t, 0o777, base, "open")
	give(t, open)
	third := folder(t, 0o700, theirs, "third")
	if err := os.Lchown(third, other-1, other-1); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(theirs, "link")
	if err := os.Symlink(base, link); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		filepath.Join(base, "none"):   "",
		filepath.Join(theirs, "none"): "",
		below:                         "",
		filepath.Join(open, "none"):   "chmod o-w " + open,
		filepath.Join(below, "deep"):  "belongs to",
		third:                         "is not a folder of",
		link:                          "is not a folder of",
	} {
		err := MakeFolderOfOwner(dir)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
}
