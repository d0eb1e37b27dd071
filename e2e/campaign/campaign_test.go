//go:build linux

package main

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestMain runs the tests; or, in a process that a campaign has started, its part.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch role := os.Args[1]; {
		case role == "campaign":
			os.Exit(run(os.Args[2:]))
		case roles[role] != nil, role == "init", role == "inside":
			os.Exit(run(os.Args[1:]))
		}
	}
	os.Exit(m.Run())
}

// A campaign of one short phase, so that the program keeps working. What it finds is as
// real as in a long one.
func TestAShortCampaignFindsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	berth := filepath.Join(t.TempDir(), "berth")
	if out, err := exec.Command("go", "build", "-o", berth, "../../cmd/berth").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	dir, err := os.MkdirTemp("", "c") // its sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command(os.Args[0], "campaign", "-berth", berth, "-dir", dir, "-duration", "1s", "-phase", "6s",
		"-only", "kill-sidecar,partition,kill-leader,limit,revoke,kill-job")
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		faults, _ := os.ReadFile(filepath.Join(dir, "faults.log"))
		t.Fatalf("%v\n%s%s%s", err, complaints.String(), out.String(), faults)
	}
	number := func(what string) int {
		m := regexp.MustCompile(`(?m)^` + what + ` +(\d+)`).FindStringSubmatch(out.String())
		if m == nil {
			t.Fatalf("it does not say how many %s:\n%s", what, out.String())
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if number("claims granted") == 0 || number("jobs by step") == 0 || number("revisions judged") == 0 || number("faults") == 0 {
		t.Errorf("nothing was done:\n%s", out.String())
	}
}

// soon is ample for bytes inside one machine.
const soon = 10 * time.Second

// spoils checks that a network holds up what its weather holds up, and heals.
func spoils(t *testing.T, n network, dial func() net.Conn, got <-chan string) {
	t.Helper()
	c := dial()
	say := func(text string) {
		t.Helper()
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	echo := func(want string) {
		t.Helper()
		buf := make([]byte, 10)
		_ = c.SetReadDeadline(time.Now().Add(soon))
		if k, err := c.Read(buf); err != nil || string(buf[:k]) != want {
			t.Fatalf("read %q, %v, want %q", buf[:k], err, want)
		}
	}
	silent := func() {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if k, err := c.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read %d bytes, %v", k, err)
		}
	}
	say("a")
	if s := <-got; s != "a" {
		t.Errorf("got %q", s)
	}
	echo("a")

	n.set("h0", weather{In: link{Blocked: true}}) // answers are held up
	say("b")
	if s := <-got; s != "b" {
		t.Errorf("got %q", s)
	}
	silent()
	n.set("h0", weather{})
	echo("b")

	n.set("h0", weather{Out: link{Blocked: true}})
	say("c")
	silent()
	select {
	case s := <-got:
		t.Errorf("got %q", s)
	default:
	}
	n.set("h0", weather{Out: link{Delay: 30 * time.Millisecond, Loss: 0.2}, In: link{Loss: 0.2}})
	if s := <-got; s != "c" {
		t.Errorf("got %q", s)
	}
	echo("c")
}

// echoes answers with what it reads, and tells it.
func echoes(l net.Listener) <-chan string {
	got := make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 10)
			for k, err := c.Read(buf); err == nil; k, err = c.Read(buf) {
				got <- string(buf[:k])
				_, _ = c.Write(buf[:k])
			}
			c.Close()
		}
	}()
	return got
}

func TestRelaysHoldUpWhatTheyShould(t *testing.T) {
	n := newRelayed()
	defer n.close()
	l, err := net.Listen("tcp", n.listen("m0", clientPort))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spoils(t, n, func() net.Conn {
		c, err := net.Dial("tcp", n.reach("h0", "m0", clientPort))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}, echoes(l))
}

func TestTheSwitchHoldsUpWhatItShould(t *testing.T) {
	n, err := newSwitched([]string{"m0", "h0"}, 1)
	if err != nil {
		t.Skipf("namespaces are not permitted: %v", err)
	}
	defer n.close()
	var l net.Listener
	if err := n.on("m0", func() (err error) {
		l, err = net.Listen("tcp", n.listen("m0", clientPort))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spoils(t, n, func() (c net.Conn) {
		if err := n.on("h0", func() (err error) {
			c, err = net.DialTimeout("tcp", n.reach("h0", "m0", clientPort), soon)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}, echoes(l))
}

func TestAllProcessesOfALostNodeEnd(t *testing.T) {
	n, err := newSwitched([]string{"m0", "h0"}, 1)
	if err != nil {
		t.Skipf("namespaces are not permitted: %v", err)
	}
	defer n.close()
	start := func(node string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command("sleep", "1000")
		if err := n.start(node, cmd); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	lost, other := start("h0"), start("m0")
	ended := make(chan error, 1)
	go func() { ended <- lost.Wait() }()
	if err := n.end(t.Context(), "h0"); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the process of the lost node has ended by itself")
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process of another node: %v", err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
}
