package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/bench"
)

const (
	// sidecarStart bounds the start of a sidecar.
	sidecarStart = 30 * time.Second
	// sidecarLook is how often it is asked whether it is ready.
	sidecarLook = 20 * time.Millisecond
)

// sidecarProcesses start sidecars for a benchmark, as users do.
type sidecarProcesses struct {
	settings config.Settings // how to reach etcd; the endpoints are the options'
	log      io.Writer
}

// sidecarProcess is one of them.
type sidecarProcess struct {
	*process
	dir, socket string
}

// Start starts a sidecar and waits until it is ready.
func (s *sidecarProcesses) Start(ctx context.Context, o berth.Options) (bench.Sidecar, error) {
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return nil, err
	}
	p := &sidecarProcess{dir: dir, socket: filepath.Join(dir, "berth.sock")}
	// Its first line tells where it listens, which is known.
	if p.process, _, err = startProcess(s.log, s.environment(), s.arguments(o, p)...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := p.ready(ctx); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

func (s *sidecarProcesses) arguments(o berth.Options, p *sidecarProcess) []string {
	all := []string{
		"sidecar", "--endpoints", strings.Join(o.Endpoints, ","), "--prefix", o.Prefix, "--host", o.Host,
		"--listen", "", "--socket", p.socket, "--state-dir", filepath.Join(p.dir, "state"), "--log-level", "error",
		"--drain-timeout", "0",
	}
	for flag, value := range map[string]string{
		"cacert": s.settings.CACert, "cert": s.settings.Cert, "key": s.settings.Key, "user": s.settings.User,
	} {
		if value != "" {
			all = append(all, "--"+flag, value)
		}
	}
	return all
}

// environment is this process' own without its settings, which the arguments
// repeat as far as they count; a password is no argument.
func (s *sidecarProcesses) environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "BERTH_") {
			env = append(env, e)
		}
	}
	if password := s.settings.Password.Reveal(); password != "" {
		env = append(env, "BERTH_PASSWORD="+password)
	}
	return env
}

// ready waits until the sidecar says that it is.
func (p *sidecarProcess) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sidecarStart)
	defer cancel()
	var dialer net.Dialer
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", p.socket)
	}}
	defer transport.CloseIdleConnections()
	for {
		if p.answers(ctx, &http.Client{Transport: transport}) {
			return nil
		}
		select {
		case <-time.After(sidecarLook):
		case <-p.done:
			return errors.New("it ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("it is not ready: %w", context.Cause(ctx))
		}
	}
}

func (p *sidecarProcess) answers(ctx context.Context, c *http.Client) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := c.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Socket is where it listens.
func (p *sidecarProcess) Socket() string { return p.socket }

// PID is its process.
func (p *sidecarProcess) PID() int { return p.pid() }

// Stop ends it, with what it holds.
func (p *sidecarProcess) Stop() error {
	p.stop()
	return os.RemoveAll(p.dir)
}
