package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/certs"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// neighbor is a user of this machine that has nothing to do with berth, and etl a group.
const neighbor, etl = 65534, 65533

// asUser calls do with the rights of another user and group.
func asUser(t *testing.T, uid, gid int, do func()) {
	t.Helper()
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
			failed <- e
			return
		}
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
			failed <- e
			return
		}
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
			failed <- e
			return
		}
		do()
		failed <- nil
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// listening returns what a process listens at: "tcp ADDRESS" or "unix PATH", where the path of an abstract
// socket begins with @.
func listening(t *testing.T, pid int) (all []string) {
	t.Helper()
	inodes := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.Trim(strings.TrimPrefix(to, "socket:"), "[]")] = true
		}
	}
	each := func(file string, of func(fields []string)) {
		f, err := os.Open(file)
		if err != nil {
			return // without IPv6
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			of(strings.Fields(lines.Text()))
		}
	}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		each(file, func(f []string) {
			const listens = "0A"
			if len(f) > 9 && f[3] == listens && inodes[f[9]] {
				all = append(all, "tcp "+tcpAddress(t, f[1]))
			}
		})
	}
	each("/proc/net/unix", func(f []string) {
		const listens = "00010000"
		if len(f) > 7 && f[3] == listens && inodes[f[6]] {
			all = append(all, "unix "+f[7])
		}
	})
	return all
}

// tcpAddress reads an address of /proc/net/tcp.
func tcpAddress(t *testing.T, text string) string {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	ip := net.IP{127, 0, 0, 1} // of all addresses
	if v4, err := strconv.ParseUint(host, 16, 32); err == nil && len(host) == 8 && v4 != 0 {
		ip = net.IP{byte(v4), byte(v4 >> 8), byte(v4 >> 16), byte(v4 >> 24)}
	}
	return net.JoinHostPort(ip.String(), fmt.Sprint(number))
}

// shortDir returns a folder with a short path, which every user may enter.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// serveAlone starts a server in a folder, and returns where it is once it is ready.
func serveAlone(t *testing.T, dir string, flags ...string) (at addresses, end func()) {
	t.Helper()
	r := rig{t, []string{"BERTH_ENDPOINTS=", "BERTH_CLUSTER="}}
	args := []string{"server", "--listen", "127.0.0.1:0", "--socket", filepath.Join(dir, "s", "berth.sock"), "--data-dir", filepath.Join(dir, "data")}
	end = r.service(&at, append(args, flags...)...)
	if err := awaitReady(t.Context(), at, ""); err != nil {
		t.Fatal(err)
	}
	return at, end
}

func TestAnotherUserReachesNothingOfAServerButListen(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	dir := shortDir(t)
	loopback := fmt.Sprintf("127.%d.%d.1", 128+rand.IntN(64), rand.IntN(256))
	etcd := loopback + ":2379"
	server, err := certs.Make(filepath.Join(dir, "ca"), filepath.Join(dir, "ca"), time.Hour, []certs.Request{{Name: "a", Hosts: []string{loopback}, Lifetime: time.Hour}})
	if err != nil || len(server) == 0 {
		t.Fatal(server, err)
	}
	file := func(name string) string { return filepath.Join(dir, "ca", name) }
	for name, test := range map[string]struct {
		flags []string
		// etcd is what others may connect to in addition to listen: they can't pass its TLS.
		etcd string
	}{
		"alone":            {},
		"with a group":     {flags: []string{"--socket-group", fmt.Sprint(etl)}},
		"alone, with TLS":  {[]string{"--etcd-listen", etcd, "--cacert", file("ca.crt"), "--cert", file("a.crt"), "--key", file("a.key")}, "tcp " + etcd},
		"alone, by a name": {flags: []string{"--name", "a", "--host", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			at, _ := serveAlone(t, filepath.Join(dir, strings.ReplaceAll(name, " ", "")), test.flags...)
			all := listening(t, at.PID)
			listen := "tcp " + strings.TrimPrefix(at.HTTP, "http://")
			if !slices.Contains(all, listen) {
				t.Fatalf("it listens at %v, not at %s", all, listen)
			}
			for _, one := range all {
				network, address, _ := strings.Cut(one, " ")
				asUser(t, neighbor, neighbor, func() {
					conn, err := net.Dial(network, address)
					if err == nil {
						_ = conn.Close()
					}
					if may := one == listen || one == test.etcd; may != (err == nil) {
						t.Errorf("another user connects to %s: %v", one, err)
					}
				})
			}
			if open := slices.DeleteFunc(all, func(one string) bool { return !strings.HasPrefix(one, "tcp ") || one == listen || one == test.etcd }); len(open) > 0 {
				t.Errorf("it listens at %v", open)
			}
		})
	}
}

