package config

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// listenAt listens at an address until the test ends or the listener is closed.
func listenAt(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// etcdAt makes the folder of etcd in a data directory and listens at its socket.
func etcdAt(t *testing.T, dataDir string) net.Listener {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dataDir, EtcdFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	return listenAt(t, "unix", EtcdSocket(dataDir))
}

func TestWithoutEndpointsTheFirstEtcdOfThisMachineIsUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dev, server := filepath.Join(dir, "d"), filepath.Join(dir, "s")
	tcp := listenAt(t, "tcp", "127.0.0.1:0")
	address := tcp.Addr().String()
	mine, its := etcdAt(t, dev), etcdAt(t, server)
	find := func() (*finder, string, error) {
		f := &finder{address: address, sockets: []localSocket{{EtcdSocket(dev), true}, {EtcdSocket(server), false}}}
		conn, err := f.dial(t.Context(), address)
		if err != nil {
			return f, "", err
		}
		defer conn.Close()
		return f, conn.RemoteAddr().String(), nil
	}
	want := func(address string) *finder {
		t.Helper()
		f, at, err := find()
		if err != nil || at != address {
			t.Errorf("it connects to %q, %v; want %s", at, err, address)
		}
		return f
	}
	kept := want(EtcdSocket(dev))
	if err := os.Chmod(filepath.Join(dev, EtcdFolder), 0o777); err != nil {
		t.Fatal(err)
	}
	want(EtcdSocket(server)) // in a folder that others can change, the socket can be that of another user
	_, _ = mine.Close(), its.Close()
	if _, err := kept.dial(t.Context(), address); err == nil {
		t.Error("a process goes to another etcd than the one that it began with")
	}
	want(address)
	_ = tcp.Close()
	if _, _, err := find(); err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("with nothing to find, the error is %v", err)
	}
}

func TestCommandsInTheFolderOfABerthDevThatHasEndedUseNoOtherEtcdAtItsAddress(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dev, server := filepath.Join(dir, "d"), filepath.Join(dir, "s")
	address := listenAt(t, "tcp", "127.0.0.1:0").Addr().String() // of another user
	find := func() (string, error) {
		f := &finder{address: address, sockets: []localSocket{{EtcdSocket(dev), true}, {EtcdSocket(server), false}}}
		conn, err := f.dial(t.Context(), address)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		return conn.RemoteAddr().String(), nil
	}
	if at, err := find(); err != nil || at != address {
		t.Errorf("where berth dev never ran, it connects to %q, %v; want %s", at, err, address)
	}
	_ = etcdAt(t, dev).Close() // which removes the socket, as berth dev does when it stops
	if at, err := find(); err == nil || !strings.Contains(err.Error(), EtcdSocket(dev)) {
		t.Errorf("after the end of berth dev, it connects to %q, %v", at, err)
	}
	etcdAt(t, server)
	if at, err := find(); err != nil || at != EtcdSocket(server) {
		t.Errorf("with a server on this host, it connects to %q, %v; want %s", at, err, EtcdSocket(server))
	}
	long := localSocket{EtcdSocket(filepath.Join(dir, strings.Repeat("d", 107))), true}
	if err := os.MkdirAll(filepath.Dir(long.path), 0o700); err != nil {
		t.Fatal(err)
	}
	if long.ended() {
		t.Error("a berth dev whose path is too long for a socket has no socket while it runs, and counts as ended")
	}
}

func TestOnlyProcessesWithoutEndpointsFindEtcd(t *testing.T) {
	for name, flag := range map[string]map[string]string{
		"endpoints": {"endpoints": "127.0.0.1:2379"},
		"cluster":   {"cluster": "a=http://127.0.0.1:7423"},
	} {
		if s, err := Load(given{flag: flag}.sources(t), Etcd); err != nil || s.Dial() != nil {
			t.Errorf("with %s, it tries sockets, %v", name, err)
		}
	}
	if s, err := Load(given{flag: map[string]string{"data_dir": "/d"}}.sources(t), Etcd); err != nil || s.Dial() == nil || s.finder.sockets[0].path != "/d/etcd/etcd.sock" {
		t.Errorf("without endpoints, it does not try the socket of its data directory: %v", err)
	}
}

