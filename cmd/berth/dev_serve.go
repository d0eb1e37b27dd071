package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

// serveDev runs the sidecar and a candidate on an etcd until ctx ends, or one of them can't go
// on. It calls ready when the sidecar serves.
func serveDev(ctx context.Context, s config.Settings, etcd *embed.Server, pools map[string]int, log hclog.Logger, ready func(addresses) error) error {
	s, err := devSettings(s, etcd)
	if err != nil {
		return err
	}
	cfg, err := sidecarConfig(s, log)
	if err != nil {
		return err
	}
	cfg.Dev = true
	cfg.Options.StateDir = filepath.Join(s.DataDir, "state")
	server := sidecar.New(cfg)
	if err := server.Listen(ctx); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w; choose another with --listen; 127.0.0.1:0 is any that is free", err)
		}
		return err
	}
	st, err := stand(s, log, cfg.Registerer)
	if err != nil {
		return err
	}
	done := inBackground(func() error { return server.Run(context.WithoutCancel(ctx)) })
	at := addressesOf(s, server)
	at.Etcd, at.DataDir = etcd.Endpoint(), s.DataDir
	select {
	case err := <-done:
		return errors.Join(err, st.stepDown())
	case err := <-inBackground(func() error { return prepareDev(ctx, cfg.Options, at, s, pools) }):
		if err == nil {
			err = ready(at)
		}
		if err != nil {
			server.Stop(sidecar.Leave)
			return errors.Join(err, <-done, st.stepDown())
		}
	}
	select {
	case err := <-done:
		return errors.Join(err, st.stepDown())
	case err := <-etcd.Err():
		server.Stop(sidecar.Leave)
		return errors.Join(fmt.Errorf("etcd has stopped: %w", err), <-done, st.stepDown())
	case <-st.failed():
	case <-ctx.Done():
	}
	err = st.stepDown()
	server.Stop(sidecar.Revoke)
	return errors.Join(err, <-done)
}

// devSettings are the settings for the embedded etcd, whatever they say of
// another one.
func devSettings(s config.Settings, etcd *embed.Server) (config.Settings, error) {
	s.Endpoints = []string{etcd.Endpoint()}
	s.CACert, s.Cert, s.Key, s.User, s.Password = "", "", "", "", ""
	dir, err := filepath.Abs(s.DataDir)
	if err != nil {
		return s, err
	}
	s.DataDir = dir
	// Where the data directory is too deep for a socket, dev does without one.
	if socket := filepath.Join(dir, "berth.sock"); s.Socket == "" && len(socket) <= sidecar.MaxSocketPath {
		s.Socket = socket
	}
	return s, nil
}

// prepareDev waits until the sidecar is ready, and makes the pools that are
// missing.
func prepareDev(ctx context.Context, o berth.Options, at addresses, s config.Settings, pools map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	if err := awaitReady(ctx, at, s.Token.Reveal()); err != nil {
		return err
	}
	if len(pools) == 0 {
		return nil
	}
	o.Registerer, o.StateDir = nil, "" // an operator is no instance
	admin, err := berth.Connect(ctx, o)
	if err != nil {
		return err
	}
	defer admin.Close()
	r, err := admin.Read(ctx)
	if err != nil {
		return err
	}
	for _, name := range sortedNames(pools) {
		limit := pools[name]
		if _, err := r.Pool(name); problem.CodeOf(err) != problem.PoolNotFound {
			continue // it exists, or setting it says what is wrong
		}
		if _, err := admin.SetPool(ctx, name, pool.Change{Limit: &limit}); err != nil {
			return err
		}
	}
	return nil
}

// inBackground calls do and delivers its result.
func inBackground(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// readyLook is how often it is asked whether the sidecar is ready.
const readyLook = 20 * time.Millisecond

// awaitReady waits until the sidecar can make claims.
func awaitReady(ctx context.Context, at addresses, token string) error {
	client, err := sidecar.Dial(cmp.Or(at.Socket, at.HTTP), token)
	if err != nil {
		return err
	}
	defer client.Close()
	tick := time.NewTicker(readyLook)
	defer tick.Stop()
	for {
		err := client.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the sidecar is not ready: %w", context.Cause(ctx))
		}
	}
}
