package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
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
	// former is the name that the server had at its last start, if that is another one and it may have claims
	// under it. Otherwise it is empty.
	former string

	mu      sync.Mutex
	decided string // empty until then
}

func newHostOfServer(s config.Settings, log hclog.Logger) *hostOfServer {
	h := &hostOfServer{s: s, log: log}
	if _, err := lease.ReadToken(h.sidecarFolder()); errors.Is(err, fs.ErrNotExist) {
		return h // it has never had claims
	}
	if name := h.last(); name != s.Host {
		h.former = name
	}
	return h
}

// note returns what the line about a started server says of its host, before etcd can be asked for claims.
func (h *hostOfServer) note() string {
	if h.former == "" {
		return ""
	}
	return fmt.Sprintf("; it keeps its former host name %s while it has claims under that name: write 'host: %[1]s' in the settings to keep it, or stop it with TERM before it starts with another name", h.former)
}

// name returns the name. The etcd of the server must serve.
func (h *hostOfServer) name(ctx context.Context) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.decided != "" {
		return h.decided, nil
	}
	name := h.s.Host
	if former := h.former; former != "" {
		left, err := h.left(ctx, former)
		if err != nil {
			return "", err
		}
		if left > 0 {
			h.log.Warn("this server has claims under its former host name, and keeps that name: write 'host: "+former+"' in the settings to keep it, or stop the server with TERM before it starts with another name",
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

// sidecarFolder is the state directory of the sidecar.
func (h *hostOfServer) sidecarFolder() string { return filepath.Join(h.folder(), sidecar.Instance) }

// last returns the name that the server had at its last start. Servers that have not written it had the
// host name of the machine.
func (h *hostOfServer) last() string {
	data, err := os.ReadFile(filepath.Join(h.folder(), hostFile))
	if err == nil {
		return strings.TrimSpace(string(data))
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return text.Host(name)
}

// left returns how many leases the server has under another name.
func (h *hostOfServer) left(ctx context.Context, host string) (int, error) {
	token, err := lease.ReadToken(h.sidecarFolder())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	backend, err := newBackend(h.s, h.log, nil, nil)
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
