package sidecar_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// alice and bob are users of the machine, neither of them root.
const alice, bob = 65533, 65534

// needsUsers skips a test that can't act as other users.
func needsUsers(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as other users")
	}
}

// openSocket lets all users of the machine connect to the socket.
func (r *running) openSocket() {
	r.t.Helper()
	for path, mode := range map[string]os.FileMode{
		filepath.Dir(filepath.Dir(r.cfg.Socket)): 0o755, filepath.Dir(r.cfg.Socket): 0o755, r.cfg.Socket: 0o666,
	} {
		if err := os.Chmod(path, mode); err != nil {
			r.t.Fatal(err)
		}
	}
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialAs returns a dialer whose connections the kernel reports as a user's.
func dialAs(uid int, dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			// The kernel reports the user of the thread that connects. It ends with the
			// goroutine, since it stays locked.
			runtime.LockOSThread()
			const same = ^uintptr(0)
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); e != 0 {
				err = e
				return
			}
			conn, err = dial(ctx, network, addr)
		}()
		<-done
		return conn, err
	}
}

// as returns a client on the socket of a user of the machine.
func (r *running) as(uid int) *client.Client {
	r.t.Helper()
	r.openSocket()
	c, err := client.Dial("unix://"+r.cfg.Socket, "", func(t *http.Transport) { t.DialContext = dialAs(uid, t.DialContext) })
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// becomes is set for a process that becomes bob's.
const becomes = "BERTH_TEST_BECOMES"

// becomeAnother is the main function of such a process: alice's first, and bob's from when
// it has read a line on.
func becomeAnother() {
	if os.Getenv(becomes) == "" {
		return
	}
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	in := bufio.NewReader(os.Stdin)
	must(syscall.Setresuid(alice, alice, 0))
	fmt.Println("alice")
	_, err := in.ReadString('\n')
	must(err)
	must(syscall.Setresuid(-1, 0, -1))
	must(syscall.Setresuid(bob, bob, bob))
	fmt.Println("bob")
	_, err = in.ReadString('\n')
	must(err)
}

// spawnAs starts a process of a user of the machine, or of this process' user if it is not root.
func spawnAs(t testing.TB, uid uint32) *child {
	t.Helper()
	if os.Geteuid() != 0 {
		return spawn(t, sleeper)
	}
	c := &child{t: t, cmd: exec.Command("sleep", "1000"), ended: make(chan struct{})}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	c.start()
	return c
}

// nameOf returns the name of a user, or the number.
func nameOf(uid uint32) string {
	number := strconv.Itoa(int(uid))
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}

// turncoat is a process of alice that can become bob's.
type turncoat struct {
	*child
	in  io.Writer
	out *bufio.Reader
}

func newTurncoat(t testing.TB) *turncoat {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), becomes+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &turncoat{child: &child{t: t, cmd: cmd, ended: make(chan struct{})}, in: in, out: bufio.NewReader(out)}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.reads("alice")
	go func() {
		defer close(p.ended)
		_, _ = cmd.Process.Wait() // it is ended by a signal, or by the test
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *turncoat) reads(want string) {
	p.t.Helper()
	if line, err := p.out.ReadString('\n'); strings.TrimSpace(line) != want {
		p.t.Fatalf("it says %q, %v", line, err)
	}
}

// becomesBobs has the process become bob's.
func (p *turncoat) becomesBobs() {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		p.t.Fatal(err)
	}
	p.reads("bob")
}

func TestAProcessThatHasBecomeAnotherUsersIsNotSignaled(t *testing.T) {
	needsUsers(t)
	t.Parallel()
	r := single(t)
	r.pool("db", 2, leases(time.Minute))
	for name, bind := range map[string]func(id string, pid int) (*api.Claim, error){
		"when it is claimed": func(id string, pid int) (*api.Claim, error) {
			return r.as(alice).Claim(t.Context(), api.ClaimRequest{ID: id, Pools: api.Slots{"db": 1}, PID: pid})
		},
		"by a renewal": func(id string, pid int) (*api.Claim, error) {
			if _, err := r.as(alice).Claim(t.Context(), api.ClaimRequest{ID: id, Pools: api.Slots{"db": 1}}); err != nil {
				return nil, err
			}
			return r.as(alice).Renew(t.Context(), id, api.RenewRequest{PID: pid})
		},
	} {
		id := strings.ReplaceAll(name, " ", "-")
		p := newTurncoat(t)
		if _, err := bind(id, p.pid()); err != nil {
			t.Fatal(err)
		}
		if name == "by a renewal" {
			r = r.restarted() // which the binder's user survives
		}
		p.becomesBobs()
		if _, err := r.client.Revoke(t.Context(), id, false); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is logged that the process can't be stopped", func() bool {
			return strings.Contains(r.log.String(), "has become another user's") || !p.lives()
		})
		if !p.lives() {
			t.Errorf("bound %s: bob's process was stopped", name)
		}
		if _, err := r.client.Get(t.Context(), id); problem.CodeOf(err) != problem.ClaimRevoked {
			t.Errorf("bound %s: %v", name, err)
		}
		if n := r.claimed("db"); n != 1 {
			t.Errorf("bound %s: %d slots are held while the process lives", name, n)
		}
		p.kill()
		r.free("db")
	}
}

// Guesses of one user of the socket keep no other from using a token.
func TestTheGuessesOfAUserOfTheSocketAreItsOwn(t *testing.T) {
	needsUsers(t)
	r := single(t, func(c *sidecar.Config) { c.Tokens = accesstest.Tokens("ci", "secret", "admin") })
	r.openSocket()
	send := func(uid int, token string) error {
		c, err := client.Dial("unix://"+r.cfg.Socket, token, func(t *http.Transport) { t.DialContext = dialAs(uid, t.DialContext) })
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Pools(t.Context())
		return err
	}
	for range 10 {
		wantCode(t, send(alice, "wrong"), problem.Unauthorized)
	}
	wantCode(t, send(alice, "wrong"), problem.TooManyRequests)
	if err := send(bob, "secret"); err != nil {
		t.Error(err)
	}
}
