package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/berthhq/berth/internal/store"
)

// etcdctl is etcd's own client, for what its operator does and berth never asks.
func etcdctl(t testing.TB, cfg clientv3.Config) *clientv3.Client {
	t.Helper()
	cfg.Logger = zap.NewNop()
	c, err := clientv3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// runEtcdctl is the program etcdctl, with the subcommands of pages: role add, and role
// grant-permission. It uses the etcd in ETCDCTL_ENDPOINTS.
func runEtcdctl(args []string) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCDCTL_ENDPOINTS")}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx := context.Background()
	switch command := strings.Join(args[:min(2, len(args))], " "); {
	case command == "role add" && len(args) == 3:
		_, err = c.RoleAdd(ctx, args[2])
	case command == "role grant-permission" && len(args) > 3:
		flags := flag.NewFlagSet(command, flag.ContinueOnError)
		prefix := flags.Bool("prefix", false, "")
		if err := flags.Parse(args[3:]); err != nil {
			return err
		}
		if flags.NArg() != 2 || !*prefix {
			return fmt.Errorf("etcdctl %q: want a right and a prefix", args)
		}
		right, err := clientv3.StrToPermissionType(flags.Arg(0))
		if err != nil {
			return err
		}
		_, err = c.RoleGrantPermission(ctx, args[2], flags.Arg(1), string(store.RangeEnd(flags.Arg(1))), right)
		return err
	default:
		return fmt.Errorf("etcdctl %q is not what a page has", args)
	}
	return err
}
