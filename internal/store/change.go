package store

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
)

// changeTimeout bounds one try of [Change].
const changeTimeout = 2 * time.Second

// ErrChanged makes [Change] try again: another process was faster.
var ErrChanged = errors.New("another process changed it meanwhile")

// Stop marks an error of a try that trying again does not mend.
func Stop(err error) error { return backoff.Permanent(err) }

// Change reads something, and writes it under a compare of what was read, until
// that has succeeded, was refused, or ctx or 6 s have ended. A try without an
// answer is made again from what is read then: so a try must come to the same if
// the one before came through. What names it in errors, which are problems.
func Change[T any](ctx context.Context, what string, try func(context.Context) (T, error)) (T, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 10*time.Millisecond, 500*time.Millisecond
	v, err := backoff.Retry(ctx, func() (T, error) {
		once, cancel := context.WithTimeout(ctx, changeTimeout)
		defer cancel()
		v, err := try(once)
		if errors.Is(err, ErrDenied) || errors.Is(err, ErrNoSpace) {
			err = Stop(Problem(what, err))
		}
		return v, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(3*changeTimeout))
	var none T
	var p *problem.Error
	switch {
	case err == nil:
		return v, nil
	case errors.As(err, &p):
		return none, p
	}
	return none, Problem(what, err)
}

// Condition returns why a value must not be changed whose last put was at a revision, which is
// 0 if there is none. A nil condition always holds.
type Condition func(revision int64) error

// Check returns why a [Change] ends. The revision must be the one that its transaction compares.
func (c Condition) Check(revision int64) error {
	if c == nil {
		return nil
	}
	if err := c(revision); err != nil {
		return Stop(err)
	}
	return nil
}

// Problem makes a problem of an error of etcd, or of a value that can't be read.
func Problem(what string, err error) error {
	code := problem.EtcdUnavailable
	var corrupt *CorruptError
	switch {
	case errors.Is(err, ErrDenied):
		code = problem.EtcdDenied
	case errors.Is(err, ErrNoSpace):
		code = problem.EtcdFull
	case errors.As(err, &corrupt):
		code = problem.CorruptValue
	}
	return problem.New(code, "%s: %w", what, err)
}

// Commit sends a transaction of which all compares must hold, and returns its
// revision. If one does not, the error is [ErrChanged].
func Commit(ctx context.Context, b Backend, cmps []*pb.Compare, ops ...*pb.RequestOp) (int64, error) {
	resp, err := b.Txn(ctx, &pb.TxnRequest{Compare: cmps, Success: ops})
	if err != nil {
		return 0, err
	}
	if !resp.Succeeded {
		return 0, ErrChanged
	}
	return resp.Header.Revision, nil
}
