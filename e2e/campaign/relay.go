//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// relayed is a network on loopback, for where namespaces are not permitted. Each host
// reaches each member of etcd through a relay, which the weather holds up. Members reach
// each other directly, and the loss of packets is a pause, as TCP makes it one.
type relayed struct {
	mu      sync.Mutex
	ports   map[string]string // by node and port
	relays  map[string]string // addresses, by both nodes and the port
	weather map[string]weather
	closers []io.Closer
}

func newRelayed() *relayed {
	return &relayed{ports: map[string]string{}, relays: map[string]string{}, weather: map[string]weather{}}
}

// listen chooses a free port of the loopback for each that a node wants.
func (r *relayed) listen(node string, port int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := fmt.Sprint(node, ":", port)
	for r.ports[key] == "" {
		// Below those that Linux gives to outgoing connections.
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(17000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			r.ports[key] = addr
		}
	}
	return r.ports[key]
}

func (r *relayed) local(node string, port int) string { return r.listen(node, port) }

func (r *relayed) reach(from, to string, port int) string {
	target := r.listen(to, port)
	if from == to || strings.HasPrefix(from, "m") {
		return target
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := fmt.Sprint(from, ">", to, ":", port)
	if addr := r.relays[key]; addr != "" {
		return addr
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return target
	}
	r.relays[key] = l.Addr().String()
	r.closers = append(r.closers, l)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(in, from, to, target)
		}
	}()
	return r.relays[key]
}

func (r *relayed) serve(in net.Conn, from, to, target string) {
	defer in.Close()
	out, err := net.DialTimeout("tcp", target, time.Second)
	if err != nil {
		return
	}
	defer out.Close()
	done := make(chan struct{}, 2)
	go func() { r.copy(out, in, from, to); done <- struct{}{} }()
	go func() { r.copy(in, out, to, from); done <- struct{}{} }()
	<-done
}

// copy passes bytes on in one direction, as the weather lets them.
func (r *relayed) copy(to, from net.Conn, sender, receiver string) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		for {
			r.mu.Lock()
			out, in := r.weather[sender].Out, r.weather[receiver].In
			r.mu.Unlock()
			wait := out.Delay + in.Delay
			if rand.Float64() < out.Loss+in.Loss {
				wait += 200 * time.Millisecond
			}
			if out.Blocked || in.Blocked {
				wait = 50 * time.Millisecond
			}
			<-time.After(wait)
			if !out.Blocked && !in.Blocked {
				break
			}
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (r *relayed) start(_ string, cmd *exec.Cmd) error { return cmd.Start() }

// end does nothing: the processes of a node are known only where it has a namespace.
func (r *relayed) end(context.Context, string) error { return nil }

func (r *relayed) set(node string, w weather) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.weather[node] = w
}

func (r *relayed) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.closers {
		c.Close()
	}
}
