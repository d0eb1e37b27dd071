package embed_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
)

// fillDiskIn tells this test binary to fill the data directory that it names
// instead of running tests. What remains of an etcd that can't write can't be
// cleared away, so it gets a process of its own.
const fillDiskIn = "BERTH_TEST_FILL_DISK_IN"

func diskKey(n int) string { return fmt.Sprintf("k%05d", n) }

// fillDisk writes until etcd stops, and prints how many writes were
// acknowledged. It exits with success if etcd stopped for want of space.
func fillDisk(dir string) int {
	s, err := embed.Start(context.Background(), embed.Config{DataDir: dir, ClientListen: "127.0.0.1:0"})
	if err != nil {
		return complain(err)
	}
	c, err := store.NewClient(store.Config{Endpoints: []string{s.Endpoint()}})
	if err != nil {
		return complain(err)
	}
	value := make([]byte, 256<<10)
	for n := 0; ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := c.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(diskKey(n), value, 0)}})
		cancel()
		if err == nil {
			n++
		}
		select {
		case why := <-s.Err():
			if !errors.Is(why, embed.ErrDiskFull) {
				return complain(why)
			}
			fmt.Print(n)
			if err := s.Close(); err != nil && !errors.Is(err, embed.ErrStillStopping) {
				return complain(err)
			}
			return 0
		default:
		}
	}
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}
