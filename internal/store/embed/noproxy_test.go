package embed_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// behindProxy tells this test binary that its environment has a proxy. Go reads it once in a
// process.
const behindProxy = "BERTH_TEST_BEHIND_PROXY"

func TestMembersConnectToEachOtherWithoutTheProxyOfTheEnvironment(t *testing.T) {
	t.Parallel()
	if os.Getenv(behindProxy) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), behindProxy+"=1")
		for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
			cmd.Env = append(cmd.Env, name+"=http://127.0.0.1:1")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	// Go never uses a proxy for loopback addresses, and 0.0.0.0 is not one.
	embedtest.Cluster(t, 2, func(c *embed.Config) {
		for name, address := range c.Members {
			c.Members[name] = strings.Replace(address, "127.0.0.1", "0.0.0.0", 1)
		}
	})
	if got := os.Getenv("HTTP_PROXY") + os.Getenv("NO_PROXY"); got != "http://127.0.0.1:1" {
		t.Fatalf("commands that this process starts get %q", got)
	}
}
