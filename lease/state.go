package lease

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthhq/berth/internal/own"
	"github.com/berthhq/berth/internal/problem"
)

const (
	lockFile  = "lock"
	tokenFile = "token"
	// tokenBytes makes tokens that are never the same by chance.
	tokenBytes = 16
)

// State is the state directory of an instance that can be resumed: the process that has
// it open is the instance. It holds nothing but a lock and a token; all other
// state is in etcd.
type State struct {
	lock  *os.File
	token string
}

// OpenState takes the directory, which it makes if there is none. A directory
// that another process has open is refused with [problem.HostInUse]. The lock
// goes with the process, however that ends.
func OpenState(dir string) (*State, error) {
	if err := own.Folder(dir); err != nil {
		return nil, problem.Field("state_dir", "%w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, unwritable(err)
	}
	if err := own.Folder(dir); err != nil { // another user may have made it meanwhile
		return nil, problem.Field("state_dir", "%w", err)
	}
	lock, err := takeLock(dir)
	if err != nil {
		return nil, err
	}
	token, err := loadToken(dir)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &State{lock: lock, token: token}, nil
}

// Token is the token that marks the instance's leases: the same for every
// process that opens the directory.
func (s *State) Token() string { return s.token }

// Close gives the directory up.
func (s *State) Close() error { return errors.Join(unlock(s.lock), s.lock.Close()) }

// takeLock locks the directory, and writes the process id into it for the message of
// a second process. The file stays for ever: a lock on a removed file would lock
// nothing.
func takeLock(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := lockExclusively(f); err != nil {
		if errors.Is(err, errLocked) {
			err = problem.New(problem.HostInUse,
				"state directory %s is in use by process %s: stop that one, or give this one another name (--name of a worker, else --host and --state-dir)", dir, lockOwner(f))
		} else {
			err = fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	_ = writeOwner(f) // a full disk is no reason to fail: the message of a second process is then less precise
	return f, nil
}

func writeOwner(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// lockOwner reads who has the lock.
func lockOwner(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil || len(text) == 0 {
		return "(unknown)"
	}
	return strings.TrimSpace(string(text))
}

// loadToken reads the token, or makes one in a new directory.
func loadToken(dir string) (string, error) {
	path := filepath.Join(dir, tokenFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeToken(dir)
	}
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	token, err := parseToken(text)
	if err != nil {
		return "", problem.New(problem.Invalid,
			"%s can't be used: %w; remove it to start afresh, after the leases of the earlier process have ended", path, err)
	}
	return token, nil
}

// ReadToken returns the token in a state directory, which another process may have open. Its error wraps
// [fs.ErrNotExist] if there is none.
func ReadToken(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, tokenFile))
	if err != nil {
		return "", err
	}
	return parseToken(text)
}

// makeToken writes a new token such that a crash leaves it whole or not at all.
func makeToken(dir string) (string, error) {
	token := newToken()
	path := filepath.Join(dir, tokenFile)
	err := writeFile(path+".new", token+"\n")
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return "", unwritable(err)
	}
	return token, nil
}

// unwritable makes a problem of why a directory can't be made an instance's.
func unwritable(err error) error {
	todo := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		todo = "free disk space, or "
	case errors.Is(err, fs.ErrPermission):
		todo = "run berth as a user that may write there, or "
	}
	return problem.New(problem.StateUnwritable, "state directory: %w; %sname another with --state-dir", err, todo)
}

func writeFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func newToken() string {
	b := make([]byte, tokenBytes)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

var errNoToken = fmt.Errorf("it does not hold a token of %d hexadecimal digits", 2*tokenBytes)

// parseToken reads what newToken made, with or without an end of line.
func parseToken(text []byte) (string, error) {
	token := strings.TrimSuffix(string(text), "\n")
	b, err := hex.DecodeString(token)
	if err != nil || len(b) != tokenBytes || hex.EncodeToString(b) != token {
		return "", errNoToken
	}
	return token, nil
}
