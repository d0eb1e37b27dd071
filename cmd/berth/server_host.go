package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar"
)

// hostFile is the file in the state directory of a server with the name of its host.
const hostFile = "host"

// hostOfServer decides under which name of its host a server makes claims. It keeps its former name while
// it has claims under that: another name could not renew them.
type hostOfServer struct {
	s   config.Settings
	log hclog.Logger

	mu      sync.Mutex
	decided string // empty until then
}

// name returns the name. The etcd of the server must serve.
func (h *hostOfServer) name(ctx context.Context) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.decided != "" {
		return h.decided, nil
	}
	name := h.s.Host
	former := h.former()
	if former != "" && former != name {
		left, err := h.left(ctx, former)
		if err != nil {
			return "", err
		}
		if left > 0 {
			h.log.Warn("this server has claims under its former host name, and keeps that name: write the setting host to keep it, or stop the server with TERM before it starts with another name",
				"host", former, "instead_of", name, "leases", left)
			name = former
		}
	}
	h.keep(name)
	h.decided = name
	return name, nil
}

// folder is the state directory of the server.
func (h *hostOfServer) folder() string { return filepath.Join(h.s.DataDir, stateFolder) }

// former returns the name that the server had at its last start. Servers that have not written it had the
// host name of the machine.
func (h *hostOfServer) former() string {
	text, err := os.ReadFile(filepath.Join(h.folder(), hostFile))
	if err == nil {
		return strings.TrimSpace(string(text))
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToLower(name)
}

// left returns how many leases the server has under another name.
func (h *hostOfServer) left(ctx context.Context, host string) (int, error) {
	token, err := lease.ReadToken(filepath.Join(h.folder(), sidecar.Instance))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	backend, err := newBackend(h.s, h.log, nil)
	if err != nil {
		return 0, err
	}
	keys, n := store.NewKeys(h.s.Prefix), 0
	err = backend.Probe(ctx, keys.Leases(host)) // it tries all members
	if err == nil {
		n, err = lease.Left(ctx, backend, keys, host, sidecar.Instance, token)
	}
	if err != nil {
		err = etcdProblem(err)
	}
	return n, errors.Join(err, backend.Close())
}

// keep writes the name for the next start.
func (h *hostOfServer) keep(name string) {
	path := filepath.Join(h.folder(), hostFile)
	err := os.MkdirAll(h.folder(), 0o700)
	if err == nil {
		err = os.WriteFile(path+".new", []byte(name+"\n"), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		h.log.Warn("the host name can't be written: if it changes, the next process can't keep the claims of this one", "error", err)
	}
}
