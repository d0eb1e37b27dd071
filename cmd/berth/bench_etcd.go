package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/store/embed"
)

// benchEtcdCommand serves etcd for a benchmark, in a process of its own.
func benchEtcdCommand() *cli.Command {
	return &cli.Command{
		Name:   "etcd",
		Usage:  "serve etcd for a benchmark, and print its endpoint",
		Hidden: true,
		Flags:  []cli.Flag{&cli.PathFlag{Name: "dir", Required: true, Usage: "`DIR` of its data"}},
		Action: benchEtcd,
	}
}

func benchEtcd(c *cli.Context) error {
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM)
	defer stop()
	srv, err := embed.Start(ctx, embed.Config{
		DataDir: c.Path("dir"), ClientListen: "127.0.0.1:0",
		Logger: hclog.New(&hclog.LoggerOptions{Name: "berth", Level: hclog.Error, Output: c.App.ErrWriter}),
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, srv.Endpoint())
	select {
	case err = <-srv.Err():
	case <-ctx.Done():
	}
	return errors.Join(err, srv.Close())
}

// etcdProcess is an etcd that was started for a benchmark.
type etcdProcess struct {
	*process
	dir, endpoint string
}

// startBenchEtcd starts one in a temporary directory.
func startBenchEtcd(ctx context.Context, log io.Writer) (*etcdProcess, error) {
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return nil, err
	}
	p, endpoint, err := startProcess(log, os.Environ(), "bench", "etcd", "--dir", filepath.Join(dir, "etcd"))
	if err == nil && ctx.Err() != nil {
		p.stop()
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &etcdProcess{process: p, dir: dir, endpoint: endpoint}, nil
}

// close stops it and deletes its data.
func (e *etcdProcess) close() error {
	e.stop()
	return os.RemoveAll(e.dir)
}
