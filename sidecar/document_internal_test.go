package sidecar

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// The committed document is what clients are generated from without a running
// sidecar. `make docs` writes it.
func TestTheCommittedDocumentIsCurrent(t *testing.T) {
	const path = "../docs/openapi.yaml"
	a, err := newAPI(&Config{}, newMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	served, err := a.yaml()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("BERTH_UPDATE") != "" {
		if err := os.WriteFile(path, served, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(committed), string(served)); diff != "" {
		t.Errorf("%s is not current (-committed +served), `make docs` writes it:\n%s", path, diff)
	}
}
