package proc

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// peerSocket is the socket to which a process of this test connects.
const peerSocket = "BERTH_TEST_PEER"

// TestMain is the main function of such a process, too. It has ended when its standard input is closed.
func TestMain(m *testing.M) {
	path := os.Getenv(peerSocket)
	if path == "" {
		os.Exit(m.Run())
	}
	if _, err := net.Dial("unix", path); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	os.Exit(0)
}

// peer starts a process that connects to a socket, and returns the connection.
func peer(t *testing.T, sys *syscall.SysProcAttr) (*net.UnixConn, *exec.Cmd, func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.SysProcAttr, cmd.Stderr = append(os.Environ(), peerSocket+"="+path), sys, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("such a process can't be started: %v", err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	end := func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UnixConn), cmd, end
}

func TestAPeerOfTheSameNamespaceSharesPIDs(t *testing.T) {
	conn, _, end := peer(t, nil)
	if !PeerSharesPIDs(conn, Accepted()) || !PeerSharesPIDs(conn, 0) {
		t.Error("it does not")
	}
	end()
}

func TestAPeerOfAnotherPIDNamespaceDoesNotSharePIDs(t *testing.T) {
	conn, _, end := peer(t, newNamespace())
	if PeerSharesPIDs(conn, Accepted()) {
		t.Error("it does")
	}
	end()
}

// Its number may be that of a process of any namespace by now.
func TestAPeerThatHasEndedDoesNotSharePIDs(t *testing.T) {
	conn, cmd, end := peer(t, nil)
	pid := cmd.Process.Pid
	end()
	if PeerSharesPIDs(conn, Accepted()) {
		t.Error("it does")
	}
	if SharesPIDs(pid) {
		t.Error("a process whose entry in /proc can't be read shares the numbers of processes")
	}
}

// Before Linux 6.5, the start of the process shows that its number was not used again.
func TestAProcessThatWasStartedAfterTheConnectionIsNotItsPeer(t *testing.T) {
	s, err := Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !startedBefore(os.Getpid(), Accepted()) || !startedBefore(os.Getpid(), 0) {
		t.Error("this process was started before now")
	}
	if before := time.Duration(s.Start-2) * ClockTick; startedBefore(os.Getpid(), before) {
		t.Error("this process was started before it was")
	}
}

// In a pid namespace with the /proc of another one, numbers of processes are those of others.
func TestNoProcessIsWatchedIfProcIsThatOfAnotherNamespace(t *testing.T) {
	const inside = "BERTH_TEST_PROC"
	if os.Getenv(inside) != "" {
		w, err := NewWatcher()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Open(os.Getpid()); !errors.Is(err, ErrOtherProc) {
			t.Errorf("%v", err)
		}
		if SharesPIDs(os.Getpid()) {
			t.Error("numbers of processes are shared")
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), inside+"=1"), newNamespace()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Skipf("such a process can't be started: %v", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// newNamespace has a process started in a pid namespace of its own.
func newNamespace() *syscall.SysProcAttr {
	if os.Geteuid() == 0 {
		return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	}
	own := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
	}
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWUSER, UidMappings: own(os.Getuid()), GidMappings: own(os.Getgid())}
}
