package berth

import (
	"errors"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// Error is an error of this package: a message and a stable code.
type Error struct {
	// Code is stable, such as "claim_timeout", "pool_not_found" or "claim_lost".
	Code string
	// Field names the input that is invalid, if the error is about one.
	Field string
	// Reason is why a claim was not granted, if the code is no_capacity or claim_timeout:
	// which pools are full, who holds them, and the position in the wait queue.
	Reason *pool.Reason

	cause error
}

// Error returns the message.
func (e *Error) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// ErrorCode returns the stable code of an error, such as "claim_timeout",
// "pool_not_found" or "claim_lost". It is "internal" for errors without a code.
func ErrorCode(err error) string { return string(problem.CodeOf(err)) }

// public returns an error that has a code as an [*Error], and others as they are.
func public(err error) error {
	var p *problem.Error
	if !errors.As(err, &p) {
		return err
	}
	e := &Error{Code: string(p.Code), Field: p.Field, cause: err}
	if r, ok := p.Detail.(pool.Reason); ok {
		e.Reason = &r
	}
	return e
}