func TestTheGroupOfTheSocketReachesEtcdOfAServerAlone(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	dir := shortDir(t)
	at, end := serveAlone(t, dir, "--socket-group", fmt.Sprint(etl))
	socket := strings.TrimPrefix(at.Etcd, "unix://")
	connect := func(gid int) (err error) {
		asUser(t, neighbor, gid, func() {
			var conn net.Conn
			if conn, err = net.Dial("unix", socket); err == nil {
				_ = conn.Close()
			}
		})
		return err
	}
	for _, folder := range []string{filepath.Dir(socket), filepath.Join(dir, "data")} {
		if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o750 || info.Sys().(*syscall.Stat_t).Gid != etl {
			t.Errorf("%s: mode %v, %v", folder, info.Mode(), err)
		}
	}
	if err := connect(etl); err != nil {
		t.Errorf("a member of the group can't connect: %v", err)
	}
	asUser(t, neighbor, etl, func() {
		if data, err := os.ReadDir(filepath.Join(filepath.Dir(socket), "member")); err == nil {
			t.Errorf("a member of the group reads the files of etcd: %v", data)
		}
	})
	end()
	// Without the group it is closed again.
	serveAlone(t, dir)
	if err := connect(etl); err == nil {
		t.Error("a member of a former group still connects")
	}
	if info, err := os.Stat(filepath.Dir(socket)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
}

// serverProcess is a server that need not be ready.
type serverProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  string // a file
	out  *bufio.Reader
	at   addresses
	data string
}

// startServer starts a server alone with its data in a folder, and does not wait until it is ready.
func startServer(t *testing.T, dir string, flags ...string) *serverProcess {
	t.Helper()
	s := &serverProcess{t: t, log: filepath.Join(dir, "log"), data: filepath.Join(dir, "data")}
	args := []string{"server", "-o", "json", "--listen", "127.0.0.1:0", "--socket", filepath.Join(dir, "s", "berth.sock"), "--data-dir", s.data}
	s.cmd = rig{t, []string{"BERTH_ENDPOINTS=", "BERTH_CLUSTER=", "BERTH_CONFIG="}}.command(append(args, flags...)...)
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.cmd.Stderr = log
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewReader(out)
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
		if text, err := os.ReadFile(s.log); t.Failed() && err == nil {
			t.Logf("the log:\n%s", text)
		}
	})
	return s
}

// listens waits until the server prints its addresses.
func (s *serverProcess) listens() *serverProcess {
	s.t.Helper()
	if err := json.NewDecoder(s.out).Decode(&s.at); err != nil {
		s.t.Fatalf("it prints no addresses: %v", err)
	}
	return s
}

func (s *serverProcess) ready() *serverProcess {
	s.t.Helper()
	if err := awaitReady(s.t.Context(), s.at, ""); err != nil {
		s.t.Fatal(err)
	}
	return s
}

// end sends a signal and waits for the end.
func (s *serverProcess) end(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil && sig != syscall.SIGKILL {
		s.t.Fatal(err)
	}
}

// logs waits until the log has a text.
func (s *serverProcess) logs(text string) {
	s.t.Helper()
	s.until("the log has "+text, func() bool {
		log, err := os.ReadFile(s.log)
		return err == nil && strings.Contains(string(log), text)
	})
}

// until polls while the server runs.
func (s *serverProcess) until(what string, done func() bool) {
	s.t.Helper()
	ended := fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(scriptDeadline); !done(); <-tick.C {
		stat, err := os.ReadFile(ended)
		if err != nil || strings.Contains(string(stat), ") Z ") {
			s.t.Fatalf("the server has ended before %s", what)
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not in time: %s", what)
		}
	}
}

// notReady returns what /readyz says is missing.
func (s *serverProcess) notReady() string {
	s.t.Helper()
	c, err := client.Dial(s.at.HTTP, "")
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ready(s.t.Context()); err != nil {
		return err.Error()
	}
	return ""
}

// berth runs a command on the etcd of the server, which must succeed, and returns its output.
func (s *serverProcess) berth(args ...string) string {
	s.t.Helper()
	cmd := rig{s.t, []string{"BERTH_ENDPOINTS=" + s.at.Etcd, "BERTH_HOST=operator"}}.command(args...)
	var trouble bytes.Buffer
	cmd.Stderr = &trouble
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("berth %s: %v: %s", strings.Join(args, " "), err, &trouble)
	}
	return string(out)
}

