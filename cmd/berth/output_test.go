package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/problem"
)

func TestAnExpiredCertificateOfAServerIsNoQuestionOfEndpoints(t *testing.T) {
	err := problem.New(problem.EtcdUnavailable, "etcd is unavailable: %w", errors.New("x509: certificate has expired or is not yet valid: current time x is after y"))
	if got := explain(err); strings.Contains(got, "--endpoints") || !strings.Contains(got, "'berth certs issue NAME --renew'") {
		t.Error(got)
	}
}
