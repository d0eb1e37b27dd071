//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// link is the state of one direction between a node and the network.
type link struct {
	Blocked bool
	Loss    float64 // the share of packets that do not arrive
	Delay   time.Duration
}

// weather is the state of both directions.
type weather struct{ In, Out link }

// network connects nodes. A node is a member of etcd or a host.
type network interface {
	// listen is the address at which a server of a node listens.
	listen(node string, port int) string
	// local is one that only processes of the node reach.
	local(node string, port int) string
	// reach is the address at which one node reaches a server of another.
	reach(from, to string, port int) string
	// start starts a process on a node.
	start(node string, cmd *exec.Cmd) error
	// end kills all processes of a node, and waits until they have ended.
	end(ctx context.Context, node string) error
	set(node string, w weather)
	close()
}

// switched is a network of namespaces. Each node has a TUN device, and a switch in this
// process passes packets between them: so it needs neither a bridge nor the kernel's
// traffic control, and all of it is gone when the processes are.
type switched struct {
	nodes map[string]*node
	by    map[netip.Addr]*node
	rng   sync.Mutex
	rand  *rand.Rand
}

// node is one namespace.
type node struct {
	addr netip.Addr
	ns   *os.File
	tun  *os.File

	mu sync.Mutex
	w  weather
}

// tunMTU is large, so that few packets pass through this process.
const tunMTU = 32000

func newSwitched(names []string, seed uint64) (*switched, error) {
	s := &switched{nodes: map[string]*node{}, by: map[netip.Addr]*node{}, rand: rand.New(rand.NewPCG(seed, 7))}
	for i, name := range names {
		n := &node{addr: netip.AddrFrom4([4]byte{10, 77, 0, byte(10 + i)})}
		if err := n.open(); err != nil {
			s.close()
			return nil, fmt.Errorf("namespace of %s: %w", name, err)
		}
		s.nodes[name], s.by[n.addr] = n, n
	}
	for _, n := range s.nodes {
		go s.pass(n)
	}
	return s, nil
}

// inNamespace runs a function on a thread that has changed its network namespace, and
// changes back. A thread that can't is not used again.
func inNamespace(enter, do func() error) error {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	if err := enter(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = do()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		return back // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// open makes the namespace and its device.
func (n *node) open() error {
	return inNamespace(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() (err error) {
		if n.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		ifr, err := unix.NewIfreq("tun0")
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			return fmt.Errorf("make a TUN device: %w", err)
		}
		n.tun = os.NewFile(uintptr(fd), "tun")
		return n.configure()
	})
}

// configure gives the device its address, and sets it and the loopback up.
func (n *node) configure() error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	ip := n.addr.As4()
	for _, step := range []struct {
		device  string
		request uint
		fill    func(*unix.Ifreq) error
	}{
		{"lo", unix.SIOCSIFFLAGS, func(i *unix.Ifreq) error { i.SetUint16(unix.IFF_UP); return nil }},
		{"tun0", unix.SIOCSIFADDR, func(i *unix.Ifreq) error { return i.SetInet4Addr(ip[:]) }},
		{"tun0", unix.SIOCSIFNETMASK, func(i *unix.Ifreq) error { return i.SetInet4Addr([]byte{255, 255, 255, 0}) }},
		{"tun0", unix.SIOCSIFMTU, func(i *unix.Ifreq) error { i.SetUint32(tunMTU); return nil }},
		{"tun0", unix.SIOCSIFFLAGS, func(i *unix.Ifreq) error { i.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	} {
		ifr, err := unix.NewIfreq(step.device)
		if err != nil {
			return err
		}
		if err := step.fill(ifr); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(sock, step.request, ifr); err != nil {
			return fmt.Errorf("configure %s: %w", step.device, err)
		}
	}
	return nil
}

// pass reads what a node sends, until its device is closed.
func (s *switched) pass(from *node) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.tun.Read(buf)
		if err != nil {
			return
		}
		if n < 20 || buf[0]>>4 != 4 {
			continue // not IPv4
		}
		to := s.by[netip.AddrFrom4([4]byte(buf[16:20]))]
		if to == nil {
			continue
		}
		out, in := from.weather().Out, to.weather().In
		if out.Blocked || in.Blocked || s.lost(out.Loss) || s.lost(in.Loss) {
			continue
		}
		if delay := out.Delay + in.Delay; delay > 0 {
			packet := append([]byte(nil), buf[:n]...)
			time.AfterFunc(delay, func() { _, _ = to.tun.Write(packet) })
			continue
		}
		_, _ = to.tun.Write(buf[:n]) // a packet that does not arrive is sent again
	}
}

func (s *switched) lost(share float64) bool {
	if share == 0 {
		return false
	}
	s.rng.Lock()
	defer s.rng.Unlock()
	return s.rand.Float64() < share
}

func (n *node) weather() weather {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.w
}

func (s *switched) set(name string, w weather) {
	n := s.nodes[name]
	n.mu.Lock()
	defer n.mu.Unlock()
	n.w = w
}

func (s *switched) listen(node string, port int) string {
	return netip.AddrPortFrom(s.nodes[node].addr, uint16(port)).String()
}

func (*switched) local(_ string, port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func (s *switched) reach(_, to string, port int) string { return s.listen(to, port) }

// start starts a process in the namespace of a node: a child begins in that of the thread
// that starts it.
func (s *switched) start(node string, cmd *exec.Cmd) error {
	return s.on(node, cmd.Start)
}

// on runs a function in the namespace of a node.
func (s *switched) on(node string, do func() error) error {
	return inNamespace(func() error { return unix.Setns(int(s.nodes[node].ns.Fd()), unix.CLONE_NEWNET) }, do)
}

func (s *switched) end(ctx context.Context, node string) error {
	own, err := s.nodes[node].ns.Stat()
	if err != nil {
		return err
	}
	if !until(ctx, 10*time.Millisecond, func() bool {
		links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
		none := true
		for _, link := range links {
			pid, err := strconv.Atoi(strings.Split(link, "/")[2])
			if err != nil || pid == os.Getpid() { // a thread of this process may be there just now
				continue
			}
			if ns, err := os.Stat(link); err == nil && os.SameFile(own, ns) {
				none = false
				_ = unix.Kill(pid, unix.SIGKILL) // it may end just now
			}
		}
		return none
	}) {
		return fmt.Errorf("processes of %s do not end: %w", node, ctx.Err())
	}
	return nil
}

func (s *switched) close() {
	for _, n := range s.nodes {
		n.tun.Close()
		n.ns.Close()
	}
}
