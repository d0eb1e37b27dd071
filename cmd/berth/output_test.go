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

// The settings of this command have nothing to do with the etcd that another process waits for.
func TestAServerThatIsNotReadyIsNoQuestionOfEndpoints(t *testing.T) {
	err := problem.New(problem.EtcdUnavailable, "not ready: etcd: this server has no data. It waits for b at https://10.0.0.2:2379 (connection refused)")
	if got := explain(err); got != err.Error() {
		t.Error(got)
	}
}

func TestASocketThatThisUserMayNotUseIsNoQuestionOfEndpoints(t *testing.T) {
	err := problem.New(problem.EtcdUnavailable, "etcd is unavailable (unix:///d/etcd.sock: permission denied; run this as the user of that server, or join the group of its setting socket_group)")
	if got := explain(err); got != err.Error() {
		t.Error(got)
	}
}
