package config

import (
	"slices"
	"testing"
)

func TestVariablesThatMeanNothingAreFound(t *testing.T) {
	env := []string{
		"BERTH_ENDPOINTS=x", "BERTH_CONFIG=x", "BERTH_FENCE=1", "BERTH_OPTIONS=", "BERTH_TEST_PROC=1", "PATH=/bin", "BERTHS=1",
		"BERTH_SERVICE_HOST=10.0.0.1", "BERTH_PORT=tcp://10.0.0.1:7420", "BERTH_SIDECAR_PORT_7420_TCP_ADDR=10.0.0.1", "BERTH_SIDECAR_SERVICE_PORT_HTTP=7420",
		"BERTH_SIDECARS=x", "BERTH_ENDPOINT=x", "BERTH_=x", "berth_endpoints=x", "Berth_Fence=1", "berth_home=/x",
	}
	if got, want := Unknown(env), []string{"BERTH_", "BERTH_ENDPOINT", "BERTH_SIDECARS", "Berth_Fence", "berth_endpoints"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
