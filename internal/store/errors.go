package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The errors of a [Backend] that callers tell apart. Test with errors.Is; the
// full error says what etcd said.
var (
	// ErrUnavailable: etcd did not answer, or not in time. A write may have
	// been carried out.
	ErrUnavailable = errors.New("etcd is unavailable")
	// ErrNoSpace: etcd is full and takes deletes only. The write that filled it
	// gets this answer although it was carried out.
	ErrNoSpace = errors.New("etcd is full")
	// ErrLeaseNotFound: the lease is gone, and with it its keys. A transaction
	// with this answer did nothing.
	ErrLeaseNotFound = errors.New("lease is gone")
	// ErrDenied: etcd refused the user, or the user's rights on the prefix.
	ErrDenied = errors.New("etcd refused")
	// ErrInsecure: certificates are not accepted, here or by etcd, at any endpoint. Only [Client.Probe]
	// returns it.
	ErrInsecure = errors.New("no secure connection to etcd is possible")
	// ErrCompacted: the revision asked for is no longer kept.
	ErrCompacted = errors.New("revision is compacted")
	// ErrTooLarge: etcd refused the request for its size.
	ErrTooLarge = errors.New("request is too large for etcd")
	// ErrInvalid: etcd refused the request for what it says.
	ErrInvalid = errors.New("etcd can't take the request")
	// ErrOtherCluster: a response is of another cluster than the one that the client works
	// with, or worked with when the request was made.
	ErrOtherCluster = errors.New("another etcd cluster answers")
	// ErrRestored: etcd is at an earlier revision than it was, or another cluster has replaced it. It was
	// restored from a backup, and claims and leases since the backup are lost.
	ErrRestored = errors.New("etcd was restored, or another cluster has replaced it")
	// ErrBehind: so much was written since a watch has ended that reading
	// everything again costs etcd less than going on from there.
	ErrBehind = errors.New("the watch is too far behind")
	// ErrTokenExpired: etcd did not know the login; the request did nothing and can
	// be sent again.
	ErrTokenExpired = errors.New("etcd login expired")
	// ErrNoLogin: etcd gave no login; the request was not sent. The error says why.
	ErrNoLogin = errors.New("no login to etcd")
)

// OutcomeUnknown reports whether a write that ended with err may have been carried out,
// or may yet be. It is false for nil.
func OutcomeUnknown(err error) bool {
	switch {
	case err == nil,
		errors.Is(err, ErrLeaseNotFound),
		errors.Is(err, ErrDenied),
		errors.Is(err, ErrCompacted),
		errors.Is(err, ErrTooLarge),
		errors.Is(err, ErrInvalid),
		errors.Is(err, ErrTokenExpired),
		errors.Is(err, ErrNoLogin):
		return false
	}
	return true
}

// classify wraps an error of etcd's client in the one of ours that it means.
// Unknown errors stay unwrapped, so their outcome is unknown.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	if kind := kindOf(err); kind != nil && !errors.Is(err, kind) {
		return fmt.Errorf("%s: %w: %s", op, kind, plain(err))
	}
	return fmt.Errorf("%s: %w", op, err)
}

// noAnswer is the text of an error about a request that was not answered before it ended.
const noAnswer = "no answer in time"

// plain returns the text of an error without what gRPC adds to it.
func plain(err error) string {
	switch s, ok := status.FromError(err); {
	case errors.Is(err, context.DeadlineExceeded), ok && s.Code() == codes.DeadlineExceeded:
		return noAnswer
	case ok:
		return s.Message()
	}
	return err.Error()
}

// proposalDropped is what a leader answers while it transfers leadership: etcd has no error for it.
const proposalDropped = "raft proposal dropped"

// kindOf finds the error of ours that an error of etcd's client means, or nil.
func kindOf(err error) error {
	if errors.Is(err, ErrOtherCluster) {
		return ErrOtherCluster
	}
	desc := rpctypes.ErrorDesc(err)
	if _, of, ok := strings.Cut(desc, " desc = "); ok {
		desc = of // a watch that etcd refuses has it as text
	}
	switch desc {
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCNoSpace):
		return ErrNoSpace
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCLeaseNotFound):
		return ErrLeaseNotFound
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted):
		return ErrCompacted
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooLarge),
		rpctypes.ErrorDesc(rpctypes.ErrGRPCTooManyOps):
		return ErrTooLarge
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCInvalidAuthToken),
		rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthOldRevision):
		return ErrTokenExpired
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCNotSupportedForLearner), // the member is new
		proposalDropped:
		return ErrUnavailable
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthFailed),
		rpctypes.ErrorDesc(rpctypes.ErrGRPCUserEmpty),
		rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied):
		return ErrDenied
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return ErrUnavailable
	}
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return ErrUnavailable
	case codes.PermissionDenied, codes.Unauthenticated:
		return ErrDenied
	case codes.InvalidArgument:
		return ErrInvalid
	}
	return nil
}

// code returns the gRPC code of an error, whichever of etcd's two forms it has.
func code(err error) codes.Code {
	var ee rpctypes.EtcdError
	if errors.As(err, &ee) {
		return ee.Code()
	}
	return status.Code(err)
}
