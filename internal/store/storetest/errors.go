package storetest

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/berthhq/berth/internal/store"
)

// ErrUnsupported tells that a request asks for something that etcd has and this
// stand-in has not.
var ErrUnsupported = errors.New("not supported by the stand-in for etcd")

// The refusals of transactions and reads, in the form in which [store.Client]
// returns those of etcd: the error of ours around the text of etcd's, or etcd's
// own error where berth does not tell it apart. They are made once, as hot paths
// return them.
var (
	errTooManyOps    = refusal("txn", store.ErrTooLarge, rpctypes.ErrGRPCTooManyOps)
	errTooLarge      = refusal("txn", store.ErrTooLarge, rpctypes.ErrGRPCRequestTooLarge)
	errEmptyKey      = refusal("request", store.ErrInvalid, rpctypes.ErrGRPCEmptyKey)
	errEmptyOp       = refusal("txn", store.ErrInvalid, rpctypes.ErrGRPCKeyNotFound)
	errDuplicateKey  = refusal("txn", store.ErrInvalid, rpctypes.ErrGRPCDuplicateKey)
	errTxnNoSpace    = refusal("txn", store.ErrNoSpace, rpctypes.ErrGRPCNoSpace)
	errPutLease      = refusal("txn", store.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound)
	errCompacted     = refusal("range", store.ErrCompacted, rpctypes.ErrGRPCCompacted)
	errFuture        = refusal("range", nil, rpctypes.ErrGRPCFutureRev)
	errGrantNoSpace  = refusal("grant lease", store.ErrNoSpace, rpctypes.ErrGRPCNoSpace)
	errLeaseExists   = refusal("grant lease", nil, rpctypes.ErrGRPCLeaseExist)
	errTTLTooLarge   = refusal("grant lease", nil, rpctypes.ErrGRPCLeaseTTLTooLarge)
	errLease         = refusal("lease", store.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound)
	errWatchCompact  = refusal("watch", store.ErrCompacted, rpctypes.ErrGRPCCompacted)
	errWatchEmpty    = refusal("watch", nil, errors.New("mvcc: watcher range is empty"))
	errCompactAgain  = refusal("compact", store.ErrCompacted, rpctypes.ErrGRPCCompacted)
	errCompactFuture = refusal("compact", nil, rpctypes.ErrGRPCFutureRev)
)

// refusal builds an error as [store.Client] does.
func refusal(op string, kind, cause error) error {
	if kind == nil {
		return fmt.Errorf("%s: %w", op, cause)
	}
	return fmt.Errorf("%s: %w: %v", op, kind, cause)
}

// unsupported names what is asked for and missing.
func unsupported(what string) error { return fmt.Errorf("%w: %s", ErrUnsupported, what) }
