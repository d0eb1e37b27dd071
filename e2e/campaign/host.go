//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// token is what the sidecars ask of clients over TCP.
const token = "campaign-token-0123456789"

// sidecarPort is where a sidecar serves on its host's loopback address.
const sidecarPort = 7420

// host is one machine: its processes share a node of the network and a folder.
type host struct {
	name, dir   string
	socket, tcp string // where its sidecar serves
	node        *settings
	sidecar     *process
	worker      *process
	coordinator *process
	load        *process
	ownDisk     bool // its state is on a disk of its own
}

// settings are what commands of berth on a host need in their environment.
type settings struct {
	berth string
	env   []string
	net   network
}

// diskBytes is the size of the disk that a host keeps its state on.
const diskBytes = 16 << 20

func hostName(i int) string { return fmt.Sprintf("h%d", i) }

// newHost starts the processes of a host. Its sidecar has more settings than the others.
func newHost(ps *processes, c *cluster, self, dir, referee string, i int, o options, more ...string) (*host, error) {
	berth := o.berth
	h := &host{name: hostName(i), dir: filepath.Join(dir, hostName(i))}
	state := filepath.Join(h.dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	if !o.loopback {
		err := syscall.Mount("tmpfs", state, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", diskBytes))
		h.ownDisk = err == nil
	}
	tokens := filepath.Join(h.dir, "tokens.yaml")
	entry := fmt.Appendf(nil, "- {name: load, hash: sha256:%x, roles: [admin]}\n", sha256.Sum256([]byte(token)))
	if err := os.WriteFile(tokens, entry, 0o600); err != nil {
		return nil, err
	}
	h.node = &settings{berth: berth, net: ps.net, env: []string{
		"BERTH_ENDPOINTS=" + c.endpoints(h.name), "BERTH_HOST=" + h.name, "BERTH_RUN_RETENTION=3m",
		"BERTH_COMPACT_INTERVAL=1m", "BERTH_CLAIM_TIMEOUT=1h",
	}}
	add := func(name string, args ...string) *process {
		p := ps.add(h.name, h.name+" "+name, filepath.Join(h.dir, name+".log"), args...)
		p.env = h.node.env
		return p
	}
	listen := ps.net.local(h.name, sidecarPort)
	h.socket, h.tcp = filepath.Join(h.dir, "berth.sock"), "http://"+listen
	h.sidecar = add("sidecar", berth, "sidecar", "--listen", listen, "--socket", h.socket, "--state-dir", state)
	h.sidecar.env = slices.Concat(h.sidecar.env, []string{"BERTH_TOKENS_FILE=" + tokens}, more)
	h.worker = add("worker", berth, "worker", "--concurrency", "3", "--state-dir", state, "--keep-output", "0",
		"--work-dir", h.dir, "--stop-grace", "1s")
	h.coordinator = add("coordinator", berth, "coordinator")
	h.load = add("load", self, "load", "-host", h.name, "-berth", berth, "-socket", h.socket, "-tcp", h.tcp,
		"-referee", referee, "-state", state, "-seed", fmt.Sprint(o.seed), "-rate", fmt.Sprint(o.rate),
		"-instances", fmt.Sprint(o.instances))
	for _, p := range h.processes() {
		p.want(true)
	}
	return h, nil
}

// berth runs a command of an operator on the host.
func (h *host) berth(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.node.berth, args...)
	cmd.Env = append(os.Environ(), h.node.env...)
	out := &limited{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := h.node.net.start(h.name, cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	if err != nil {
		err = fmt.Errorf("berth %v on %s: %w: %s", args, h.name, err, out)
	}
	return out.String(), err
}

// limited keeps the beginning of what is written to it.
type limited struct{ text []byte }

func (l *limited) Write(p []byte) (int, error) {
	if free := 8<<10 - len(l.text); free > 0 {
		l.text = append(l.text, p[:min(free, len(p))]...)
	}
	return len(p), nil
}

func (l *limited) String() string { return string(l.text) }

// processOf is the process of the host that has a pid, or nil.
func (h *host) processOf(pid int) *process {
	for _, p := range h.processes() {
		if p.pid() == pid {
			return p
		}
	}
	return nil
}

// processes are those that are started again when they end.
func (h *host) processes() []*process {
	return []*process{h.sidecar, h.worker, h.coordinator, h.load}
}

// wipe removes what the host's processes have kept, which have ended.
func (h *host) wipe() error {
	state := filepath.Join(h.dir, "state")
	entries, err := os.ReadDir(state)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(state, e.Name())))
	}
	return err
}

// fill takes all that is left of the host's disk. What it returns gives it back.
func (h *host) fill() (func(), error) {
	path := filepath.Join(h.dir, "state", "filler")
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2] // up to the last byte
		}
	}
	return func() { _ = os.Remove(path) }, nil
}