func TestAHostNameInUseLeavesTheMemberAlive(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	a := startServer(t, dir, "--name", "a").listens().ready()
	a.berth("pools", "set", "db", "1")
	// A process elsewhere has the name that the server begins with.
	other := rig{t, []string{"BERTH_ENDPOINTS=" + a.at.Etcd}}
	var its addresses
	end := other.service(&its, "sidecar", "--host", "taken", "--listen", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "other"))
	if err := awaitReady(t.Context(), its, ""); err != nil {
		t.Fatal(err)
	}
	a.end(syscall.SIGHUP)

	a = startServer(t, dir, "--name", "a", "--host", "taken").listens()
	const inUse = `the name "taken/sidecar" is in use by process`
	a.logs("claims can't be made yet, trying again") // the end of its owner is no longer waited for
	a.until("it is not ready because of the name", func() bool {
		why := a.notReady()
		return strings.Contains(why, "name: ") && strings.Contains(why, inUse)
	})
	a.until("its member is healthy", func() bool { return strings.Contains(a.berth("cluster", "status"), " healthy ") })
	end()
	a.ready()
	a.end(syscall.SIGTERM)
}

func TestASidecarThatCannotListenLeavesTheMemberAlive(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := startServer(t, dir, "--listen", l.Addr().String(), "--name", "a")
	a.logs("address already in use")
	a.at.Etcd = "unix://" + filepath.Join(a.data, "etcd", "etcd.sock")
	a.until("its member is healthy", func() bool {
		return rig{t, []string{"BERTH_ENDPOINTS=" + a.at.Etcd}}.command("cluster", "status").Run() == nil
	})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	a.listens().ready().end(syscall.SIGTERM)
}

func TestAServerKeepsTheHostNameOfItsClaims(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	a := startServer(t, dir, "--host", "former", "--name", "a").listens().ready()
	a.berth("pools", "set", "db", "1", "--lease-duration", "1h")
	c, err := client.Dial(a.at.Socket, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Claim(t.Context(), api.ClaimRequest{ID: "x", Pools: api.Slots{"db": 1}}); err != nil {
		t.Fatal(err)
	}
	a.end(syscall.SIGHUP)

	text := startServer(t, dir, "--name", "a", "-o", "table")
	line, err := text.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"berth server a of host a at http://", "keeps its former host name former while it has claims under that name", "write 'host: former'", "or stop it with TERM"} {
		if !strings.Contains(line, want) {
			t.Errorf("it prints %q, want %q", line, want)
		}
	}
	text.logs("former host name")
	text.end(syscall.SIGHUP)

	a = startServer(t, dir, "--name", "a").listens().ready()
	a.logs("write 'host: former' in the settings to keep it")
	if out := a.berth("claims", "list"); !strings.Contains(out, "former") {
		t.Errorf("the claim is not that of the former host: %s", out)
	}
	if out := a.berth("hosts", "list"); strings.Contains(out, "\na ") || !strings.Contains(out, "former ") {
		t.Errorf("the hosts are %s", out)
	}
	a.end(syscall.SIGTERM)

	// Without claims, it has its new name, and does not mention the former one again.
	a = startServer(t, dir, "--name", "a").listens().ready()
	a.end(syscall.SIGTERM)
	text = startServer(t, dir, "--name", "a", "-o", "table")
	if line, err = text.out.ReadString('\n'); err != nil || strings.Contains(line, "former") {
		t.Errorf("it prints %q, %v", line, err)
	}
	text.logs("ready")
	text.end(syscall.SIGTERM)
	a = startServer(t, dir, "--name", "a").listens().ready()
	if out := a.berth("hosts", "list"); !strings.Contains(out, "\na ") {
		t.Errorf("the hosts are %s", out)
	}
	a.end(syscall.SIGTERM)
}

