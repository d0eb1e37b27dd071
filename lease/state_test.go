package lease

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berthhq/berth/internal/problem"
)

func open(t *testing.T, dir string) *State {
	t.Helper()
	s, err := OpenState(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAStateDirectoryKeepsItsToken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	first := open(t, dir)
	token := first.Token()
	if _, err := parseToken([]byte(token)); err != nil {
		t.Errorf("token %q: %v", token, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := open(t, dir)
	defer second.Close()
	if second.Token() != token {
		t.Errorf("token %q became %q", token, second.Token())
	}
	other := open(t, t.TempDir())
	defer other.Close()
	if other.Token() == token {
		t.Error("two directories have one token")
	}
}

func TestAStateDirectoryIsForItsOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	defer open(t, dir).Close()
	for file, want := range map[string]fs.FileMode{".": 0o700 | fs.ModeDir, tokenFile: 0o600, lockFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %s, want %s", file, info.Mode(), want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, tokenFile+".new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the token's first copy is left: %v", err)
	}
}

func TestASecondProcessIsRefusedAStateDirectory(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	_, err := OpenState(dir)
	if problem.CodeOf(err) != problem.HostInUse {
		t.Fatalf("error %v", err)
	}
	for _, part := range []string{dir, "process " + strconv.Itoa(os.Getpid()), "another name"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the message %q does not tell %q", err, part)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
}

func TestACorruptTokenIsReported(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "short": "00ff\n", "long": testToken + "00", "upper": strings.ToUpper(testToken),
		"no hex": strings.Repeat("z", 32), "two lines": testToken + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, tokenFile)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := OpenState(dir)
			if problem.CodeOf(err) != problem.Invalid || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove it") {
				t.Fatalf("error %v", err)
			}
			if kept, _ := os.ReadFile(path); string(kept) != text {
				t.Error("the file was changed")
			}
			if err := os.Remove(path); err != nil { // as the message says
				t.Fatal(err)
			}
			open(t, dir).Close()
		})
	}
}

func TestAnInterruptedStartLeavesNoHalfToken(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, tokenFile+".new"), []byte("0011"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	defer s.Close()
	if text, _ := os.ReadFile(filepath.Join(dir, tokenFile)); string(text) != s.Token()+"\n" {
		t.Errorf("the file holds %q", text)
	}
}

func TestTheErrorOfAStateDirectorySaysWhatHelps(t *testing.T) {
	for want, err := range map[string]error{
		"; run berth as a user that may write there, or name another with --state-dir": &fs.PathError{Op: "mkdir", Path: "/d", Err: syscall.EACCES},
		"; free disk space, or name another with --state-dir":                          &fs.PathError{Op: "write", Path: "/d", Err: syscall.ENOSPC},
		"no space is not the reason; name another with --state-dir":                    errors.New("no space is not the reason"),
	} {
		if text := unwritable(err).Error(); !strings.HasSuffix(text, want) {
			t.Errorf("%q does not end with %q", text, want)
		}
	}
}

func TestAStateDirectoryThatCannotBeMadeIsReported(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenState(filepath.Join(file, "state")); problem.CodeOf(err) != problem.StateUnwritable || !strings.Contains(err.Error(), "state directory") {
		t.Errorf("error %v", err)
	}
}
