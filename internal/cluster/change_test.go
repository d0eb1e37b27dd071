package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestTheAddressOfASuccessorIsCheckedBeforeTheRemoval(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	c := dialed(t, m)
	m.Kill(1)
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.Find("m2")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{other.PeerURLs[0], "https://127.0.0.1:9"} {
		var e *problem.Error
		if _, err := c.Replace(t.Context(), "m1", at, false); !errors.As(err, &e) || e.Field != "url" {
			t.Errorf("a successor at %s: %v", at, err)
		}
	}
	if s, err := c.Status(t.Context()); err != nil || len(s.Members) != 3 {
		t.Errorf("then the cluster is %+v, %v", s, err)
	}
}

func TestAVoterThatHasNotRunCountsAsOneThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	c := dialed(t, m)
	// etcd lets a cluster of which all answer add a voter.
	if err := c.change(t.Context(), rpctypes.ErrPeerURLExist, func(ctx context.Context) error {
		_, err := c.etcd.MemberAdd(ctx, []string{"http://127.0.0.1:9"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s, err := c.Status(t.Context())
	if err != nil || s.Voters != 4 || s.Healthy != 3 || s.Majority() != 3 {
		t.Fatalf("the cluster is %+v, %v", s, err)
	}
}

func TestAClusterWithoutALeaderIsNotOneWithoutAMajority(t *testing.T) {
	for answer, want := range map[int]string{0: "only 0 of 3 members answer", 1: "start the others", 2: "2 of 3 members answer, but they have no leader", 3: "try again"} {
		text := (&Status{Voters: 3, answer: answer}).NoMajority("claims wait")
		if !strings.Contains(text, want) || !strings.Contains(text, "so claims wait: ") {
			t.Errorf("with %d members: %s", answer, text)
		}
	}
}

func TestALearnerThatAnswersIsNotRemoved(t *testing.T) {
	c := &Client{}
	s := &Status{Voters: 3, Healthy: 3, Members: []MemberStatus{{Name: "a"}, {Name: "b", Status: Learner, Version: "3.6.0"}}}
	if err := c.remove(t.Context(), s, &s.Members[1], false); problem.CodeOf(err) != problem.Precondition || !strings.Contains(err.Error(), "member b answers") {
		t.Errorf("a learner is removed: %v", err)
	}
}

func TestAChangeWithAnUnknownOutcomeIsMade(t *testing.T) {
	t.Parallel()
	c := &Client{}
	for name, tc := range map[string]struct {
		answers []error
		want    problem.Code // empty is success
	}{
		"made at once":                     {answers: []error{nil}},
		"made although there is no answer": {answers: []error{rpctypes.ErrTimeout, rpctypes.ErrMemberNotFound}},
		"made by a member that stops":      {answers: []error{rpctypes.ErrStopped, rpctypes.ErrMemberNotFound}},
		"made by another process":          {answers: []error{rpctypes.ErrMemberNotFound}, want: problem.Precondition},
		"refused later":                    {answers: []error{rpctypes.ErrTimeout, rpctypes.ErrPeerURLExist}, want: problem.Precondition},
		"denied":                           {answers: []error{rpctypes.ErrPermissionDenied}, want: problem.EtcdDenied},
		"denied without a token":           {answers: []error{rpctypes.ErrGRPCInvalidAuthToken}, want: problem.EtcdDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := 0
			err := c.change(t.Context(), rpctypes.ErrMemberNotFound, func(context.Context) error {
				i++
				return tc.answers[i-1]
			})
			if i != len(tc.answers) || (err == nil) != (tc.want == "") || err != nil && problem.CodeOf(err) != tc.want {
				t.Errorf("after %d attempts: %v", i, err)
			}
		})
	}
}

func TestAReasonIsReadable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`connection error: desc = "dial tcp 10.0.0.1:2379: connect: connection refused"`:                                                             "dial tcp 10.0.0.1:2379: connect: connection refused",
		`connection error: desc = "tls: failed to verify certificate: x509: of \"berth authority\""`:                                                 `tls: failed to verify certificate: x509: of "berth authority"; certificates must be signed by one authority: use the files of that of the servers (--cacert, --cert, --key)`,
		`connection error: desc = "error reading server preface: remote error: tls: unknown certificate authority"`:                                  "error reading server preface: remote error: tls: unknown certificate authority; certificates must be signed by one authority: use the files of that of the servers (--cacert, --cert, --key)",
		`connection error: desc = "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time x is after y"`: "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time x is after y",
		"etcdserver: no leader": "etcdserver: no leader",
	} {
		if got := rootOf(status.Error(codes.Unavailable, text)); got != want {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
}

func TestAServerThatCannotFinishJoiningSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, err := range []error{context.DeadlineExceeded, status.Error(codes.DeadlineExceeded, "context deadline exceeded")} {
		if text := unjoined(err).Error(); strings.Contains(text, "deadline") || !strings.Contains(text, "berth cluster status") {
			t.Errorf("%v is reported as %s", err, text)
		}
	}
	if err := unjoined(rpctypes.ErrNoLeader); !errors.Is(err, rpctypes.ErrNoLeader) {
		t.Errorf("another error is reported as %v", err)
	}
}