func TestAServerThatLostItsStateLeavesTheMemberAlive(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	a := startServer(t, dir, "--name", "a").listens().ready()
	a.berth("pools", "set", "db", "1", "--lease-duration", "1h")
	c, err := client.Dial(a.at.Socket, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, err := c.Claim(t.Context(), api.ClaimRequest{ID: "x", Pools: api.Slots{"db": 1}})
	if err != nil {
		t.Fatal(err)
	}
	fence := fmt.Sprint(x.Fence)
	mayNot := rig{t, []string{"BERTH_ENDPOINTS=" + a.at.Etcd}}.command("cluster", "member", "replace", "a", "--free")
	if out, err := mayNot.CombinedOutput(); err == nil || !strings.Contains(string(out), `nothing of host "a" can be freed: what it holds belongs to processes that were seen within 10s (coordinator, sidecar). Stop them, wait 10s, and try again`) {
		t.Errorf("the claims of a host that was seen: %v, %s", err, out)
	}
	a.end(syscall.SIGKILL)
	if err := os.RemoveAll(filepath.Join(a.data, "state")); err != nil {
		t.Fatal(err)
	}
	a = startServer(t, dir, "--name", "a").listens()
	a.logs("has lost its state directory")
	for _, want := range []string{"has leases", "run 'berth cluster member replace a --free'", "when these leases have ended, in "} {
		if why := a.notReady(); !strings.Contains(why, want) || strings.Contains(why, "start again") {
			t.Errorf("it is not ready because of %q, want %q", why, want)
		}
	}
	a.berth("cluster", "status")
	freed := a.berth("cluster", "member", "replace", "a", "--free")
	for _, want := range []string{"freed what host a held: 1 claim, ", "\nx ", "their fencing tokens may still be in use: " + fence + "\n"} {
		if !strings.Contains(freed, want) {
			t.Errorf("it does not say %q: %s", want, freed)
		}
	}
	a.ready()
	if out := a.berth("claims", "list"); strings.Contains(out, "\nx ") {
		t.Errorf("its claim is still held: %s", out)
	}
	if out := a.berth("actions", "list"); !strings.Contains(out, " free-host ") {
		t.Errorf("it is not recorded: %s", out)
	}
	a.end(syscall.SIGTERM)
}

func TestAServerNamesTheSettingOfAnAddressThatItCantUse(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	own := fmt.Sprintf("127.%d.%d.1", 192+rand.IntN(32), rand.IntN(256))
	taken := func(address string) {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	made, err := certs.Make(filepath.Join(dir, "ca"), filepath.Join(dir, "ca"), time.Hour, []certs.Request{{Name: "a", Hosts: []string{"192.0.2.1"}, Lifetime: time.Hour}})
	if err != nil || len(made) == 0 {
		t.Fatal(made, err)
	}
	file := func(name string) string { return filepath.Join(dir, "ca", name) }
	taken(own + ":7001")
	taken(own + ":7002")
	member := func(peer, etcd string) []string {
		return []string{"--name", "a", "--cluster", "a=http://" + peer, "--etcd-listen", etcd}
	}
	for name, test := range map[string]struct {
		flags []string
		want  string
	}{
		"of members":      {member(own+":7001", own+":7003"), "cluster: .*address already in use; stop the other process, or choose another port of this server in the setting cluster of all servers$"},
		"of clients":      {member(own+":7003", own+":7001"), "etcd_listen: .*address already in use; choose another with --etcd-listen, the same port on all servers$"},
		"no own address":  {member("192.0.2.1:7003", own+":7003")[:4], "cluster .*has no TLS"},
		"not of clients":  {[]string{"--cacert", file("ca.crt"), "--cert", file("a.crt"), "--key", file("a.key"), "--etcd-listen", "192.0.2.1:7003"}, "etcd_listen: .*cannot assign requested address; choose an address of this host with --etcd-listen$"},
		"not of members":  {[]string{"--cacert", file("ca.crt"), "--cert", file("a.crt"), "--key", file("a.key"), "--name", "a", "--cluster", "a=https://192.0.2.1:7003"}, "cluster: .*cannot assign requested address; write an address of this host there, or the setting name of this host$"},
		"not of three":    {[]string{"--cacert", file("ca.crt"), "--cert", file("a.crt"), "--key", file("a.key"), "--name", "a", "--cluster", "a=https://192.0.2.1:7003,b=https://192.0.2.2:7003"}, "cluster: .*cannot assign requested address; write an address of this host there, or the setting name of this host$"},
		"both":            {member(own+":7001", own+":7002"), "(cluster|etcd_listen): .*address already in use"},
		"two of clients":  {append(member(own+":7003", own+":7001"), "--cluster", "a=http://"+own+":7003,b=http://127.0.0.9:7003"), "etcd_listen: .*address already in use; choose another with --etcd-listen, the same port on all servers$"},
		"the same one":    {member(own+":7003", own+":7003"), `etcd_listen .*is the address of this server in cluster: choose another port`},
		"that of listen":  {append(member(own+":7003", own+":7004"), "--listen", own+":7004"), `listen .*is the address of etcd_listen: choose another port`},
		"listen, members": {append(member(own+":7003", own+":7004"), "--listen", own+":7003"), `listen .*is the address of this server in cluster: choose another port`},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"server", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, strings.ReplaceAll(name, " ", ""))}
			var out bytes.Buffer
			cmd := rig{t, []string{"BERTH_ENDPOINTS=", "BERTH_CLUSTER=", "BERTH_CONFIG="}}.command(append(args, test.flags...)...)
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Start()
			if err != nil {
				t.Fatal(err)
			}
			late := time.AfterFunc(scriptDeadline/4, func() { _ = cmd.Process.Kill() })
			defer late.Stop()
			err = cmd.Wait()
			if err == nil || !regexp.MustCompile(`(?m)^berth: .*`+test.want).Match(out.Bytes()) {
				t.Errorf("%v: it does not match %s:\n%s", err, test.want, &out)
			}
		})
	}
}
