package bench

import (
	"strings"
	"testing"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/instance"
)

func TestASidecarOfABenchmarkHasTheEtcdOfTheBenchmark(t *testing.T) {
	t.Setenv("BERTH_TOKEN", "not for the sidecar")
	p := &Program{settings: config.Settings{CACert: "/ca.pem", User: "jo"}}
	line := strings.Join(p.arguments(instance.Options{Endpoints: []string{"a:1", "b:2"}, Prefix: "/x/", Host: "h"}, "/tmp/d"), " ")
	for _, want := range []string{"--endpoints a:1,b:2", "--prefix /x/", "--host h", "--socket /tmp/d/berth.sock", "--cacert /ca.pem", "--user jo"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is missing in %q", want, line)
		}
	}
	for _, e := range p.environment() {
		if strings.HasPrefix(e, "BERTH_") {
			t.Errorf("the environment has %s", e)
		}
	}
}
