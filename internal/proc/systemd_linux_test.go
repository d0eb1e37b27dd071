package proc

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSystemdIsNotified(t *testing.T) {
	for what, path := range map[string]string{
		"a path":             filepath.Join(t.TempDir(), "notify"),
		"an abstract socket": fmt.Sprintf("@berth-test-%d", os.Getpid()),
	} {
		t.Run(what, func(t *testing.T) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			t.Setenv("NOTIFY_SOCKET", path)
			for _, state := range []string{Ready, Stopping} {
				if err := Notify(state); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 64)
				if n, err := l.Read(got); err != nil || string(got[:n]) != state {
					t.Errorf("systemd got %q, %v; want %s", got[:n], err, state)
				}
			}
		})
	}
}

func TestWithoutSystemdNothingIsNotified(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify(Ready); err != nil {
		t.Error(err)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if err := Notify(Ready); err == nil {
		t.Error("a socket that nothing listens on was notified")
	}
}

func TestTheJournalIsRecognizedByItsFile(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var s unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &s); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[string]bool{
		fmt.Sprintf("%d:%d", s.Dev, s.Ino): true, fmt.Sprintf("%d:%d", s.Dev, s.Ino+1): false, "": false, "x": false,
	} {
		t.Setenv("JOURNAL_STREAM", stream)
		if got := IsJournal(file); got != want {
			t.Errorf("JOURNAL_STREAM=%s: %t", stream, got)
		}
	}
}
