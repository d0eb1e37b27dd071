package sidecar

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/testlog"
)

func TestASidecarThatCannotBeginLogsWhyOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, begun := testlog.New(t), time.Now()
		s := &Server{log: hclog.New(&hclog.LoggerOptions{Output: log}), cfg: Config{Persist: true, Await: func(context.Context) (string, error) {
			why := "leases end in"
			if time.Since(begun) > 30*time.Second {
				why = "another process has the name since"
			}
			return "", problem.New(problem.HostInUse, "%s %s", why, time.Since(begun).Round(time.Second))
		}}}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		if _, err := s.open(ctx, &apiServer{}); err == nil {
			t.Error("it began without a name")
		}
		for _, why := range []string{"leases end in", "another process has the name since"} {
			if n := strings.Count(log.String(), why); n != 1 {
				t.Errorf("%q was logged %d times:\n%s", why, n, log.String())
			}
		}
	})
}
