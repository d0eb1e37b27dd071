package store

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAnErrorThatEtcdIsUnavailableHasNoWordsOfGRPC(t *testing.T) {
	for want, err := range map[string]error{
		"renew lease: etcd is unavailable: no answer in time":                   status.Error(codes.DeadlineExceeded, "stream terminated by RST_STREAM with error code: CANCEL"),
		"txn: etcd is unavailable: no answer in time":                           context.DeadlineExceeded,
		"range: etcd is unavailable: etcdserver: request timed out":             status.Error(codes.Unavailable, "etcdserver: request timed out"),
		"watch: etcd is unavailable: etcdserver: rpc not supported for learner": status.Error(codes.FailedPrecondition, "etcdserver: rpc not supported for learner"),
	} {
		op, _, _ := strings.Cut(want, ":")
		got := classify(op, err)
		if !errors.Is(got, ErrUnavailable) || got.Error() != want {
			t.Errorf("%v becomes %q, want %q", err, got, want)
		}
	}
}

// Without a majority, all endpoints fail again and again.
func TestAnEndpointThatKeepsFailingIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	c, err := NewClient(Config{Endpoints: []string{"127.0.0.1:1", "127.0.0.1:2"}, Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 5 {
		for _, role := range []*atomic.Uint32{&c.writes, &c.leases} {
			_, at := c.pick(role)
			c.fail(role, at, status.Error(codes.DeadlineExceeded, "stream terminated"))
		}
	}
	for at, next := range map[string]string{"127.0.0.1:1": "127.0.0.1:2", "127.0.0.1:2": "127.0.0.1:1"} {
		want := "an etcd endpoint failed, going on with the next one: endpoint=" + at + " next=" + next + " error=\"no answer in time\""
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%d lines %q, want 1:\n%s", n, want, &log)
		}
	}
}