func TestCommandsWithTheSettingsOfAServerAloneWithTLSFindIt(t *testing.T) {
	t.Parallel()
	files := memberFiles(t, "10.0.0.1")
	for listen, want := range map[string]string{"10.0.0.1:2379": "https://10.0.0.1:2379", "": defaultEndpoint, "0.0.0.0:2379": defaultEndpoint, "127.0.0.1:0": defaultEndpoint} {
		flag := with(files)
		if listen != "" {
			flag["etcd_listen"] = listen
		}
		if s, err := Load(given{flag: flag}.sources(t), Etcd); err != nil || len(s.Endpoints) != 1 || s.Endpoints[0] != want {
			t.Errorf("with etcd_listen %q, it connects to %q, %v; want %s", listen, s.Endpoints, err, want)
		}
	}
	flag := with(files, "etcd_listen", "10.0.0.1:2379", "endpoints", "10.0.0.9:2379")
	if s, err := Load(given{flag: flag}.sources(t), Etcd); err != nil || s.Endpoints[0] != "10.0.0.9:2379" {
		t.Errorf("with endpoints, it connects to %q, %v", s.Endpoints, err)
	}
}

// Any user can listen at the default address while the server of the machine is down.
func TestNothingIsTakenForAServerThatWasKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tcp, socket := listenAt(t, "tcp", "127.0.0.1:0"), etcdAt(t, dir)
	socket.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = socket.Close()
	f := &finder{address: tcp.Addr().String(), sockets: []localSocket{{EtcdSocket(dir), false}}}
	if _, err := f.dial(t.Context(), f.address); err == nil || !strings.Contains(err.Error(), "no process serves "+EtcdSocket(dir)) {
		t.Errorf("the error is %v", err)
	}
}

func TestWhyNoEtcdIsFoundIsOneLine(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	dir := t.TempDir()
	etcdAt(t, filepath.Join(dir, "s"))
	etcdAt(t, filepath.Join(dir, "d"))
	err := (&finder{}).notFound(refused, []string{EtcdSocket(filepath.Join(dir, "d")), EtcdSocket(filepath.Join(dir, "s"))})
	if text := err.Error(); !errors.Is(err, refused) || strings.Contains(text, "\n") || strings.Count(text, "; run this as the user of that server, or join the group") != 2 || strings.Count(text, "belongs to user") != 2 {
		t.Errorf("the error is %q", text)
	}
	if err := (&finder{}).notFound(refused, nil); err.Error() != "connection refused" {
		t.Errorf("without sockets, the error is %q", err)
	}
}

func TestAUserWhoMayNotUseTheSocketOfEtcdLearnsWhoMay(t *testing.T) {
	t.Parallel()
	dial := func(err syscall.Errno) error {
		return denied(&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", err)})
	}
	if err := dial(syscall.EACCES); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "permission denied; run this as the user of that server, or join the group of its setting socket_group") {
		t.Errorf("the error is %v", err)
	}
	if err := dial(syscall.ECONNREFUSED); strings.Contains(err.Error(), "group") {
		t.Errorf("the error of a server that does not run is %v", err)
	}
}

func TestAnOwnerIsClaimedOnlyOfASocketThatWasSeen(t *testing.T) {
	t.Parallel()
	path := EtcdSocket(t.TempDir())
	err := (&finder{}).notFound(errors.New("connection refused"), []string{path})
	if text := err.Error(); strings.Contains(text, "belongs to") || !strings.Contains(text, "unknown") || !strings.Contains(text, path) {
		t.Errorf("the error is %q", text)
	}
}

func TestWhereAServerServesNoSocketItsSettingsAreAdvised(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		socket localSocket
		folder bool
		want   bool
	}{
		"a member of a cluster": {localSocket{EtcdSocket(filepath.Join(dir, "member")), false}, true, true},
		"no server":             {localSocket{EtcdSocket(filepath.Join(dir, "none")), false}, false, false},
		"a berth dev":           {localSocket{EtcdSocket(filepath.Join(dir, "dev")), true}, true, false},
	} {
		if tc.folder {
			if err := os.MkdirAll(filepath.Dir(tc.socket.path), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		err := (&finder{sockets: []localSocket{tc.socket}}).notFound(errors.New("connection refused"), nil)
		if strings.Contains(err.Error(), "set BERTH_CONFIG to its settings file") != tc.want {
			t.Errorf("%s: the error is %q", name, err)
		}
	}
}

func TestNoSocketOfAnotherUserInASharedFolderIsTakenForEtcd(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to other users")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, os.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	listenAt(t, "unix", path)
	s := Settings{Endpoints: []string{unixScheme + path}}
	connected := func() error {
		dial := s.Dial()
		if dial == nil {
			return nil // etcd's client connects to any socket
		}
		conn, err := dial(t.Context(), unixScheme+path)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	if err := connected(); err != nil {
		t.Errorf("a socket of its own: %v", err)
	}
	if err := os.Lchown(path, 65533, 65533); err != nil {
		t.Fatal(err)
	}
	if err := connected(); err == nil || !strings.Contains(err.Error(), "belongs to user ") {
		t.Errorf("a socket of another user: %v", err)
	}
}
