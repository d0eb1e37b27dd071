//go:build unix

package own

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// othersWrite and groupWrites are the bits of a mode by which others, and the group, may write.
const othersWrite, groupWrites = 0o002, 0o020

// Folder returns why a folder is none in which to keep state: it, or what leads to it, is another
// user's or may be changed by others. A folder that does not exist is judged by what leads to it.
func Folder(dir string) error { return walk(dir, checkFolder) }

// SocketFolder returns why a folder is none for a socket: others may replace the socket.
func SocketFolder(dir string) error { return walk(dir, checkParent) }

// MakeFolder makes a folder for state if it does not exist. Its error is that of [Folder], or why the
// folder can't be made.
func MakeFolder(dir string) error {
	if err := Folder(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return Folder(dir) // another user may have made it meanwhile
}

// MakeFolderOfOwner is [MakeFolder] for what the owner of the folder above will use. If this process is root, that
// may be any user, but nobody else: what leads there must be root's, and others may not write to it.
func MakeFolderOfOwner(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	parent := filepath.Dir(dir)
	above, err := os.Lstat(parent)
	if err != nil || os.Geteuid() != 0 || isOwn(above) || !above.IsDir() {
		return MakeFolder(dir)
	}
	if err := walk(filepath.Dir(parent), checkParent); err != nil {
		return err
	}
	if mode := above.Mode(); mode&othersWrite != 0 {
		return fmt.Errorf("all users may write to %s (mode %04o): run chmod o-w %s, or choose another folder", parent, mode.Perm(), parent)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || !isOwn(info) && OwnerOf(info) != OwnerOf(above) {
		return fmt.Errorf("%s is not a folder of %s, as %s is: choose another folder", dir, OwnerOf(above), parent)
	}
	return nil
}

// Socket returns why a socket is none to connect to: it is another user's, in a folder in which any user
// can make one.
func Socket(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return nil // to connect tells why
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	folder, err := os.Stat(filepath.Dir(real))
	if err != nil || isOwn(info) || folder.Mode()&othersWrite == 0 || isVolume(filepath.Dir(real), folder) {
		return nil
	}
	return fmt.Errorf("%s belongs to %s, and is in a folder in which all users may make a socket: use one of your own, or one in a folder that only its owner may write", path, OwnerOf(info))
}

// walk checks each link and folder on the way to a folder, and the folder itself with last.
func walk(dir string, last func(string, fs.FileInfo) error) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	rest := strings.Split(strings.Trim(dir, "/"), "/")
	if dir == "/" {
		rest = nil
	}
	at := "/"
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return nil // it does not exist, or can't be reached: to make it tells why
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			if !isOwn(info) {
				return fmt.Errorf("%s is a link of %s, who can let it lead elsewhere: choose a folder without such a link", next, OwnerOf(info))
			}
			to, err := filepath.EvalSymlinks(next)
			if err != nil {
				return nil
			}
			if err := walk(to, checkParent); err != nil {
				return err
			}
			next = to
			if info, err = os.Stat(next); err != nil {
				return err
			}
		}
		check := checkParent
		if len(rest) == 0 {
			check = last
		}
		if err := check(next, info); err != nil {
			return err
		}
		at = next
	}
	return nil
}

// checkParent returns why others can replace what is in a folder. Its owner can, whatever its mode is.
func checkParent(dir string, info fs.FileInfo) error {
	if !isOwn(info) {
		return fmt.Errorf("%s belongs to %s, who can replace what is in it: choose a folder elsewhere, or run berth as that user", dir, OwnerOf(info))
	}
	if mode := info.Mode(); mode&othersWrite != 0 && mode&fs.ModeSticky == 0 && !isVolume(dir, info) {
		return fmt.Errorf("all users may replace what is in %s (mode %04o): run chmod o-w %s, or choose another folder", dir, mode.Perm(), dir)
	}
	return nil
}

// checkFolder returns why a folder is none for state.
func checkFolder(dir string, info fs.FileInfo) error {
	mode := info.Mode()
	if !isOwn(info) {
		return fmt.Errorf("%s belongs to %s: choose a folder of your own, or run berth as that user", dir, OwnerOf(info))
	}
	if isVolume(dir, info) {
		return nil
	}
	if mode&othersWrite != 0 {
		return fmt.Errorf("all users may write to %s (mode %04o): run chmod o-w %s, or choose another folder", dir, mode.Perm(), dir)
	}
	if of := info.Sys().(*syscall.Stat_t); mode&groupWrites != 0 && of.Gid != 0 && int(of.Gid) != os.Getegid() {
		return fmt.Errorf("the users of group %d may write to %s (mode %04o): run chmod g-w %s, or choose another folder", of.Gid, dir, mode.Perm(), dir)
	}
	return nil
}

// isVolume reports whether a folder is the top of a file system that was mounted for this purpose, as
// the volumes of containers are: all their users are those of the pod, and the mode is often 0777 because
// its users are not known when it is made. /tmp, which all users of a host share, has the sticky bit.
func isVolume(dir string, info fs.FileInfo) bool {
	above, err := os.Stat(filepath.Dir(dir))
	if err != nil || info.Mode()&fs.ModeSticky != 0 || !isOwn(info) {
		return false
	}
	of, ok := info.Sys().(*syscall.Stat_t)
	parent, parentOK := above.Sys().(*syscall.Stat_t)
	return ok && parentOK && of.Dev != parent.Dev
}

// isOwn reports whether a file belongs to the user of this process, or to root.
func isOwn(info fs.FileInfo) bool {
	of, ok := info.Sys().(*syscall.Stat_t)
	return ok && (of.Uid == 0 || int(of.Uid) == os.Geteuid() || of.Uid == unmapped())
}

// nobody is whose files seem to be, in a user namespace, that belong to users outside it.
const nobody = 65534

// noUser is the number of no user.
const noUser = ^uint32(0)

// unmapped returns the number of the owner of files of users outside the user namespace of this process,
// where root is one of them; noUser if there are no such users.
var unmapped = sync.OnceValue(func() uint32 {
	text, err := os.ReadFile("/proc/self/uid_map")
	if fields := strings.Fields(string(text)); err != nil || len(fields) == 3 && fields[0] == "0" && fields[1] == "0" {
		return noUser
	}
	return nobody
})

// OwnerOf says whose a file is.
func OwnerOf(info fs.FileInfo) string {
	of, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "another user"
	}
	id := strconv.FormatUint(uint64(of.Uid), 10)
	if found, err := user.LookupId(id); err == nil {
		return "user " + found.Username
	}
	return "user " + id
}
