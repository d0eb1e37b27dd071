package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestErrorsOfEtcdAreToldApart has the errors that etcd's server, its client and
// gRPC really return, in both of the forms that etcd's errors have.
func TestErrorsOfEtcdAreDistinguished(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		err     error
		kind    error // nil: none of ours
		certain bool  // nothing happened, nor will it
	}{
		"no space":                      {rpctypes.ErrGRPCNoSpace, ErrNoSpace, false},
		"lease not found":               {rpctypes.ErrGRPCLeaseNotFound, ErrLeaseNotFound, true},
		"compacted":                     {rpctypes.ErrGRPCCompacted, ErrCompacted, true},
		"request too large":             {rpctypes.ErrGRPCRequestTooLarge, ErrTooLarge, true},
		"too many operations":           {rpctypes.ErrGRPCTooManyOps, ErrTooLarge, true},
		"invalid auth token":            {rpctypes.ErrGRPCInvalidAuthToken, ErrTokenExpired, true},
		"old auth revision":             {rpctypes.ErrGRPCAuthOldRevision, ErrTokenExpired, true},
		"authentication failed":         {rpctypes.ErrGRPCAuthFailed, ErrDenied, true},
		"no user":                       {rpctypes.ErrGRPCUserEmpty, ErrDenied, true},
		"permission denied":             {rpctypes.ErrGRPCPermissionDenied, ErrDenied, true},
		"no leader":                     {rpctypes.ErrGRPCNoLeader, ErrUnavailable, false},
		"not the leader":                {rpctypes.ErrGRPCNotLeader, nil, false},
		"the leader has changed":        {rpctypes.ErrGRPCLeaderChanged, ErrUnavailable, false},
		"stopped":                       {rpctypes.ErrGRPCStopped, ErrUnavailable, false},
		"request timed out":             {rpctypes.ErrGRPCTimeout, ErrUnavailable, false},
		"leader failed":                 {rpctypes.ErrGRPCTimeoutDueToLeaderFail, ErrUnavailable, false},
		"connection lost":               {rpctypes.ErrGRPCTimeoutDueToConnectionLost, ErrUnavailable, false},
		"no answer from the leader":     {rpctypes.ErrGRPCTimeoutWaitAppliedIndex, ErrUnavailable, false},
		"unhealthy cluster":             {rpctypes.ErrGRPCUnhealthy, ErrUnavailable, false},
		"a transfer of leadership":      {status.Error(codes.Unknown, "raft proposal dropped"), ErrUnavailable, false},
		"a learner":                     {rpctypes.ErrGRPCNotSupportedForLearner, ErrUnavailable, false},
		"too many requests":             {rpctypes.ErrGRPCRequestTooManyRequests, nil, false},
		"corrupt":                       {rpctypes.ErrGRPCCorrupt, nil, false},
		"duplicate key":                 {rpctypes.ErrGRPCDuplicateKey, ErrInvalid, true},
		"connection refused":            {status.Error(codes.Unavailable, "dial tcp: connection refused"), ErrUnavailable, false},
		"the connection was closed":     {status.Error(codes.Canceled, "grpc: the client connection is closing"), ErrUnavailable, false},
		"deadline of gRPC":              {status.Error(codes.DeadlineExceeded, "context deadline exceeded"), ErrUnavailable, false},
		"a proxy that denies":           {status.Error(codes.PermissionDenied, "rbac"), ErrDenied, true},
		"a proxy that wants a login":    {status.Error(codes.Unauthenticated, "who?"), ErrDenied, true},
		"a message beyond gRPC's limit": {status.Error(codes.ResourceExhausted, "received message larger than max"), nil, false},
		"an internal error":             {status.Error(codes.Internal, "stream terminated"), nil, false},
		"deadline of a context":         {context.DeadlineExceeded, ErrUnavailable, false},
		"a canceled context":            {canceled.Err(), ErrUnavailable, false},
		"a deadline inside another":     {fmt.Errorf("dial: %w", context.DeadlineExceeded), ErrUnavailable, false},
		"the end of a connection":       {io.ErrUnexpectedEOF, nil, false},
		"an unforeseen error":           {errors.New("?"), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			for form, err := range map[string]error{"server": tc.err, "client": rpctypes.Error(tc.err)} {
				got := classify("txn", err)
				for _, kind := range []error{ErrUnavailable, ErrNoSpace, ErrLeaseNotFound, ErrDenied, ErrCompacted, ErrTooLarge, ErrInvalid, ErrTokenExpired} {
					if errors.Is(got, kind) != (kind == tc.kind) {
						t.Errorf("in the form of the %s: %v, is it %q? want %v", form, got, kind, tc.kind)
					}
				}
				if OutcomeUnknown(got) != !tc.certain {
					t.Errorf("in the form of the %s: %v, outcome unknown: %t", form, got, OutcomeUnknown(got))
				}
			}
		})
	}
}

func TestTheOutcomeOfNoErrorIsKnown(t *testing.T) {
	if OutcomeUnknown(nil) || classify("txn", nil) != nil || kindOf(nil) != nil {
		t.Error("no error is an error")
	}
}

func TestAnUnknownOutcomeSurvivesWrapping(t *testing.T) {
	for _, err := range []error{ErrLeaseNotFound, ErrDenied, ErrCompacted, ErrTooLarge, ErrInvalid, ErrTokenExpired} {
		if OutcomeUnknown(fmt.Errorf("a: %w", errors.Join(errors.New("b"), err))) {
			t.Errorf("the outcome of %v is unknown once it is wrapped", err)
		}
	}
	for _, err := range []error{ErrUnavailable, ErrNoSpace} {
		if !OutcomeUnknown(fmt.Errorf("a: %w", err)) {
			t.Errorf("the outcome of %v is known once it is wrapped", err)
		}
	}
}

func TestDurationsBecomeWholeSecondsRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		-time.Hour: 1, -1: 1, 0: 1, 1: 1, time.Second - 1: 1, time.Second: 1, time.Second + 1: 2,
		1500 * time.Millisecond: 2, 2 * time.Second: 2, 5 * time.Minute: 300, 24 * time.Hour: 86400,
	} {
		if got := seconds(d); got != want {
			t.Errorf("%s is %d s, want %d", d, got, want)
		}
	}
}
